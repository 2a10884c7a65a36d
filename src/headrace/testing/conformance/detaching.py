"""Detached jobs (FEATURES 7.7)."""

from __future__ import annotations

import asyncio

from headrace.core.change import Applied
from headrace.core.claims import Renewal
from headrace.core.model import Filter, Job
from headrace.core.outcome import Completed, Detached, Moved, Problem, Terminated
from headrace.core.states import EventType, State
from headrace.testing.conformance.bench import ACTIVE, Bench, failed, made, raw, refused


async def detach(bench: Bench, id: str = "a", within: int = 1000) -> Job:
    await bench.add(id, max_tries=2)
    return made(await bench.settle(await bench.start(), Detached(bench.now + within)))


class Detaching:
    """A job stays active outside its handler until someone with its token settles it."""

    async def test_detached_job_stays_active_and_says_so(self, bench: Bench) -> None:
        job = await detach(bench)
        assert (job.state, job.detached, job.shown(bench.now)) == (State.ACTIVE, True, "detached")
        assert job.lease_until == bench.now + 1000
        assert (await bench.story("a"))[-1] is EventType.DETACHED
        assert await bench.claimed_ids() == []

    async def test_detached_job_outlives_its_worker_s_lease(self, bench: Bench) -> None:
        job = await detach(bench, within=10**9)
        bench.tick(10**8)
        assert await bench.rescue() == []
        assert (await bench.complete(job)).state is State.COMPLETED

    async def test_anyone_with_the_stored_job_can_complete_it(self, bench: Bench) -> None:
        await detach(bench)
        done = await bench.complete(await bench.job("a"), "from afar")
        assert (done.state, done.result, done.detached) == (
            State.COMPLETED,
            raw("from afar"),
            False,
        )

    async def test_detached_job_can_fail_be_terminated_or_move_on(self, bench: Bench) -> None:
        first = await detach(bench, "a")
        assert made(await bench.settle(first, failed(after=10**6))).state is State.RETRY
        second = await detach(bench, "b")
        terminated = await bench.settle(second, Terminated(Problem("E", "no")))
        assert made(terminated).state is State.FAILED
        third = await detach(bench, "c")
        moved = made(await bench.settle(third, Moved("q2")))
        assert (moved.state, moved.detached, moved.queue) == (State.PENDING, False, "q2")

    async def test_first_of_two_settlements_wins(self, bench: Bench) -> None:
        job = await detach(bench)
        await bench.complete(job)
        bench.tick(1)
        refused(await bench.settle(job, failed()))
        refused(await bench.settle(job, Completed(raw("again"))))
        assert await bench.state("a") is State.COMPLETED

    async def test_many_settlements_at_once_end_the_job_once(self, bench: Bench) -> None:
        job = await detach(bench)
        answers = await asyncio.gather(
            *(bench.settle(job, Terminated(Problem("E", str(n)))) for n in range(5)),
            bench.settle(job, Completed()),
        )
        stored = await bench.job("a")
        made_now = {a.job.version for a in answers if isinstance(a, Applied)}
        assert made_now == {stored.version}
        ends = {EventType.COMPLETED, EventType.FAILED}
        assert sum(event in ends for event in await bench.story("a")) == 1

    async def test_time_limit_can_be_renewed(self, bench: Bench) -> None:
        job = await detach(bench)
        bench.tick(900)
        made(await bench.settle(job, Detached(bench.now + 1000)))
        bench.tick(900)
        assert await bench.rescue() == []
        assert (await bench.complete(job)).state is State.COMPLETED

    async def test_worker_s_renewal_does_not_shorten_the_time_limit(self, bench: Bench) -> None:
        job = await detach(bench, within=10**6)
        assert await bench.extend(job) == [Renewal(True)]
        assert (await bench.job("a")).lease_until == bench.now + 10**6

    async def test_time_limit_counts_as_a_failed_try(self, bench: Bench) -> None:
        job = await detach(bench)
        bench.tick(1000)
        await bench.rescue()
        (error,) = await bench.errors("a")
        assert error.type == "DetachedTimeout"
        back = await bench.job("a")
        assert (back.state, back.tries, back.detached) == (State.RETRY, 1, False)
        refused(await bench.settle(job, Completed()))

    async def test_time_limit_on_the_last_try_ends_the_job(self, bench: Bench) -> None:
        await detach(bench)
        bench.tick(1000)
        await bench.rescue()
        bench.now = (await bench.job("a")).run_at
        await bench.settle(await bench.start(), Detached(bench.now + 10))
        bench.tick(10)
        await bench.rescue()
        assert await bench.state("a") is State.DEAD

    async def test_completing_many_detached_jobs_leaves_none_active(self, bench: Bench) -> None:
        jobs = [await detach(bench, f"j{n}") for n in range(10)]
        await asyncio.gather(*(bench.complete(job) for job in jobs))
        assert await bench.found(Filter(states=ACTIVE)) == []
