"""The blocking facade: for scripts, Django views and Flask, which have no event loop.

One background thread runs the loop for all of them.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, Unpack

from msgspec import Struct

from headrace.app import bulk
from headrace.app.detached import DetachedJob
from headrace.app.jobref import JobRef, Snapshot
from headrace.app.looking import EventFilter
from headrace.app.options import Seconds
from headrace.app.queues import Queue, QueueInfo
from headrace.app.task import BATCH, Prepared, Submission, Task
from headrace.core import keys
from headrace.core.admission import Outcome
from headrace.core.errors import EnqueueRefused, HeadraceError, PartlyEnqueued
from headrace.core.model import Counted, Job, KeyStatus
from headrace.core.queue import Kind, QueueSettings
from headrace.engine.protocol import Details, Entry
from headrace.runtime.presence import Presence

if TYPE_CHECKING:
    from headrace.app.app import App

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
        running = asyncio.run_coroutine_threadsafe(work, self.loop())
        try:
            return running.result()
        except BaseException:  # Ctrl-C: nobody waits for it any more
            running.cancel()
            raise

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


def iterate(source: AsyncIterator[T]) -> Iterator[T]:
    """The same things, one after the other; it may be left early."""
    try:
        while True:
            try:
                yield run(lambda: anext(source))
            except StopAsyncIteration:
                return
    finally:
        close = getattr(source, "aclose", None)
        if close is not None:
            run(close)


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

    def wait(self, timeout: Seconds | None = None) -> Job:
        return run(lambda: self.ref.wait(timeout))

    def result(self, timeout: Seconds | None = None) -> R:
        return run(lambda: self.ref.result(timeout))

    def cancel(self, reason: str = "cancelled by request") -> bool:
        return run(lambda: self.ref.cancel(reason))

    def retry(self) -> Job:
        return run(self.ref.retry)

    def replay(self) -> Job:
        return run(self.ref.replay)

    def dismiss(self, reason: str | None = None) -> Job:
        return run(lambda: self.ref.dismiss(reason))

    def delete(self) -> None:
        return run(self.ref.delete)

    def set_priority(self, priority: int) -> Job:
        return run(lambda: self.ref.set_priority(priority))

    def run_now(self) -> Job:
        return run(self.ref.run_now)

    def free_unique(self) -> Job:
        return run(self.ref.free_unique)

    def why(self) -> list[str]:
        return run(self.ref.why)

    def watch(self) -> Iterator[Snapshot]:
        """How the job stands, then each change, until it has ended."""
        return iterate(self.ref.watch())


class BlockingSubmission(Struct, Generic[R], frozen=True):
    """A Submission for code without an event loop."""

    outcome: Outcome
    ref: BlockingRef[R] | None
    """The new job, where there is one."""
    reason: str | None = None
    existing_id: str | None = None
    replaced: tuple[str, ...] = ()
    error: EnqueueRefused | None = None

    @property
    def accepted(self) -> bool:
        return self.ref is not None


def _blocking(answer: Submission[R]) -> BlockingSubmission[R]:
    return BlockingSubmission(
        answer.outcome,
        None if answer.ref is None else BlockingRef(answer.ref),
        answer.reason,
        answer.existing_id,
        answer.replaced,
        answer.error,
    )


class BlockingTask(Generic[P, R]):
    """`task.blocking`."""

    def __init__(self, app: App, task: Task[P, R]) -> None:
        self._app, self._task = app, task

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> BlockingRef[R]:
        submission = self.submit(*args, **kwargs)
        if submission.ref is None:
            assert submission.error is not None
            raise submission.error
        return submission.ref

    def submit(self, *args: P.args, **kwargs: P.kwargs) -> BlockingSubmission[R]:
        if self._app.bound_here():
            answer = self._app.submit_bound(self._task.prepare(*args, **kwargs))
        else:
            answer = run(lambda: self._task.submit(*args, **kwargs))
        return _blocking(answer)


class BlockingQueue:
    """A Queue for code without an event loop."""

    def __init__(self, queue: Queue) -> None:
        self._queue, self.name = queue, queue.name

    def settings(self) -> QueueSettings:
        return run(self._queue.settings)

    def info(self) -> QueueInfo:
        return run(self._queue.info)

    def set(self, *, force: bool = False, **changes: Any) -> Kind:
        return run(lambda: self._queue.set(force=force, **changes))

    def pause(self) -> None:
        run(self._queue.pause)

    def resume(self) -> None:
        run(self._queue.resume)

    def drain(self) -> None:
        run(self._queue.drain)

    def purge(
        self, *, waiting: bool = True, ended: bool = False, progress: bulk.Progress | None = None
    ) -> int:
        return run(lambda: self._queue.purge(waiting=waiting, ended=ended, progress=progress))

    def delete(self, *, force: bool = False) -> int:
        return run(lambda: self._queue.delete(force=force))


class BlockingDetached:
    """A DetachedJob for code without an event loop."""

    def __init__(self, detached: DetachedJob) -> None:
        self._detached, self.id = detached, detached.id

    def complete(self, result: object = None) -> Job:
        return run(lambda: self._detached.complete(result))

    def fail(self, message: str, *, type: str = "Failed", retry: bool = True) -> Job:
        return run(lambda: self._detached.fail(message, type=type, retry=retry))

    def move_to(self, queue: str, type: str | None = None, *, delay: float | timedelta = 0) -> Job:
        return run(lambda: self._detached.move_to(queue, type, delay=delay))

    def renew(self, timeout: float | timedelta) -> Job:
        return run(lambda: self._detached.renew(timeout))


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

    def detached(self, token: str) -> BlockingDetached:
        return BlockingDetached(self._app.detached(token))

    def queue(self, name: str) -> BlockingQueue:
        return BlockingQueue(self._app.queue(name))

    def queues(self) -> list[QueueInfo]:
        return run(self._app.queues)

    def enqueue_many(
        self, jobs: Iterable[Prepared[Any]], *, batch: int = BATCH
    ) -> list[BlockingSubmission[Any]]:
        try:
            answers = run(lambda: self._app.enqueue_many(jobs, batch=batch))
        except PartlyEnqueued as error:
            error.confirmed = tuple(_blocking(answer) for answer in error.confirmed)
            raise
        return [_blocking(answer) for answer in answers]

    def enqueue_group(self, jobs: Iterable[Prepared[Any]]) -> list[BlockingRef[Any]]:
        return [BlockingRef(ref) for ref in run(lambda: self._app.enqueue_group(jobs))]

    def find(self, limit: int | None = 100, **wanted: Any) -> list[Job]:
        async def collect() -> list[Job]:
            return [job async for job in self._app.find(limit, **wanted)]

        return run(collect)

    def replay(self, **wanted: Any) -> int:
        return run(lambda: self._app.replay(**wanted))

    def dismiss(self, reason: str | None = None, **wanted: Any) -> int:
        return run(lambda: self._app.dismiss(reason, **wanted))

    def count(self) -> list[Counted]:
        return run(self._app.count)

    def events(
        self, after: int = 0, follow: bool = False, **wanted: Unpack[EventFilter]
    ) -> Iterator[Entry]:
        """The journal in order, after a sequence; with `follow`, it goes on as things happen."""
        return iterate(self._app.events(after, follow, **wanted))

    def key(self, *segments: keys.Scalar, hash: str | None = None) -> KeyStatus | None:
        return run(lambda: self._app.key(*segments, hash=hash))

    def release_key(
        self, *segments: keys.Scalar, hash: str | None = None, reason: str = "released"
    ) -> int:
        return run(lambda: self._app.release_key(*segments, hash=hash, reason=reason))

    def workers(self) -> list[Presence]:
        return run(self._app.workers)

    def why(self, job_id: str) -> list[str]:
        return run(lambda: self._app.why(job_id))
