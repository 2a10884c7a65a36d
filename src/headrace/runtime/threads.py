"""Threads for sync handlers. They are daemons: a stuck handler cannot keep the process alive."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import queue
import threading
from collections.abc import Callable
from typing import Any


class _Call:
    """A call that waits for a thread, or has one."""

    __slots__ = ("begun", "run", "withdrawn")

    def __init__(self, run: Callable[[], None]) -> None:
        self.run = run
        self.begun = self.withdrawn = False


class ThreadPool:
    """As many threads as there are calls at once, up to `limit`; idle ones are used again."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0
        self._spare = 0
        """Idle threads less the calls that wait for one."""
        self._awaited: set[asyncio.Future[Any]] = set()

    async def call(
        self, function: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]
    ) -> Any:
        """Runs the function in a thread, in this context. A cancelled caller waits for the
        function all the same: its slot is not free while it runs."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        context = contextvars.copy_context()

        def resolve(result: Any, error: BaseException | None) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

        def run() -> None:
            result, error = None, None
            try:
                result = context.run(function, *args, **kwargs)
            except StopIteration as stop:  # cannot travel through a future
                error = RuntimeError(f"the handler raised StopIteration: {stop}")
            except BaseException as raised:
                error = raised
            with contextlib.suppress(RuntimeError):  # the loop is closed: the worker has left
                loop.call_soon_threadsafe(resolve, result, error)

        call = _Call(run)
        self._submit(call)
        self._awaited.add(future)
        try:
            return await _outlast(future, lambda: self._withdraw(call))
        finally:
            self._awaited.discard(future)

    def _withdraw(self, call: _Call) -> bool:
        """Takes a call back that no thread has begun."""
        with self._lock:
            call.withdrawn = not call.begun
            return call.withdrawn

    def _submit(self, call: _Call) -> None:
        with self._lock:
            self._spare -= 1
            another = self._spare < 0 and self._threads < self.limit
            if another:
                self._threads += 1
                self._spare += 1
        self._calls.put(call)
        if another:
            threading.Thread(target=self._serve, name="headrace-handler", daemon=True).start()

    def _serve(self) -> None:
        while True:
            call = self._calls.get()
            if call is None:
                return
            with self._lock:
                call.begun = not call.withdrawn
            if call.begun:
                call.run()
            with self._lock:
                self._spare += 1
            del call  # or an idle thread would keep the last payload alive

    def close(self) -> None:
        """Lets idle threads end, and whoever waits for a busy one go: it may never answer."""
        for future in self._awaited:
            future.cancel()
        for _ in range(self._threads):
            self._calls.put(None)


async def _outlast(future: asyncio.Future[Any], withdraw: Callable[[], bool]) -> Any:
    """Waits for a call that has begun even when cancelled, then lets the cancellation through."""
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.shield(future)
        except asyncio.CancelledError as error:
            if future.cancelled() or withdraw():
                raise
            cancelled = error
        except BaseException:
            break
    if cancelled is None:
        return future.result()
    if future.exception() is None:
        return future.result()
    raise cancelled
