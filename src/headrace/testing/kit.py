"""Workers for tests: one that runs beside the test, and one that runs until nothing is due."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TypedDict, Unpack

from msgspec import Struct

from headrace.app.app import App
from headrace.app.workers import WorkerChoices, rounds, worker_options
from headrace.core.errors import InvalidValue
from headrace.core.event import Event
from headrace.core.states import CLAIMABLE, WAITING, EventType, State
from headrace.runtime.shares import QueueSpec
from headrace.runtime.worker import Worker, WorkerOptions
from headrace.testing.clock import ManualClock


class Summary(Struct, frozen=True):
    """What happened while the worker ran, from the journal."""

    events: tuple[Event, ...]

    def count(self, event: EventType | str) -> int:
        """How often it happened: `summary.count("snoozed")`."""
        return sum(one.event == event for one in self.events)

    @property
    def tries(self) -> int:
        """How many times a handler was called for."""
        return self.count(EventType.STARTED)

    @property
    def completed(self) -> int:
        return self.count(EventType.COMPLETED)

    @property
    def retries(self) -> int:
        """How many tries failed and will be followed by another."""
        return self.count(EventType.RETRY)

    @property
    def failed(self) -> int:
        return self.count(EventType.FAILED)

    @property
    def dead(self) -> int:
        return self.count(EventType.DEAD)

    @property
    def cancelled(self) -> int:
        return self.count(EventType.CANCELLED)

    @property
    def expired(self) -> int:
        return self.count(EventType.EXPIRED)

    def __str__(self) -> str:
        counts = Counter(str(one.event) for one in self.events)
        return ", ".join(f"{number} {name}" for name, number in sorted(counts.items())) or "nothing"


@asynccontextmanager
async def running(app: App, **options: Unpack[WorkerChoices]) -> AsyncGenerator[Worker]:
    """A worker beside the test, with its upkeep; it stops in order at the end.

    With a ManualClock, upkeep follows the clock's moves: leases of what runs here are renewed
    first, so that a big step is not taken for a worker that died.
    """
    await app.open()
    worker = app.worker(worker_options(options))
    await worker.start()
    chores = _on_moves(app, worker) if _by_hand(app) else rounds(app, worker).run()
    upkeep = asyncio.create_task(chores, name="headrace-test-upkeep")
    try:
        yield worker
    finally:
        upkeep.cancel()
        await asyncio.gather(upkeep, return_exceptions=True)
        await worker.stop()


def _by_hand(app: App) -> bool:
    return isinstance(app.clock, ManualClock)


async def _on_moves(app: App, worker: Worker) -> None:
    loop, moved = asyncio.get_running_loop(), asyncio.Event()
    forget = app.clock.on_move(lambda: void(loop.call_soon_threadsafe(moved.set)))
    try:
        while True:
            await moved.wait()
            moved.clear()
            now = app.clock.now()  # it may be moved again before the leases are looked at
            await worker.renew_leases()
            await rounds(app, worker, lambda now=now: now).once()
    finally:
        forget()


def void(_: object) -> None:
    """Drops a value where a callback must return nothing."""


class Idling(TypedDict, total=False):
    """How `run_until_idle` runs."""

    queues: QueueSpec
    """All queues that have jobs unless set."""
    concurrency: int
    drain: bool
    """Move a ManualClock to each next due time until nothing is left."""
    timeout: float
    """Real seconds after which it gives up; 30 unless set."""
    moves: int
    """How often `drain` may move the clock; 1,000 unless set."""


async def run_until_idle(app: App, **how: Unpack[Idling]) -> Summary:
    """Runs a worker here until nothing is due. What is due later stays, unless `drain` is set.

    Rescue and expiry are done too, as by any worker.
    """
    if how.get("drain") and not _by_hand(app):
        raise InvalidValue("drain", "the clock must be a ManualClock, or draining would wait")
    engine = await app.engine()
    seen = await _journal_end(app)
    worker = app.worker(
        WorkerOptions(
            queues=how.get("queues") or await _queues(app),
            concurrency=how.get("concurrency", 100),
            grace=0,
        )
    )
    await worker.start()
    try:
        async with asyncio.timeout(how.get("timeout", 30.0)):
            await _work_off(app, worker, how)
    except TimeoutError:
        active = [job async for job in app.find(states=State.ACTIVE, worker=worker.id)]
        names = ", ".join(f"{job.type} ({job.id})" for job in active) or "nothing"
        raise TimeoutError(
            f"not idle after {how.get('timeout', 30.0):g} s; still running: {names}"
        ) from None
    finally:
        await worker.stop()
    events: list[Event] = []
    while entries := await engine.journal(seen):
        seen = entries[-1].event.seq
        events += [entry.event for entry in entries if entry.event.service == app.service]
    return Summary(tuple(events))


async def _work_off(app: App, worker: Worker, how: Idling) -> None:
    left = how.get("moves", 1000)
    while True:
        await worker.until_idle()
        if await rounds(app, worker).once():
            worker.look()
            continue
        if "queues" not in how and (queues := await _queues(app)) != worker.queues:
            worker.set_queues(queues)
            continue
        due = await _next_moment(app, worker) if how.get("drain") else None
        if due is None:
            return
        if not left:
            moves = how.get("moves", 1000)
            raise AssertionError(f"not drained after {moves:,} moves of the clock; next is {due}")
        left -= 1
        assert isinstance(app.clock, ManualClock)
        app.clock.advance((due - app.clock.now()) / 1000)
        worker.look()


async def _next_moment(app: App, worker: Worker) -> int | None:
    """When something is due next: a job, a deadline, or a detached job's time limit."""
    now, moments = app.clock.now(), list[int | None]()
    async for job in app.find(limit=None, states=WAITING | {State.ACTIVE}):
        if job.state in CLAIMABLE:
            moments.append(worker.next_due)
        if job.state in WAITING:
            moments.append(job.expires_at)
        elif job.detached:
            moments.append(job.lease_until)
    return min((moment for moment in moments if moment and moment > now), default=None)


async def _queues(app: App) -> list[str]:
    """The queues that have jobs, and the default one."""
    return sorted({"default"} | {counted.queue for counted in await app.count()})


async def _journal_end(app: App) -> int:
    engine, seen = await app.engine(), 0
    while entries := await engine.journal(seen):
        seen = entries[-1].event.seq
    return seen
