"""A lane: a thread that is asked for things by any event loop and answers in batches."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Generic, TypeVar

from headrace.core.errors import EngineUnavailable
from headrace.engine.sqlite.wanted import Wanted

T = TypeVar("T")
Subject = TypeVar("Subject")

_MOST = 1000
"""At most so many asks are served in one go."""


class Ask(Generic[Subject]):
    """One thing to do on `Subject`, and the future that waits for the answer."""

    __slots__ = ("future", "loop", "wanted", "work")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        work: Callable[[Subject], Any],
        wanted: Wanted | None,
    ) -> None:
        self.loop, self.work, self.wanted = loop, work, wanted
        self.future: asyncio.Future[Any] = loop.create_future()


class Answers:
    """Answers on their way: each event loop is woken once for all of its own."""

    def __init__(self) -> None:
        self._by_loop: defaultdict[
            asyncio.AbstractEventLoop,
            list[tuple[asyncio.Future[Any], object, BaseException | None]],
        ] = defaultdict(list)

    def add(self, ask: Ask[Any], answer: object, error: BaseException | None = None) -> None:
        self._by_loop[ask.loop].append((ask.future, answer, error))

    def fail(self, asks: Sequence[Ask[Any]], error: BaseException) -> None:
        """The same error for all."""
        for ask in asks:
            self.add(ask, None, error)

    def send(self) -> None:
        for loop, answers in self._by_loop.items():
            with suppress(RuntimeError):  # the event loop is closed: nobody waits any more
                loop.call_soon_threadsafe(_settle, answers)


def _settle(answers: list[tuple[asyncio.Future[Any], object, BaseException | None]]) -> None:
    for future, answer, error in answers:
        if future.done():
            continue
        if error is None:
            future.set_result(answer)
        else:
            future.set_exception(error)


class Lane(Generic[Subject]):
    """Runs `serve` in its own thread with whatever was asked since it last did.

    There is no delay to gather more: a batch is what piled up while the last one was served.
    """

    def __init__(self, name: str, serve: Callable[[list[Ask[Subject]]], None]) -> None:
        self._name, self._serve = name, serve
        self._queue: queue.SimpleQueue[Ask[Subject] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._open = True
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    async def ask(self, work: Callable[[Subject], T], wanted: Wanted | None = None) -> T:
        """Has `work` done in the lane."""
        ask = Ask(asyncio.get_running_loop(), work, wanted)
        with self._lock:
            if not self._open:
                raise EngineUnavailable("the engine is closed; open it again")
            self._queue.put(ask)
        return await ask.future

    def stop(self) -> None:
        """Serves what was asked, then ends the thread. Blocks until it has."""
        with self._lock:
            if self._open:
                self._open = False
                self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        going = True
        while going:
            asks: list[Ask[Subject]] = []
            ask = self._queue.get()
            while True:
                if ask is None:
                    going = False
                    break
                if not ask.future.cancelled():
                    asks.append(ask)
                if len(asks) == _MOST:
                    break
                try:
                    ask = self._queue.get_nowait()
                except queue.Empty:
                    break
            if asks:
                self._serve(asks)
