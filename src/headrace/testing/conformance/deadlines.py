"""Deadlines and times to live (FEATURES 4.2, 4.3)."""

from __future__ import annotations

from headrace.core import actions
from headrace.core.outcome import Detached, Expired, Returned
from headrace.core.states import EventType, State
from headrace.testing.conformance.bench import LEASE, Bench, made, refused
from headrace.upkeep.expiry import expire_overdue


class Deadlines:
    """What is late ends `expired`, and its handler is not called."""

    async def test_job_past_its_deadline_is_not_handed_out(self, bench: Bench) -> None:
        await bench.add("a", deadline=bench.now + 1000)
        bench.tick(1000)
        assert await bench.claimed_ids() == []
        assert await bench.state("a") is State.EXPIRED

    async def test_job_just_before_its_deadline_is_handed_out(self, bench: Bench) -> None:
        await bench.add("a", deadline=bench.now + 1000)
        bench.tick(999)
        assert await bench.claimed_ids() == ["a"]

    async def test_job_added_past_its_deadline_never_runs(self, bench: Bench) -> None:
        await bench.add("a", deadline=bench.now - 1)
        assert await bench.claimed_ids() == []
        assert await bench.state("a") is State.EXPIRED

    async def test_claim_passes_expired_jobs_and_fills_up_with_the_next(self, bench: Bench) -> None:
        for n in range(5):
            await bench.add(f"late{n}", ttl=10)
        for n in range(3):
            await bench.add(f"good{n}")
        bench.tick(10)
        assert await bench.claimed_ids(3) == ["good0", "good1", "good2"]

    async def test_job_that_did_not_start_within_its_ttl_expires(self, bench: Bench) -> None:
        await bench.add("a", ttl=1000)
        bench.tick(1000)
        assert await bench.claimed_ids() == []
        assert await bench.state("a") is State.EXPIRED

    async def test_ttl_is_not_an_execution_timeout(self, bench: Bench) -> None:
        await bench.add("a", ttl=1000)
        job = await bench.start()
        bench.tick(5000)
        assert await bench.expire() == []
        assert (await bench.complete(job)).state is State.COMPLETED

    async def test_ttl_is_kept_once_the_job_has_started(self, bench: Bench) -> None:
        await bench.add("a", ttl=1000)
        await bench.fail(await bench.start(), after=5000)
        bench.tick(5000)
        assert await bench.expire() == []
        assert await bench.claimed_ids() == ["a"]

    async def test_earlier_of_deadline_and_ttl_counts_before_the_start(self, bench: Bench) -> None:
        await bench.add("a", ttl=500, deadline=bench.now + 1000)
        await bench.add("b", ttl=1000, deadline=bench.now + 500)
        bench.tick(500)
        assert await bench.claimed_ids() == []
        assert await bench.states("a", "b") == [State.EXPIRED, State.EXPIRED]

    async def test_upkeep_expires_overdue_jobs_wherever_they_wait(self, bench: Bench) -> None:
        deadline = bench.now + 100
        await bench.add("parent", delay=10_000)
        await bench.add("delayed", delay=5000, deadline=deadline)
        await bench.add("blocked", depends_on=("parent",), deadline=deadline)
        await bench.add("ready", deadline=deadline)
        await bench.add("future", deadline=deadline + 1)
        bench.tick(100)
        assert len(await bench.expire()) == 3
        assert await bench.states("delayed", "blocked", "ready") == [State.EXPIRED] * 3
        assert await bench.state("future") is State.PENDING

    async def test_upkeep_goes_on_where_a_page_of_overdue_jobs_ends(self, bench: Bench) -> None:
        for n in range(5):
            await bench.add(f"j{n}", ttl=100)
        assert await expire_overdue(bench.engine, bench.tick(100), limit=2) == 5

    async def test_retry_is_expired_at_the_deadline(self, bench: Bench) -> None:
        await bench.add("a", deadline=bench.now + 1000)
        await bench.fail(await bench.start(), after=5000)
        bench.tick(1000)
        await bench.expire()
        assert await bench.state("a") is State.EXPIRED

    async def test_running_job_at_its_deadline_is_expired_by_its_owner(self, bench: Bench) -> None:
        await bench.add("a", deadline=bench.now + 1000)
        job = await bench.start()
        bench.tick(1000)
        assert await bench.expire() == []
        assert made(await bench.settle(job, Expired())).state is State.EXPIRED
        assert await bench.story("a") == [EventType.CREATED, EventType.STARTED, EventType.EXPIRED]

    async def test_lost_job_past_its_deadline_expires_instead_of_running_again(
        self, bench: Bench
    ) -> None:
        await bench.add("a", deadline=bench.now + LEASE)
        await bench.start()
        bench.tick(LEASE)
        await bench.rescue()
        assert await bench.state("a") is State.EXPIRED

    async def test_returned_job_past_its_deadline_is_not_run_again(self, bench: Bench) -> None:
        await bench.add("a", deadline=bench.now + 1000)
        job = await bench.start()
        bench.tick(1000)
        await bench.settle(job, Returned())
        assert await bench.claimed_ids() == []
        assert await bench.state("a") is State.EXPIRED

    async def test_detached_job_past_its_limit_and_deadline_does_not_run_again(
        self, bench: Bench
    ) -> None:
        await bench.add("a", deadline=bench.now + 1000)
        await bench.settle(await bench.start(), Detached(bench.now + 1000))
        bench.tick(1000)
        await bench.rescue()
        assert await bench.claimed_ids() == []
        assert await bench.state("a") is State.EXPIRED

    async def test_expiry_decided_too_early_is_refused(self, bench: Bench) -> None:
        job = await bench.add("a", ttl=1000)
        refused(await bench.apply(actions.expire(job, bench.now + 999)))
        assert await bench.state("a") is State.PENDING

    async def test_expiry_decided_before_the_job_came_back_is_refused(self, bench: Bench) -> None:
        job = await bench.add("a", deadline=bench.now + 1000)
        bench.tick(1000)
        change = actions.expire(job, bench.now)
        await bench.expire()
        await bench.retry(await bench.job("a"))
        bench.tick(1)
        refused(await bench.apply(change))
        assert await bench.claimed_ids() == ["a"]

    async def test_expired_job_frees_its_place_in_the_counts(self, bench: Bench) -> None:
        await bench.add("a", ttl=10)
        bench.tick(10)
        await bench.expire()
        assert await bench.counts() == {("q", State.EXPIRED): 1}
