"""The testing kit: the clock, the worker that runs until idle, assertions, direct runs."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from headrace import (
    App,
    InvalidValue,
    JobContext,
    Snooze,
    State,
)
from headrace.core.claims import ClaimRequest, Share
from headrace.testing import (
    ManualClock,
    arguments,
    assert_enqueued,
    assert_not_enqueued,
    jobs,
    run_until_idle,
    running,
)
from tests.support import eventually


class TestClock:
    def test_clock_stands_still_until_it_is_moved(self, clock: ManualClock) -> None:
        before = clock.now()
        assert clock.now() == before
        clock.advance(1.5)
        assert clock.now() == before + 1500
        clock.advance(timedelta(minutes=1))
        assert clock.now() == before + 61_500

    def test_clock_can_be_set_to_any_time(self, clock: ManualClock) -> None:
        clock.set(datetime(2031, 2, 3, tzinfo=UTC))
        assert clock.time == datetime(2031, 2, 3, tzinfo=UTC)
        clock.set(datetime(2020, 1, 1, tzinfo=UTC))
        assert clock.time.year == 2020

    def test_clock_refuses_what_makes_no_sense(self, clock: ManualClock) -> None:
        for seconds in (-1, float("inf"), float("nan")):
            with pytest.raises(ValueError, match="cannot be advanced"):
                clock.advance(seconds)
        with pytest.raises(ValueError, match="no time zone"):
            clock.set(datetime(2030, 1, 1))

    def test_every_clock_starts_at_the_same_time(self) -> None:
        assert ManualClock().now() == ManualClock().now()

    def test_moves_are_told_until_forgotten(self, clock: ManualClock) -> None:
        moves: list[int] = []
        forget = clock.on_move(lambda: moves.append(clock.now()))
        clock.advance(1)
        forget()
        clock.advance(1)
        assert len(moves) == 1


class TestUntilIdle:
    async def test_runs_what_is_due_and_leaves_what_is_not(
        self, timed: App, clock: ManualClock
    ) -> None:
        ran: list[str] = []

        @timed.task
        async def note(name: str) -> None:
            ran.append(name)

        await note.enqueue("now")
        await note.options(delay=60).enqueue("later")
        summary = await run_until_idle(timed)
        assert (ran, summary.completed, summary.tries) == (["now"], 1, 1)
        clock.advance(60)
        assert (await run_until_idle(timed)).completed == 1
        assert ran == ["now", "later"]

    async def test_retry_due_later_stays_until_the_clock_is_moved(
        self, timed: App, clock: ManualClock
    ) -> None:
        @timed.task(retry=30)
        async def flaky(ctx: JobContext) -> str:
            if ctx.number == 1:
                raise ValueError("first")
            return "second"

        ref = await flaky.enqueue()
        assert (await run_until_idle(timed)).retries == 1
        assert (await run_until_idle(timed)).tries == 0
        clock.advance(30)
        assert (await run_until_idle(timed)).completed == 1
        assert await ref.result() == "second"

    async def test_jobs_that_handlers_enqueue_run_too_in_any_queue(self, timed: App) -> None:
        @timed.task(queue="leaves")
        async def leaf(n: int) -> int:
            return n

        @timed.task
        async def root() -> None:
            for n in range(3):
                await leaf.enqueue(n)

        await root.enqueue()
        assert (await run_until_idle(timed)).completed == 4

    async def test_only_the_named_queues_are_served(self, timed: App) -> None:
        @timed.task
        async def work() -> None: ...

        await work.options(queue="a").enqueue()
        await work.options(queue="b").enqueue()
        assert (await run_until_idle(timed, queues="a")).completed == 1
        assert len(await jobs(timed, work, state="pending", queue="b")) == 1

    async def test_drain_moves_the_clock_to_each_next_time(
        self, timed: App, clock: ManualClock
    ) -> None:
        times: list[float] = []
        start = clock.now()

        @timed.task(retry=[10, 100], max_tries=3)
        async def flaky() -> None:
            times.append((clock.now() - start) / 1000)
            raise ValueError

        @timed.task(ttl=5)
        async def never() -> None: ...

        await flaky.enqueue()
        late = await never.options(delay=50).enqueue()
        summary = await run_until_idle(timed, drain=True)
        assert times == [0, 10, 110]
        assert (summary.dead, summary.expired) == (1, 1)
        expired = await late.get()
        assert (expired.state, expired.finished_at) == (State.EXPIRED, start + 5000)

    async def test_drain_waits_for_rate_limits_and_detached_jobs(
        self, timed: App, clock: ManualClock
    ) -> None:
        @timed.task(max_tries=1)
        async def outside(ctx: JobContext) -> object:
            return ctx.detach(timeout=600)

        await timed.queue("default").set(rate="1/m")
        refs = [await outside.enqueue() for _ in range(3)]
        start = clock.now()
        summary = await run_until_idle(timed, drain=True)
        assert summary.dead == 3
        assert [(await ref.get()).finished_at for ref in refs] == [
            start + 600_000 + n * 60_000 for n in range(3)
        ]

    async def test_drain_gives_up_on_a_job_that_always_comes_back(self, timed: App) -> None:
        @timed.task
        async def sleepy() -> None:
            raise Snooze(seconds=1)

        await sleepy.enqueue()
        with pytest.raises(AssertionError, match="not drained after 5 moves"):
            await run_until_idle(timed, drain=True, moves=5)

    async def test_drain_needs_a_clock_that_can_be_moved(self, app: App) -> None:
        with pytest.raises(InvalidValue, match="must be a ManualClock"):
            await run_until_idle(app, drain=True)

    async def test_handler_that_never_ends_is_named(self, timed: App) -> None:
        @timed.task
        async def stuck() -> None:
            await asyncio.Event().wait()

        ref = await stuck.enqueue()
        with pytest.raises(TimeoutError, match=rf"still running: stuck \({ref.id}\)"):
            await run_until_idle(timed, timeout=0.3)
        assert (await ref.get()).state is State.PENDING

    async def test_paused_queue_does_not_hold_it_up(self, timed: App) -> None:
        @timed.task
        async def work() -> None: ...

        await work.enqueue()
        await timed.queue("default").pause()
        assert str(await run_until_idle(timed)) == "nothing"
        assert str(await run_until_idle(timed, drain=True)) == "nothing"

    async def test_rescue_and_expiry_are_done(self, timed: App, clock: ManualClock) -> None:
        @timed.task
        async def work(n: int) -> int:
            return n

        lost = await work.enqueue(1)
        late = await work.options(queue="shut", ttl=10).enqueue(2)
        await timed.queue("shut").pause()
        engine = await timed.engine()
        request = ClaimRequest(
            service="default",
            worker="w-gone",
            shares=(Share("default", 1),),
            limit=1,
            lease=30_000,
            now=clock.now(),
        )
        assert len((await engine.claim(request)).jobs) == 1
        clock.advance(30)
        summary = await run_until_idle(timed)
        assert (summary.retries, summary.completed, summary.expired) == (1, 1, 1)
        assert (await lost.get()).tries == 2
        assert (await late.get()).state is State.EXPIRED


class TestRunning:
    async def test_worker_runs_beside_the_test(self, timed: App, clock: ManualClock) -> None:
        @timed.task
        async def double(n: int) -> int:
            return 2 * n

        async with running(timed):
            assert await (await double.enqueue(4)).result(10) == 8
            later = await double.options(delay=3600).enqueue(5)
            clock.advance(3600)
            assert await later.result(10) == 10

    async def test_big_step_of_the_clock_is_not_a_lost_worker(
        self, timed: App, clock: ManualClock
    ) -> None:
        entered, leave = asyncio.Event(), asyncio.Event()

        @timed.task(timeout=timedelta(days=30))
        async def long() -> str:
            entered.set()
            await leave.wait()
            return "done"

        async with running(timed):
            ref = await long.enqueue()
            await entered.wait()
            for _ in range(5):
                clock.advance(timedelta(days=1))
                await eventually(lambda: _lease_ahead(ref.get, clock))
            leave.set()
            assert await ref.result(10) == "done"
            assert (await ref.get()).tries == 1


async def _lease_ahead(get, clock: ManualClock) -> bool:
    return ((await get()).lease_until or 0) > clock.now()


class TestExpectations:
    async def test_enqueued_jobs_are_found_by_their_arguments(self, timed: App) -> None:
        @timed.task(queue="mail")
        async def welcome(address: str, *, copies: int = 1) -> None: ...

        await welcome.enqueue("ada@example.org")
        await welcome.options(delay=60, priority=1, tags=["x"]).enqueue("bob@example.org", copies=2)
        (job,) = await assert_enqueued(timed, welcome, "ada@example.org")
        assert arguments(job) == {"address": "ada@example.org"}
        await assert_enqueued(timed, welcome, count=2)
        await assert_enqueued(timed, welcome, count=None)
        await assert_enqueued(timed, welcome, copies=2)
        await assert_enqueued(timed, welcome, "bob@example.org", delay=60, priority=1, tags=["x"])
        await assert_enqueued(timed, "welcome", address="ada@example.org", queue="mail")
        await assert_not_enqueued(timed, welcome, "eve@example.org")
        assert [arguments(job)["address"] for job in await jobs(timed, "welcome")] == [
            "ada@example.org",
            "bob@example.org",
        ]

    async def test_failure_lists_near_misses(self, timed: App) -> None:
        @timed.task(queue="mail")
        async def welcome(address: str, n: int = 0) -> None: ...

        ref = await welcome.enqueue("bob", n=1)
        with pytest.raises(AssertionError) as caught:
            await assert_enqueued(timed, welcome, "ada", n=True, queue="post", state="dead")
        assert str(caught.value) == (
            "welcome(address='ada', n=True), queue 'post', state dead was enqueued 0 times, not"
            " once\n"
            "of type 'welcome' there are:\n"
            f"  {ref.id} welcome(address='bob', n=1) in 'mail', pending: address is 'bob'; n is 1;"
            " queue is 'mail'; state is pending"
        )

    async def test_failure_says_what_there_is_instead(self, timed: App) -> None:
        @timed.task
        async def one() -> None: ...

        @timed.task
        async def other() -> None: ...

        with pytest.raises(AssertionError, match="there are no jobs"):
            await assert_enqueued(timed, one)
        await other.enqueue()
        with pytest.raises(AssertionError, match="there are only jobs of type other"):
            await assert_enqueued(timed, one)
        with pytest.raises(AssertionError, match="enqueued once, not 0 times"):
            await assert_not_enqueued(timed, other)

    async def test_impossible_expectation_is_an_error(self, timed: App) -> None:
        @timed.task
        async def one(a: int) -> None: ...

        with pytest.raises(TypeError, match="unexpected keyword argument 'b'"):
            await assert_enqueued(timed, one, b=1)
        with pytest.raises(TypeError, match="name the arguments"):
            await assert_enqueued(timed, "one", 1)
