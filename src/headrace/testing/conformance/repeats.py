"""Repeated writes: an operation whose answer was lost may be sent again (DESIGN, the contract)."""

from __future__ import annotations

from headrace.core import actions
from headrace.core.admission import Outcome
from headrace.core.change import Change
from headrace.core.model import Dedup, DedupMode, WhenFull
from headrace.core.outcome import (
    Cancelled,
    Completed,
    Detached,
    Expired,
    Moved,
    Problem,
    Returned,
    Snoozed,
    Terminated,
)
from headrace.core.outcome import Outcome as Run
from headrace.core.states import EventType, State
from headrace.testing.conformance.bench import LEASE, Bench, failed, key, made


async def twice(bench: Bench, change: Change) -> None:
    """Applies a change again; both answers say it was made, and it was made once."""
    made(await bench.apply(change))
    stored, told = await bench.job(change.job.id), len(await bench.events())
    bench.tick(3)
    assert made(await bench.apply(change)) == stored
    assert len(await bench.events()) == told
    assert await bench.job(change.job.id) == stored


class Repeats:
    """The second attempt answers like the first and changes nothing."""

    async def test_repeated_insert_is_accepted_once(self, bench: Bench) -> None:
        new = bench.new("a", dedup=Dedup("d"), key=key("k", max_queued=0))
        (first,) = await bench.insert(new)
        (second,) = await bench.insert(new)
        assert (first.outcome, second.outcome) == (Outcome.ACCEPTED, Outcome.ACCEPTED)
        assert second.job == first.job
        assert await bench.story("a") == [EventType.CREATED]

    async def test_repeated_insert_of_a_job_that_moved_on_answers_how_it_stands(
        self, bench: Bench
    ) -> None:
        new = bench.new("a")
        await bench.insert(new)
        done = await bench.run()
        (again,) = await bench.insert(new)
        assert (again.outcome, again.job) == (Outcome.ACCEPTED, done)
        assert await bench.claimed_ids() == []

    async def test_repeated_group_is_accepted_once(self, bench: Bench) -> None:
        group = [bench.new("p"), bench.new("c", depends_on=("p",))]
        await bench.insert(*group)
        assert all(verdict.taken for verdict in await bench.insert(*group))
        assert len(await bench.events()) == 2

    async def test_repeated_replacing_insert_replaces_once(self, bench: Bench) -> None:
        limit = key("k", max_queued=1, when_full=WhenFull.REPLACE_OLDEST)
        await bench.add("a", key=limit)
        await bench.add("b", key=limit)
        debounced = bench.new("c", key=limit, dedup=Dedup("d", DedupMode.DEBOUNCE))
        await bench.insert(debounced)
        await bench.insert(debounced)
        assert await bench.states("a", "b", "c") == [State.SKIPPED, State.PENDING, State.PENDING]

    async def test_repeated_settlement_is_made_once(self, bench: Bench) -> None:
        problem = Problem("E", "x")
        outcomes: list[Run] = [
            Completed(),
            failed(after=10**9),
            Terminated(problem),
            Snoozed(bench.now + 10**9),
            Cancelled("x"),
            Expired(),
            Moved("elsewhere"),
            Returned(),
        ]
        for n, outcome in enumerate(outcomes):
            await bench.add(f"j{n}", queue=f"q{n}")
            job = await bench.start(f"q{n}")
            await twice(bench, await bench.settled(job, outcome))

    async def test_repeated_last_failure_is_made_once(self, bench: Bench) -> None:
        await bench.add("a", max_tries=1)
        await twice(bench, await bench.settled(await bench.start(), failed()))
        assert len(await bench.errors("a")) == 1

    async def test_repeated_rescue_is_made_once(self, bench: Bench) -> None:
        await bench.add("a")
        job = await bench.start()
        bench.tick(LEASE)
        await twice(bench, await bench.lost(job))
        assert len(await bench.errors("a")) == 1

    async def test_repeated_detach_leaves_the_job_detached(self, bench: Bench) -> None:
        await bench.add("a")
        change = await bench.settled(await bench.start(), Detached(bench.now + 1000))
        for _ in range(2):
            job = made(await bench.apply(change))
            assert (job.detached, job.lease_until) == (True, bench.now + 1000)

    async def test_repeated_operator_s_actions_are_made_once(self, bench: Bench) -> None:
        await bench.add("a", max_tries=1)
        dead = await bench.kill("a")
        await twice(bench, actions.replay(dead, bench.now))
        await twice(bench, actions.cancel(await bench.job("a"), bench.now, "no"))
        await twice(bench, actions.retry(await bench.job("a"), bench.now))
        await twice(bench, actions.skip(await bench.job("a"), bench.now, "no"))
        await bench.add("b", max_tries=1)
        await twice(bench, actions.dismiss(await bench.kill("b"), bench.now))
        overdue = await bench.add("c", ttl=0)
        await twice(bench, actions.expire(overdue, bench.now))

    async def test_repeated_completion_after_the_job_came_back_changes_nothing(
        self, bench: Bench
    ) -> None:
        await bench.add("a")
        change = await bench.settled(await bench.start(), Completed())
        await bench.retry(made(await bench.apply(change)))
        await bench.apply(change)
        assert await bench.state("a") is State.PENDING

    async def test_change_may_stand_twice_in_one_batch(self, bench: Bench) -> None:
        await bench.add("a")
        change = await bench.settled(await bench.start(), Completed())
        first, second = await bench.engine.apply([change, change])
        assert made(first).version == made(second).version

    async def test_repeated_renewal_is_held(self, bench: Bench) -> None:
        await bench.add("a")
        job = await bench.start()
        assert await bench.extend(job) == await bench.extend(job)

    async def test_lost_claim_is_rescued(self, bench: Bench) -> None:
        await bench.add("a")
        await bench.claim()
        bench.tick(LEASE)
        await bench.rescue()
        assert (await bench.run()).state is State.COMPLETED

    async def test_opening_twice_is_harmless(self, bench: Bench) -> None:
        await bench.add("a")
        await bench.engine.open()
        assert await bench.claimed_ids() == ["a"]
