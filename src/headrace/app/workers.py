"""Running workers: signals, upkeep, and an orderly end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

from headrace.app.options import Seconds
from headrace.core.errors import InvalidValue
from headrace.core.model import Job
from headrace.core.queue import QueueSettings
from headrace.core.values import milliseconds
from headrace.runtime.worker import Worker, WorkerOptions
from headrace.upkeep.rounds import Rounds

if TYPE_CHECKING:
    from headrace.app.app import App

log = logging.getLogger("headrace.worker")

SIGNALS = (signal.SIGINT, signal.SIGTERM)

LEAVE_WITHIN = 3.0
"""Seconds after the second signal by which the process is gone, whatever a handler does."""

ECHO = 0.25
"""Seconds within which a signal is the echo of the one before: `timeout` and others send theirs
to the process and to its group, which would count as two."""

OnStart = Callable[[Worker], None]


def rounds(app: App, worker: Worker, now: Callable[[], int] | None = None) -> Rounds:
    """The upkeep that a worker does beside its jobs, by the app's clock unless told another."""

    def settings_of(job: Job) -> QueueSettings:
        return worker.settings.of(job.queue)

    return Rounds(worker.engine, app.service, now or app.clock.now, settings_of)


@contextlib.asynccontextmanager
async def working(app: App, options: WorkerOptions) -> AsyncGenerator[Worker]:
    """A worker with its upkeep, beside whatever else the event loop does."""
    await app.open()
    worker = app.worker(options)
    await worker.start()
    upkeep = asyncio.create_task(rounds(app, worker).run(), name="headrace-upkeep")
    try:
        yield worker
    finally:
        upkeep.cancel()
        await worker.stop()
        await asyncio.gather(upkeep, return_exceptions=True)


async def work(app: App, options: WorkerOptions, on_start: OnStart | None = None) -> None:
    """Opens the app and works until cancelled or told to stop."""
    async with working(app, options) as worker:
        if on_start is not None:
            on_start(worker)
        await worker.wait()


def run_worker(
    app: App, options: WorkerOptions, on_start: OnStart | None = None
) -> signal.Signals | None:
    """Works until SIGINT or SIGTERM; a second one leaves at once, and is returned."""
    try:
        import uvloop  # pyright: ignore[reportMissingImports]

        factory: Callable[[], asyncio.AbstractEventLoop] | None = uvloop.new_event_loop
    except ImportError:
        factory = None
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(_until_told(app, options, on_start))


async def _until_told(
    app: App, options: WorkerOptions, on_start: OnStart | None
) -> signal.Signals | None:
    told = _Told(asyncio.get_running_loop(), asyncio.current_task())

    def started(worker: Worker) -> None:
        told.worker = worker
        if on_start is not None:
            on_start(worker)

    with told.listening():
        try:
            await work(app, options, started)
        except asyncio.CancelledError:
            if not told.signals:
                raise
        finally:
            await app.close()
    return told.signals[1] if len(told.signals) > 1 else None


class _Told:
    """The signals that came. The handlers are Python's own and not the loop's: a job that blocks
    the loop must not keep the second signal from ending the process."""

    def __init__(self, loop: asyncio.AbstractEventLoop, task: asyncio.Task[object] | None) -> None:
        self._loop, self._task = loop, task
        self.signals: list[signal.Signals] = []
        self._last = -ECHO
        self.worker: Worker | None = None

    @contextlib.contextmanager
    def listening(self) -> Generator[None, None, None]:
        # One that is ignored was meant to be, by nohup or a supervisor.
        heard = [n for n in SIGNALS if signal.getsignal(n) is not signal.SIG_IGN]
        before = {number: signal.signal(number, self._hear) for number in heard}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _hear(self, number: int, _: object) -> None:
        now = time.monotonic()
        if now - self._last < ECHO:
            return
        self._last = now
        self.signals.append(signal.Signals(number))
        if len(self.signals) == 2:
            timer = threading.Timer(LEAVE_WITHIN, os._exit, (128 + number,))
            timer.daemon = True
            timer.start()
        elif len(self.signals) > 2:
            os._exit(128 + number)
        self._loop.call_soon_threadsafe(self._act, len(self.signals), self.signals[-1].name)

    def _act(self, count: int, name: str) -> None:
        if count == 1:
            log.info("%s: finishing running jobs; once more to leave at once", name)
        else:
            log.warning("%s again: leaving now", name)
        if self.worker is not None:
            self.worker.finish()
            if count > 1:
                self.worker.leave_now()
        elif self._task is not None:
            self._task.cancel()  # still opening: there is nothing to finish


class WorkerChoices(TypedDict, total=False):
    """What a worker may be told; see WorkerOptions."""

    queues: str | Sequence[str] | dict[str, int]
    strict: bool
    concurrency: int
    threads: int
    children: int
    lease: Seconds
    grace: float


def worker_options(chosen: WorkerChoices) -> WorkerOptions:
    """Checked options of a worker."""
    fields: dict[str, Any] = dict(chosen)
    unknown = sorted(fields.keys() - set(WorkerOptions.__struct_fields__))
    if unknown:
        raise InvalidValue(unknown[0], "is not an option of a worker")
    if "lease" in fields:
        fields["lease"] = milliseconds("lease", fields["lease"])
        if fields["lease"] < 1000:
            raise InvalidValue("lease", "is below one second; a busy machine would lose it")
    return WorkerOptions(**fields)
