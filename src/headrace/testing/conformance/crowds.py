"""Crowds: no number of jobs is too much for one step (FEATURES 4.1, 5.1)."""

from __future__ import annotations

from headrace.core.change import Applied
from headrace.core.model import Job, NewJob, OnParentFailure
from headrace.core.outcome import Completed, Problem, Terminated
from headrace.core.queue import QueueSettings
from headrace.core.states import State
from headrace.testing.conformance.bench import LEASE, Bench, key, raw

MANY = 1100
"""More than a store may take in one go."""


class Crowds:
    """A worker that is offered very many jobs, holds or ends them, is not stuck."""

    async def test_very_many_jobs_of_different_keys_are_claimed_renewed_and_ended(
        self, bench: Bench
    ) -> None:
        await add(bench, [bench.new(f"j{n}", key=key(f"k{n}")) for n in range(MANY)])
        jobs = await claim_all(bench)
        assert len({job.id for job in jobs}) == MANY
        bench.tick(LEASE - 1)
        assert all(renewal.held for renewal in await bench.extend(*jobs))
        bench.tick(LEASE - 1)
        assert await bench.rescue() == []
        changes = [await bench.settled(job, Completed(raw(None))) for job in jobs]
        answers = await bench.engine.apply(changes)
        assert all(isinstance(answer, Applied) for answer in answers)
        assert await bench.counts() == {("q", State.COMPLETED): MANY}

    async def test_job_behind_very_many_that_came_too_late_is_claimed(self, bench: Bench) -> None:
        late = [bench.new(f"j{n}", key=key(f"k{n}"), ttl=1000) for n in range(MANY)]
        await add(bench, late)
        await bench.add("last")
        bench.tick(1000)
        assert [job.id for job in await claim_all(bench, 10)] == ["last"]

    async def test_very_many_jobs_that_are_due_at_once_are_claimed(self, bench: Bench) -> None:
        await add(bench, [bench.new(f"j{n}", key=key(f"k{n}"), delay=1000) for n in range(MANY)])
        bench.tick(1000)
        assert len({job.id for job in await claim_all(bench)}) == MANY

    async def test_jobs_with_very_many_dependents_end_at_once(self, bench: Bench) -> None:
        await bench.set_queue(QueueSettings(max_active=10))
        parents = [(await bench.add(f"p{n}")).id for n in range(6)]
        for parent in parents:
            await add(bench, dependents(bench, parent, 90))
        jobs = await bench.claim(6)
        changes = [await bench.settled(job, Completed(raw(None))) for job in jobs]
        answers = await bench.engine.apply(changes)
        assert [type(answer) for answer in answers] == [Applied] * 6
        assert await bench.counts() == {
            ("q", State.COMPLETED): 6,
            ("other", State.PENDING): 540,
        }

    async def test_end_that_reaches_very_many_over_two_levels_is_told_to_all(
        self, bench: Bench
    ) -> None:
        await bench.add("p")
        children = dependents(bench, "p", 25)
        await add(bench, children)
        for child in children:
            await add(bench, dependents(bench, child.id, 25))
        await bench.settle(await bench.start(), Terminated(Problem("ValueError", "boom")))
        assert await bench.counts() == {
            ("q", State.FAILED): 1,
            ("other", State.UNREACHABLE): 25 + 625,
        }

    async def test_parent_of_very_many_that_run_whatever_becomes_of_it_can_be_tried_again(
        self, bench: Bench
    ) -> None:
        await bench.add("p", max_tries=1)
        await add(bench, dependents(bench, "p", 400, OnParentFailure.RUN))
        await bench.kill("p")
        assert await bench.state("p-399") is State.PENDING
        assert isinstance(await bench.retry(await bench.job("p")), Applied)
        assert await bench.state("p") is State.PENDING

    async def test_very_many_that_wait_for_a_job_end_when_it_is_deleted(self, bench: Bench) -> None:
        await bench.add("p", max_tries=1)
        await add(bench, dependents(bench, "p", 400, OnParentFailure.WAIT))
        await bench.kill("p")
        assert await bench.state("p-399") is State.BLOCKED
        assert isinstance(await bench.delete(await bench.job("p")), Applied)
        assert await bench.counts() == {("other", State.UNREACHABLE): 400}
        assert not await bench.exists("p")


def dependents(
    bench: Bench,
    parent: str,
    count: int,
    policy: OnParentFailure = OnParentFailure.UNREACHABLE,
) -> list[NewJob]:
    """So many jobs of another queue that depend on a job."""
    return [
        bench.new(f"{parent}-{n}", queue="other", depends_on=(parent,), on_parent_failure=policy)
        for n in range(count)
    ]


async def add(bench: Bench, jobs: list[NewJob]) -> None:
    """Adds jobs, each on its own, which must be taken."""
    for start in range(0, len(jobs), 100):
        groups = [(job,) for job in jobs[start : start + 100]]
        verdicts = await bench.engine.insert(groups, bench.now)
        assert all(verdict.taken for (verdict,) in verdicts)


async def claim_all(bench: Bench, limit: int = MANY) -> list[Job]:
    """Claims until there is nothing more; a claim may find less than there is if it says so."""
    jobs: list[Job] = []
    for _ in range(20):
        offered = await bench.offer(limit - len(jobs))
        jobs += offered.jobs
        due = offered.next_due is not None and offered.next_due <= bench.now
        if len(jobs) >= limit or not (offered.jobs or due):
            break
    return jobs
