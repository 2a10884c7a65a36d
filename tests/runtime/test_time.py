"""Time: delay, deadline, ttl and timeout (FEATURES 4.1 to 4.4)."""

from __future__ import annotations

import asyncio
import threading
import time
from datetime import timedelta

import pytest

from headrace import App, JobContext, State, current_job
from headrace.runtime.exchange import LOOK_AGAIN
from headrace.testing import ManualClock, run_until_idle, running
from tests.support import eventually, within


class TestDelay:
    async def test_delayed_job_does_not_run_before_its_time(
        self, timed: App, clock: ManualClock
    ) -> None:
        ran: list[int] = []

        @timed.task
        async def work(n: int) -> None:
            ran.append(n)

        await work.options(delay=timedelta(minutes=1)).enqueue(1)
        await work.options(run_at=clock.time + timedelta(seconds=30)).enqueue(2)
        await work.options(run_at=clock.time - timedelta(days=1)).enqueue(3)
        await work.options(delay=0).enqueue(4)
        await run_until_idle(timed)
        assert ran == [3, 4]
        clock.advance(29.999)
        await run_until_idle(timed)
        assert ran == [3, 4]
        clock.advance(0.001)
        await run_until_idle(timed)
        assert ran == [3, 4, 2]
        clock.advance(30)
        await run_until_idle(timed)
        assert ran == [3, 4, 2, 1]

    async def test_idle_worker_starts_a_delayed_job_before_its_next_round(self, app: App) -> None:
        lateness: list[float] = []

        @app.task
        async def work() -> None:
            job = current_job().job
            lateness.append(time.time() * 1000 - job.run_at)

        async with running(app) as worker:
            await worker.until_idle()
            refs = [await work.options(delay=0.1 + n / 50).enqueue() for n in range(5)]
            for ref in refs:
                await ref.wait(10)
        assert min(lateness) >= 0, "never before"
        assert sorted(lateness)[2] < LOOK_AGAIN * 1000 / 2, lateness

    async def test_short_delay_behind_a_long_one_is_on_time(self, app: App) -> None:
        work = app.task(type="w")(lambda: None)
        async with running(app) as worker:
            await worker.until_idle()
            await work.options(delay=3600).enqueue()
            await worker.until_idle()
            short = await work.options(delay=0.1).enqueue()
            assert (await short.wait(3)).state is State.COMPLETED

    async def test_idle_worker_starts_a_new_job_at_once(self, app: App) -> None:
        work = app.task(type="w")(lambda: None)
        async with running(app) as worker:
            waits: list[float] = []
            for _ in range(5):
                await worker.until_idle()
                ref = await work.enqueue()
                job = await ref.wait(10)
                waits.append((job.started_at or 0) - job.spec.created_at)
        assert sorted(waits)[2] < 100, waits


class TestDeadline:
    async def test_job_not_started_by_its_deadline_expires(
        self, timed: App, clock: ManualClock
    ) -> None:
        work = timed.task(type="w")(lambda: None)
        refs = [
            await work.options(deadline=10).enqueue(),
            await work.options(deadline=clock.time + timedelta(seconds=10), delay=20).enqueue(),
            await work.options(deadline=clock.time - timedelta(seconds=1)).enqueue(),
        ]
        clock.advance(10)
        summary = await run_until_idle(timed)
        assert (summary.expired, summary.tries) == (3, 0)
        assert {(await ref.get()).state for ref in refs} == {State.EXPIRED}

    async def test_blocked_and_paused_jobs_expire_too(self, timed: App, clock: ManualClock) -> None:
        work = timed.task(type="w")(lambda: None)
        parent = await work.options(delay=100).enqueue()
        child = await work.options(depends_on=[parent], deadline=10).enqueue()
        await timed.queue("shut").pause()
        paused = await work.options(queue="shut", deadline=10).enqueue()
        clock.advance(11)
        await run_until_idle(timed)
        assert [(await ref.get()).state for ref in (child, paused)] == [State.EXPIRED] * 2

    @pytest.mark.parametrize("sync", [False, True])
    async def test_job_still_running_at_its_deadline_expires(
        self, timed: App, clock: ManualClock, sync: bool
    ) -> None:
        entered = threading.Event()

        if sync:

            @timed.task
            def long(ctx: JobContext) -> str:
                entered.set()
                ctx.wait_cancelled(20)
                return "late"
        else:

            @timed.task
            async def long() -> str:
                entered.set()
                await asyncio.Event().wait()
                return "late"

        async with running(timed):
            ref = await long.options(deadline=10, timeout=1000).enqueue()
            await eventually(entered.is_set)
            clock.advance(10)
            job = await ref.wait(10)
        assert (job.state, job.tries) == (State.EXPIRED, 1)

    async def test_retry_is_not_started_after_the_deadline(self, timed: App) -> None:
        @timed.task(retry=60, deadline=30)
        async def fails() -> None:
            raise ValueError

        ref = await fails.enqueue()
        summary = await run_until_idle(timed, drain=True)
        assert (summary.tries, summary.expired) == (1, 1)
        assert (await ref.get()).state is State.EXPIRED

    async def test_expired_job_that_is_retried_loses_its_past_deadline(
        self, timed: App, clock: ManualClock
    ) -> None:
        ref = await timed.task(type="w")(lambda: 1).options(deadline=5).enqueue()
        clock.advance(6)
        await run_until_idle(timed)
        assert (await ref.retry()).deadline is None
        await run_until_idle(timed)
        assert await ref.result() == 1

    async def test_detached_job_expires_at_its_deadline(
        self, timed: App, clock: ManualClock
    ) -> None:
        @timed.task(deadline=60)
        async def leaves(ctx: JobContext) -> object:
            return ctx.detach(timeout=3600)

        ref = await leaves.enqueue()
        await run_until_idle(timed)
        assert (await ref.get()).lease_until == clock.now() + 60_000
        clock.advance(60)
        await run_until_idle(timed)
        assert (await ref.get()).state is State.EXPIRED


