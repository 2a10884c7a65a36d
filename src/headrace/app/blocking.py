"""The blocking facade: for scripts, Django views and Flask, which have no event loop.

One background thread runs the loop for all of them.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

from headrace.app.jobref import JobRef, Snapshot
from headrace.core.errors import HeadraceError
from headrace.core.model import Counted, Job
from headrace.engine.protocol import Details

if TYPE_CHECKING:
    from headrace.app.app import App
    from headrace.app.queues import QueueInfo
    from headrace.app.task import Prepared, Submission, Task

P = ParamSpec("P")
R = TypeVar("R", covariant=True)
T = TypeVar("T")


class _Portal:
    """An event loop in a daemon thread; a forked child gets its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid = 0

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        if _inside_a_loop():
            work.close()
            raise HeadraceError("the blocking API would stop this event loop; use `await` here")
        return asyncio.run_coroutine_threadsafe(work, self.loop()).result()

    def loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None or self._pid != os.getpid():
                self._loop, self._pid = asyncio.new_event_loop(), os.getpid()
                threading.Thread(
                    target=self._loop.run_forever, name="headrace-blocking", daemon=True
                ).start()
            return self._loop


def _inside_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


_portal = _Portal()


async def _await(make: Callable[[], Awaitable[T]]) -> T:
    return await make()


def run(make: Callable[[], Awaitable[T]]) -> T:
    """Runs a coroutine in the background loop and waits for it."""
    return _portal.run(_await(make))


class BlockingRef(Generic[R]):
    """A JobRef for code without an event loop."""

    def __init__(self, ref: JobRef[R]) -> None:
        self.ref, self.id = ref, ref.id

    def __repr__(self) -> str:
        return f"BlockingRef({self.id!r})"

    def get(self) -> Job:
        return run(self.ref.get)

    def details(self) -> Details:
        return run(self.ref.details)

    def wait(self, timeout: float | None = None) -> Job:
        return run(lambda: self.ref.wait(timeout))

    def result(self, timeout: float | None = None) -> R:
        return run(lambda: self.ref.result(timeout))

    def cancel(self, reason: str = "cancelled by request") -> bool:
        return run(lambda: self.ref.cancel(reason))

    def retry(self) -> Job:
        return run(self.ref.retry)

    def delete(self) -> None:
        return run(self.ref.delete)

    def why(self) -> list[str]:
        return run(self.ref.why)

    def watch(self) -> Iterator[Snapshot]:
        """How the job stands, then each change, until it has ended."""
        changes = self.ref.watch()
        try:
            while True:
                try:
                    yield run(lambda: anext(changes))
                except StopAsyncIteration:
                    return
        finally:
            close = getattr(changes, "aclose", None)
            if close is not None:
                run(close)


class BlockingTask(Generic[P, R]):
    """`task.blocking`."""

    def __init__(self, app: App, task: Task[P, R]) -> None:
        self._app, self._task = app, task

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> BlockingRef[R]:
        submission = self.submit(*args, **kwargs)
        if submission.ref is None:
            assert submission.error is not None
            raise submission.error
        return BlockingRef(submission.ref)

    def submit(self, *args: P.args, **kwargs: P.kwargs) -> Submission[R]:
        if self._app.bound_here():
            return self._app.submit_bound(self._task.prepare(*args, **kwargs))
        return run(lambda: self._task.submit(*args, **kwargs))


class BlockingApp:
    """`app.blocking`."""

    def __init__(self, app: App) -> None:
        self._app = app

    def open(self) -> None:
        run(self._app.open)

    def close(self) -> None:
        run(self._app.close)

    def __enter__(self) -> BlockingApp:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def job(self, job_id: str) -> BlockingRef[Any]:
        return BlockingRef(self._app.job(job_id))

    def enqueue_many(self, jobs: Iterable[Prepared[Any]]) -> list[Submission[Any]]:
        return run(lambda: self._app.enqueue_many(jobs))

    def enqueue_group(self, jobs: Iterable[Prepared[Any]]) -> list[BlockingRef[Any]]:
        return [BlockingRef(ref) for ref in run(lambda: self._app.enqueue_group(jobs))]

    def find(self, limit: int | None = 100, **wanted: Any) -> list[Job]:
        async def collect() -> list[Job]:
            return [job async for job in self._app.find(limit, **wanted)]

        return run(collect)

    def count(self) -> list[Counted]:
        return run(self._app.count)

    def queues(self) -> list[QueueInfo]:
        return run(self._app.queues)

    def pause(self, queue: str) -> None:
        run(self._app.queue(queue).pause)

    def resume(self, queue: str) -> None:
        run(self._app.queue(queue).resume)

    def set_queue(self, queue: str, **changes: Any) -> object:
        return run(lambda: self._app.queue(queue).set(**changes))
