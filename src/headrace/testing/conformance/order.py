"""Order and delays (FEATURES 4.1, 5.3)."""

from __future__ import annotations

import asyncio

from headrace.core import actions
from headrace.core.model import Stage
from headrace.core.outcome import Returned
from headrace.core.states import State
from headrace.testing.conformance.bench import Bench, made, refused

FAR = 253_402_300_799_999
"""The last millisecond of the year 9999."""


class Order:
    """Priority first, then who was due first, then who came first."""

    async def test_claim_tells_when_a_job_is_due_that_was_put_off(self, bench: Bench) -> None:
        await bench.add("a")
        later = await bench.add("b", queue="q2")
        await bench.apply(actions.reschedule(later, bench.now, bench.now + 15))
        offer = await bench.offer(1, "q", "q2")
        assert ([job.id for job in offer.jobs], offer.next_due) == (["a"], bench.now + 15)

    async def test_jobs_of_one_priority_run_first_in_first_out(self, bench: Bench) -> None:
        for id in ("c", "a", "b"):
            await bench.add(id)
        assert await bench.claimed_ids() == ["c", "a", "b"]

    async def test_lower_priority_number_runs_first(self, bench: Bench) -> None:
        for id, priority in (("five", None), ("nine", 9), ("zero", 0), ("four", 4), ("zero2", 0)):
            await bench.add(id, priority=priority)
        assert await bench.claimed_ids() == ["zero", "zero2", "four", "five", "nine"]

    async def test_lifo_jobs_run_newest_first(self, bench: Bench) -> None:
        for id in "abc":
            await bench.add(id, lifo=True)
            bench.tick(1)
        assert await bench.claimed_ids() == ["c", "b", "a"]

    async def test_lifo_holds_within_one_millisecond(self, bench: Bench) -> None:
        for id in "abc":
            await bench.add(id, lifo=True)
        assert await bench.claimed_ids() == ["c", "b", "a"]

    async def test_claims_one_by_one_see_the_same_order(self, bench: Bench) -> None:
        for id, priority in (("a", 5), ("b", 1), ("c", 5), ("d", 9)):
            await bench.add(id, priority=priority)
        assert [(await bench.start()).id for _ in range(4)] == ["b", "a", "c", "d"]

    async def test_priority_of_a_waiting_job_can_change(self, bench: Bench) -> None:
        await bench.add("a")
        last = await bench.add("b")
        assert made(await bench.apply(actions.reprioritise(last, bench.now, 0))).priority == 0
        assert await bench.claimed_ids() == ["b", "a"]

    async def test_priority_of_a_delayed_job_can_change(self, bench: Bench) -> None:
        job = await bench.add("a", delay=100)
        await bench.add("b", delay=100)
        await bench.apply(actions.reprioritise(job, bench.now, 9))
        assert await bench.claimed_ids() == []
        bench.tick(100)
        assert await bench.claimed_ids() == ["b", "a"]

    async def test_priority_of_a_running_job_cannot_change(self, bench: Bench) -> None:
        await bench.add("a")
        job = await bench.start()
        assert refused(await bench.apply(actions.reprioritise(job, bench.now, 0))).job == job

    async def test_returned_job_comes_before_later_ones(self, bench: Bench) -> None:
        await bench.add("a", priority=1)
        await bench.add("b", priority=2)
        await bench.settle(await bench.start(), Returned())
        assert await bench.claimed_ids() == ["a", "b"]

    async def test_delayed_job_is_not_claimable_before_it_is_due(self, bench: Bench) -> None:
        assert (await bench.add("a", delay=1000)).stage is Stage.DELAYED
        bench.tick(999)
        assert await bench.claimed_ids() == []
        bench.tick(1)
        assert await bench.claimed_ids() == ["a"]

    async def test_job_due_in_the_past_runs_now(self, bench: Bench) -> None:
        job = await bench.add("a", run_at=bench.now - 60_000)
        assert job.stage is Stage.READY
        assert await bench.claimed_ids() == ["a"]

    async def test_delayed_jobs_run_in_the_order_they_are_due(self, bench: Bench) -> None:
        for id, delay in (("late", 300), ("early", 100), ("middle", 200)):
            await bench.add(id, delay=delay)
        bench.tick(1000)
        assert await bench.claimed_ids() == ["early", "middle", "late"]

    async def test_short_delay_behind_a_long_one_is_on_time(self, bench: Bench) -> None:
        await bench.add("long", delay=3_600_000)
        await bench.add("short", delay=50)
        bench.tick(50)
        assert await bench.claimed_ids() == ["short"]

    async def test_priority_counts_among_jobs_that_became_due(self, bench: Bench) -> None:
        await bench.add("low", delay=10, priority=9)
        await bench.add("high", delay=20, priority=1)
        bench.tick(20)
        assert await bench.claimed_ids(1) == ["high"]

    async def test_claim_says_when_the_next_job_is_due(self, bench: Bench) -> None:
        assert (await bench.offer()).next_due is None
        await bench.add("b", delay=500)
        await bench.add("a", delay=200)
        await bench.add("other", queue="q2", delay=100)
        assert (await bench.offer()).next_due == bench.now + 200
        assert (await bench.offer(1, "q", "q2")).next_due == bench.now + 100
        bench.tick(200)
        assert (await bench.offer()).next_due == bench.now + 300

    async def test_due_time_of_a_waiting_job_can_change(self, bench: Bench) -> None:
        job = await bench.add("a", delay=1000)
        sooner = made(await bench.apply(actions.reschedule(job, bench.now, bench.now + 10)))
        assert (await bench.offer()).next_due == bench.now + 10
        await bench.apply(actions.reschedule(sooner, bench.now, bench.now - 5))
        assert await bench.claimed_ids() == ["a"]

    async def test_ready_job_can_be_put_off(self, bench: Bench) -> None:
        job = await bench.add("a")
        await bench.apply(actions.reschedule(job, bench.now, bench.now + 10))
        assert await bench.claimed_ids() == []
        bench.tick(10)
        assert await bench.claimed_ids() == ["a"]

    async def test_due_job_is_promoted_once_with_several_workers(self, bench: Bench) -> None:
        for n in range(20):
            await bench.add(f"j{n}", delay=10)
        bench.tick(10)
        taken = await asyncio.gather(*(bench.claim(4, worker=f"w{n}") for n in range(10)))
        assert sorted(job.id for jobs in taken for job in jobs) == sorted(
            f"j{n}" for n in range(20)
        )

    async def test_job_of_the_far_future_waits(self, bench: Bench) -> None:
        await bench.add("far", run_at=FAR)
        await bench.add("lifo", run_at=FAR, lifo=True)
        await bench.add("near")
        assert await bench.claimed_ids() == ["near"]
        bench.now = FAR
        assert sorted(await bench.claimed_ids()) == ["far", "lifo"]

    async def test_claim_takes_no_more_than_asked_for(self, bench: Bench) -> None:
        for n in range(5):
            await bench.add(f"j{n}")
        assert await bench.claimed_ids(2) == ["j0", "j1"]
        assert await bench.claimed_ids(0) == []
        assert (await bench.counts())["q", State.PENDING] == 3