class TestTtl:
    async def test_job_not_started_within_its_ttl_expires(
        self, timed: App, clock: ManualClock
    ) -> None:
        work = timed.task(type="w", ttl=10)(lambda: None)
        late, early = await work.options(delay=10).enqueue(), await work.options(delay=9).enqueue()
        clock.advance(9)
        assert (await run_until_idle(timed)).completed == 1
        clock.advance(1)
        assert (await run_until_idle(timed)).expired == 1
        assert (await late.get()).state is State.EXPIRED
        assert (await early.get()).state is State.COMPLETED

    async def test_ttl_does_not_limit_the_run_nor_later_tries(
        self, timed: App, clock: ManualClock
    ) -> None:
        @timed.task(ttl=10, retry=100)
        async def flaky(ctx: JobContext) -> None:
            clock.advance(20)
            if ctx.number == 1:
                raise ValueError

        ref = await flaky.enqueue()
        await run_until_idle(timed, drain=True)
        assert (await ref.get()).state is State.COMPLETED

    async def test_queue_s_max_age_is_a_ttl_for_all(self, timed: App, clock: ManualClock) -> None:
        await timed.queue("default").set(max_age=10, force=True)
        ref = await timed.task(type="w")(lambda: None).options(delay=11).enqueue()
        clock.advance(10)
        await run_until_idle(timed)
        assert (await ref.get()).state is State.EXPIRED


class TestTimeout:
    @pytest.mark.parametrize("sync", [False, True])
    async def test_try_over_its_timeout_fails(
        self, timed: App, clock: ManualClock, sync: bool
    ) -> None:
        entered = threading.Event()

        if sync:

            @timed.task(timeout=5, retry=60)
            def long(ctx: JobContext) -> None:
                entered.set()
                if ctx.wait_cancelled(20):
                    raise RuntimeError(ctx.cancel_reason)
        else:

            @timed.task(timeout=5, retry=60)
            async def long() -> None:
                entered.set()
                await asyncio.Event().wait()

        async with running(timed):
            ref = await long.enqueue()
            await eventually(entered.is_set)
            clock.advance(5)
            await eventually(lambda: _is(ref, State.RETRY))
        job = await ref.get()
        assert job.error
        assert (job.tries, job.error.type) == (1, "TimeoutError")
        assert job.error.message == "out of time after 5 s"

    async def test_fractions_of_a_second_hold_by_the_real_clock(self, app: App) -> None:
        @app.task(timeout=0.2, max_tries=1)
        async def long() -> None:
            await asyncio.Event().wait()

        async with running(app):
            job = await (await long.enqueue()).wait(10)
        assert job.state is State.DEAD
        assert job.started_at
        assert 200 <= (job.finished_at or 0) - job.started_at < 1500

    async def test_limit_further_away_is_kept_by_the_real_clock_too(self, app: App) -> None:
        @app.task(timeout=2.1, max_tries=1)
        async def long() -> None:
            await asyncio.Event().wait()

        async with running(app):
            job = await (await long.enqueue()).wait(10)
        assert job.started_at
        assert 2100 <= (job.finished_at or 0) - job.started_at < 3500

    async def test_queue_s_max_runtime_is_the_default(self, timed: App, clock: ManualClock) -> None:
        limits: list[float | None] = []

        @timed.task
        async def work(ctx: JobContext) -> None:
            limits.append(ctx.deadline and (ctx.deadline - clock.time).total_seconds())

        await timed.queue("q").set(max_runtime=50, force=True)
        await work.enqueue()
        await run_until_idle(timed)
        await work.options(queue="q").enqueue()
        await run_until_idle(timed)
        await work.options(queue="q", timeout=70).enqueue()
        await run_until_idle(timed)
        await work.options(timeout=70, deadline=30).enqueue()
        await run_until_idle(timed)
        await work.options(timeout=70, deadline=300).enqueue()
        await run_until_idle(timed)
        assert limits == [3600, 50, 70, 30, 70]

    async def test_handler_that_returns_though_out_of_time_has_completed(
        self, timed: App, clock: ManualClock
    ) -> None:
        entered, leave = threading.Event(), threading.Event()

        @timed.task(timeout=5)
        def stubborn() -> str:
            entered.set()
            leave.wait(20)
            return "after all"

        async with running(timed):
            ref = await stubborn.enqueue()
            await eventually(entered.is_set)
            clock.advance(6)
            leave.set()
            assert await ref.result(10) == "after all"

    async def test_timeout_holds_its_slot_until_the_handler_is_done(
        self, timed: App, clock: ManualClock
    ) -> None:
        entered, leave, order = asyncio.Event(), asyncio.Event(), []

        @timed.task(timeout=5, key="k", max_tries=1)
        async def stubborn(name: str) -> None:
            order.append(f"{name} in")
            entered.set()
            try:
                await leave.wait()
            except asyncio.CancelledError:
                await leave.wait()
                order.append(f"{name} out")
                raise

        async with running(timed, concurrency=1) as worker:
            first = await stubborn.enqueue("a")
            second = await stubborn.enqueue("b")
            await within(entered.wait())
            clock.advance(5)
            for _ in range(20):
                await asyncio.sleep(0)
            assert order == ["a in"]
            assert not worker.idle
            leave.set()
            assert (await first.wait(10)).state is State.DEAD
            assert (await second.wait(10)).state is State.COMPLETED
        assert order == ["a in", "a out", "b in"]


async def _is(ref, state: State) -> bool:
    return (await ref.get()).state is state
