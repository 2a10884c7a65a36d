"""Worker presence: what workers say of themselves (FEATURES 9.4)."""

from __future__ import annotations

import asyncio
import os
from importlib.metadata import version

from headrace import App
from headrace.app.workers import rounds
from headrace.runtime.presence import gone
from headrace.runtime.worker import WorkerOptions
from headrace.testing import ManualClock, running
from tests.support import eventually, within


async def test_worker_says_what_it_is_and_does(app: App) -> None:
    entered, leave = asyncio.Event(), asyncio.Event()

    @app.task
    async def hold() -> None:
        entered.set()
        await leave.wait()

    ref = await hold.options(queue="b").enqueue()
    async with running(app, queues=["a", "b"], concurrency=7) as worker:
        await within(entered.wait())
        await worker.renew_leases()
        (seen,) = await app.workers()
        assert (seen.id, seen.service) == (worker.id, "default")
        assert (seen.queues, seen.concurrency) == (("a", "b"), 7)
        assert (seen.pid, seen.version) == (os.getpid(), version("headrace"))
        assert seen.host
        assert seen.jobs == (ref.id,)
        assert seen.stopping is False
        assert app.clock.now() - seen.beat_at < 5000
        worker.set_queues("c")
        await worker.renew_leases()
        assert (await app.workers())[0].queues == ("c",)
        leave.set()
    assert await app.workers() == [], "it takes its leave"


async def test_worker_that_is_not_heard_of_fades(timed: App, clock: ManualClock) -> None:
    worker = timed.worker(WorkerOptions(lease=10_000))
    await worker.start()
    await eventually(timed.workers)
    keeper = worker._keeper  # pyright: ignore[reportPrivateUsage]
    await asyncio.to_thread(keeper.stop)  # as if it had died
    clock.advance(29)
    assert [seen.id for seen in await timed.workers()] == [worker.id]
    clock.advance(1)
    assert await timed.workers() == []
    await worker.stop()


async def test_job_stays_with_its_owner_though_nothing_is_heard_of_the_worker(
    timed: App, clock: ManualClock
) -> None:
    """Presence decides nothing: the lease does."""
    entered, leave = asyncio.Event(), asyncio.Event()

    @timed.task
    async def hold() -> str:
        entered.set()
        await leave.wait()
        return "kept"

    async with running(timed) as worker:
        ref = await hold.enqueue()
        await within(entered.wait())
        engine = await timed.engine()
        await eventually(timed.workers)
        await engine.put([gone(worker.id)], clock.now())
        assert await timed.workers() == []
        assert await rounds(timed, worker).once() == 0
        leave.set()
        assert await ref.result(10) == "kept"
    assert (await ref.get()).tries == 1


async def test_workers_of_all_services_are_seen(timed: App) -> None:
    other = App(await timed.engine(), service="other", clock=timed.clock)
    async with running(timed), running(other):
        await eventually(lambda: _services(timed, ["default", "other"]))


async def _services(app: App, expected: list[str]) -> bool:
    return sorted(seen.service for seen in await app.workers()) == expected
