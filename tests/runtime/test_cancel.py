"""Cancellation: of waiting jobs at once, of running ones cooperatively (FEATURES 8.4)."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from headrace import App, JobContext, State
from headrace.testing import run_until_idle, running
from tests.support import eventually, story, within


async def test_running_async_handler_is_cancelled_in_well_under_a_second(app: App) -> None:
    entered, seen = asyncio.Event(), []

    @app.task
    async def work(ctx: JobContext) -> None:
        entered.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append((ctx.cancelled, ctx.cancel_reason))
            raise

    async with running(app):
        ref = await work.enqueue()
        await within(entered.wait())
        asked = time.monotonic()
        assert await ref.cancel("not needed") is True
        job = await ref.wait(10)
        assert time.monotonic() - asked < 1
    assert job.state is State.CANCELLED
    assert seen == [(True, "not needed")]
    assert [str(event) for event in await story(app, ref.id)] == [
        "created",
        "started",
        "cancelling",
        "cancelled",
    ]


async def test_running_sync_handler_sees_it_in_its_context(app: App) -> None:
    entered = threading.Event()

    @app.task
    def work(ctx: JobContext) -> None:
        entered.set()
        deadline = time.monotonic() + 20
        while not ctx.cancelled and time.monotonic() < deadline:
            time.sleep(0.001)
        raise RuntimeError("stopped half-way")

    async with running(app):
        ref = await work.enqueue()
        await eventually(entered.is_set)
        await ref.cancel("enough")
        job = await ref.wait(10)
    assert job.state is State.CANCELLED
    assert job.error is None


async def test_handler_that_finishes_all_the_same_has_completed(app: App) -> None:
    entered, leave = threading.Event(), threading.Event()

    @app.task
    def work() -> str:
        entered.set()
        leave.wait(20)
        return "finished"

    async with running(app):
        ref = await work.enqueue()
        await eventually(entered.is_set)
        await ref.cancel()
        leave.set()
        assert await ref.result(10) == "finished"


async def test_handler_that_ignores_its_cancellation_keeps_its_slots(app: App) -> None:
    entered, leave, order = asyncio.Event(), asyncio.Event(), []

    @app.task(key="k")
    async def stubborn(name: str) -> None:
        order.append(f"{name} in")
        entered.set()
        while not leave.is_set():
            try:
                await leave.wait()
            except asyncio.CancelledError:
                order.append(f"{name} ignores")
        order.append(f"{name} out")

    async with running(app) as worker:
        first, second = await stubborn.enqueue("a"), await stubborn.enqueue("b")
        await within(entered.wait())
        await first.cancel()
        await eventually(lambda: "a ignores" in order)
        await worker.renew_leases()
        assert (await first.get()).state is State.ACTIVE
        assert (await second.get()).state is State.PENDING
        leave.set()
        await first.wait(10)
        await second.wait(10)
    assert order == ["a in", "a ignores", "a out", "b in", "b out"]


async def test_cancel_comes_before_a_retry(app: App) -> None:
    """A handler that fails while a cancel is asked for is not tried again."""
    entered, leave = threading.Event(), threading.Event()

    @app.task(retry=0)
    def work() -> None:
        entered.set()
        leave.wait(20)
        raise ValueError

    async with running(app):
        ref = await work.enqueue()
        await eventually(entered.is_set)
        await ref.cancel("stop")
        leave.set()
        assert (await ref.wait(10)).state is State.CANCELLED


async def test_waiting_jobs_of_every_kind_never_start(timed: App) -> None:
    ran: list[int] = []
    task = timed.task(type="t")(lambda: ran.append(1))

    @timed.task(retry=100)
    async def fails() -> None:
        raise ValueError

    parent = await task.options(delay=1000).enqueue()
    refs = [
        await task.enqueue(),
        await task.options(delay=60).enqueue(),
        await task.options(depends_on=[parent]).enqueue(),
        await task.options(key="k").enqueue(),
    ]
    retrying = await fails.enqueue()
    await timed.queue("default").pause()
    for ref in refs:
        assert await ref.cancel() is True
    await timed.queue("default").resume()
    await run_until_idle(timed)
    assert await retrying.cancel() is True
    assert {(await ref.get()).state for ref in (*refs, retrying)} == {State.CANCELLED}
    assert ran == []


async def test_cancelled_id_is_not_lost_when_it_comes_back(timed: App) -> None:
    task = timed.task(type="t")(lambda: "ran")
    ref = await task.options(id="one").enqueue()
    await ref.cancel()
    await ref.retry()
    await run_until_idle(timed)
    assert await ref.result() == "ran"


async def test_cancel_between_claim_and_start_reaches_the_handler(app: App) -> None:
    """The bell may ring before the worker knows that the job is its own."""
    engine = await app.engine()
    claim, claimed, go = engine.claim, asyncio.Event(), asyncio.Event()

    async def slow_claim(request, changes=()):
        answer = await claim(request, changes)
        if answer.jobs:
            claimed.set()
            await go.wait()
        return answer

    engine.claim = slow_claim  # pyright: ignore

    @app.task
    async def work() -> None:
        await asyncio.Event().wait()

    async with running(app):
        try:
            ref = await work.enqueue()
            await within(claimed.wait())
            (presence,) = await eventually(app.workers)
            await eventually(lambda: app.clock.now() > presence.beat_at)
            await ref.cancel("quick")

            async def rung() -> bool:
                """The keeper beats again when its bell rings; here it finds nothing to cancel."""
                return (await app.workers())[0].beat_at > presence.beat_at

            await eventually(rung)
        finally:
            go.set()  # or the worker would never stop
        assert (await ref.wait(5)).state is State.CANCELLED


@pytest.mark.parametrize("sync", [False, True])
async def test_cancelling_many_at_once_stops_them_all(app: App, sync: bool) -> None:
    if sync:

        @app.task(type="t")
        def work(ctx: JobContext) -> None:
            ctx.wait_cancelled(20)
            raise RuntimeError
    else:

        @app.task(type="t")
        async def work(ctx: JobContext) -> None:
            await asyncio.Event().wait()

    refs = [await work.enqueue() for _ in range(20)]
    async with running(app, concurrency=20):
        await eventually(lambda: _count(app, State.ACTIVE, 20))
        assert all(await asyncio.gather(*(ref.cancel() for ref in refs)))
        for ref in refs:
            assert (await ref.wait(10)).state is State.CANCELLED


async def _count(app: App, state: State, number: int) -> bool:
    return sum(one.jobs for one in await app.count() if one.state is state) == number
