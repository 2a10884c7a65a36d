"""Keyed concurrency: limits, depth, lost slots (FEATURES 5.7–5.10)."""

from __future__ import annotations

import asyncio

from headrace.core import actions
from headrace.core.admission import Outcome
from headrace.core.model import OnLost, Stage, WhenFull
from headrace.core.outcome import Completed, Detached
from headrace.core.states import EventType, State
from headrace.testing.conformance.bench import LEASE, Bench, key, made, refused

K = key("k")
STALE = key("k", on_lost=OnLost.FAIL_STALE)
BLOCK = key("k", on_lost=OnLost.BLOCK)


class Keys:
    """Never more of a key than its limit, and a limit on how many may wait."""

    async def test_jobs_of_one_key_never_overlap(self, bench: Bench) -> None:
        for id in "abc":
            await bench.add(id, key=K)
        taken = await asyncio.gather(*(bench.claim(3, worker=f"w{n}") for n in range(4)))
        assert [job.id for jobs in taken for job in jobs] == ["a"]

    async def test_jobs_of_other_keys_overlap(self, bench: Bench) -> None:
        for id in "abc":
            await bench.add(id, key=key(id))
        assert await bench.claimed_ids() == ["a", "b", "c"]

    async def test_up_to_max_active_of_a_key_run(self, bench: Bench) -> None:
        limit = key("k", max_active=3)
        for n in range(6):
            await bench.add(f"j{n}", key=limit)
        running = await bench.claim(10)
        assert [job.id for job in running] == ["j0", "j1", "j2"]
        await bench.complete(running[1])
        assert await bench.claimed_ids() == ["j3"]

    async def test_key_holds_over_queues_and_types(self, bench: Bench) -> None:
        await bench.add("a", key=K)
        await bench.add("b", key=K, queue="q2", type="other")
        assert await bench.claimed_ids(10, "q2", "q") == ["b"]
        assert await bench.claimed_ids(10, "q2", "q") == []

    async def test_key_of_another_service_is_another_key(self, bench: Bench) -> None:
        await bench.add("a", key=K)
        await bench.add("b", key=K, service="other")
        await bench.start()
        bench.service = "other"
        assert await bench.claimed_ids() == ["b"]

    async def test_slot_is_freed_by_every_way_out_of_running(self, bench: Bench) -> None:
        for n in range(4):
            await bench.add(f"j{n}", key=K, max_tries=1)
        await bench.complete(await bench.start())
        await bench.fail(await bench.start())
        job = await bench.start()
        await bench.cancel(job)
        await bench.fail(job)
        assert (await bench.start()).id == "j3"

    async def test_detached_job_keeps_its_slot(self, bench: Bench) -> None:
        await bench.add("a", key=K)
        await bench.add("b", key=K)
        job = await bench.start()
        await bench.settle(job, Detached(bench.now + 1000))
        assert await bench.claimed_ids() == []
        await bench.complete(job)
        assert await bench.claimed_ids() == ["b"]

    async def test_depth_counts_free_slots_apart(self, bench: Bench) -> None:
        limit = key("k", max_active=2, max_queued=1)
        outcomes = [(await bench.submit(f"j{n}", key=limit)).outcome for n in range(4)]
        assert outcomes == [Outcome.ACCEPTED] * 3 + [Outcome.REJECTED]
        await bench.claim(2)
        assert (await bench.submit("x", key=limit)).reason == "active-limit"

    async def test_key_with_no_places_behind_it_rejects_while_one_waits_or_runs(
        self, bench: Bench
    ) -> None:
        limit = key("k", max_queued=0)
        await bench.add("a", key=limit)
        verdict = await bench.submit("b", key=limit)
        assert (verdict.outcome, verdict.reason) == (Outcome.REJECTED, "queue-depth")
        assert verdict.existing_id == "a"
        job = await bench.start()
        verdict = await bench.submit("b", key=limit)
        assert (verdict.reason, verdict.existing_id) == ("active-limit", "a")
        await bench.complete(job)
        assert (await bench.submit("b", key=limit)).outcome is Outcome.ACCEPTED

    async def test_rejected_job_leaves_no_trace(self, bench: Bench) -> None:
        limit = key("k", max_queued=0)
        await bench.add("a", key=limit)
        await bench.submit("b", key=limit)
        assert [event.job_id for event in await bench.events()] == ["a"]
        assert not await bench.exists("b")

    async def test_coalesced_job_is_the_first_queued_one(self, bench: Bench) -> None:
        limit = key("k", max_queued=1, when_full=WhenFull.COALESCE)
        await bench.add("a", key=limit)
        await bench.start()
        await bench.add("b", key=limit)
        verdict = await bench.submit("c", key=limit)
        assert (verdict.outcome, verdict.existing_id) == (Outcome.COALESCED, "b")
        assert not await bench.exists("c")
        assert {event.job_id for event in await bench.events()} == {"a", "b"}

    async def test_coalesced_job_is_the_running_one_where_none_is_queued(
        self, bench: Bench
    ) -> None:
        limit = key("k", max_queued=0, when_full=WhenFull.COALESCE)
        await bench.add("a", key=limit)
        await bench.start()
        assert (await bench.submit("b", key=limit)).existing_id == "a"

    async def test_replace_oldest_skips_the_first_queued_one(self, bench: Bench) -> None:
        limit = key("k", max_queued=2, when_full=WhenFull.REPLACE_OLDEST)
        await bench.add("running", key=limit)
        await bench.start()
        await bench.add("a", key=limit)
        await bench.add("b", key=limit)
        verdict = await bench.submit("c", key=limit)
        assert (verdict.outcome, verdict.replaced) == (Outcome.REPLACED, ("a",))
        assert await bench.states("running", "a", "b") == [
            State.ACTIVE,
            State.SKIPPED,
            State.PENDING,
        ]

    async def test_replace_oldest_with_nothing_queued_rejects(self, bench: Bench) -> None:
        limit = key("k", max_queued=0, when_full=WhenFull.REPLACE_OLDEST)
        await bench.add("a", key=limit)
        await bench.start()
        assert (await bench.submit("b", key=limit)).outcome is Outcome.REJECTED
        assert await bench.state("a") is State.ACTIVE

    async def test_replaced_is_journaled_before_created(self, bench: Bench) -> None:
        limit = key("k", max_queued=0, when_full=WhenFull.REPLACE_OLDEST)
        await bench.add("a", key=limit)
        await bench.add("b", key=limit)
        told = [(event.job_id, event.event) for event in await bench.events()]
        assert told[1:] == [("a", EventType.SKIPPED), ("b", EventType.CREATED)]

    async def test_many_producers_do_not_pass_the_depth(self, bench: Bench) -> None:
        limit = key("k", max_queued=2)
        verdicts = await asyncio.gather(*(bench.submit(f"j{n}", key=limit) for n in range(20)))
        assert sum(verdict.taken for verdict in verdicts) == 3

    async def test_key_can_be_looked_into(self, bench: Bench) -> None:
        for id in "abc":
            await bench.add(id, key=K)
        job = await bench.start()
        bench.tick(10)
        await bench.extend(job)
        status = await bench.key(K)
        assert (status.name, status.hash, status.queued) == ("k", K.hash, 2)
        assert [running.id for running in status.active] == ["a"]
        assert status.active[0].lease_until == bench.now + LEASE
        assert [waiting.id for waiting in status.next] == ["b", "c"]
        assert status.takeovers == 0

    async def test_key_without_living_jobs_is_none(self, bench: Bench) -> None:
        assert await bench.engine.key(bench.service, K.hash) is None
        await bench.add("a", key=K)
        await bench.run()
        assert await bench.engine.key(bench.service, K.hash) is None

    async def test_fresh_lease_blocks_the_key(self, bench: Bench) -> None:
        await bench.add("a", key=STALE)
        await bench.add("b", key=STALE)
        await bench.start()
        bench.tick(LEASE - 1)
        assert await bench.rescue() == []
        assert await bench.claimed_ids() == []

    async def test_takeover_ends_the_old_job_stale_and_runs_the_next(self, bench: Bench) -> None:
        await bench.add("old", key=STALE)
        await bench.add("new", key=STALE)
        old = await bench.start()
        bench.tick(LEASE)
        await bench.rescue()
        assert await bench.state("old") is State.STALE
        new = await bench.start(worker="w2")
        refused(await bench.settle(old, Completed()))
        assert (await bench.story("old"))[-1] is EventType.STALE_COMPLETION_IGNORED
        assert (await bench.key(STALE)).takeovers == 1
        assert (await bench.complete(new)).id == "new"
        assert await bench.state("old") is State.STALE

    async def test_lost_job_that_nobody_waits_for_runs_again(self, bench: Bench) -> None:
        await bench.add("a", key=STALE)
        await bench.start()
        bench.tick(LEASE)
        await bench.rescue()
        assert (await bench.start(worker="w2")).id == "a"

    async def test_takeovers_are_told_in_the_journal(self, bench: Bench) -> None:
        await bench.add("a", key=K)
        for _ in range(2):
            await bench.start()
            bench.tick(LEASE)
            await bench.rescue()
        slots = [event.slot for event in await bench.events("a")]
        assert [slot.takeovers for slot in slots if slot and slot.takeovers] == [1, 2]

    async def test_blocked_key_waits_for_its_owner(self, bench: Bench) -> None:
        await bench.add("a", key=BLOCK)
        await bench.add("b", key=BLOCK)
        job = await bench.start()
        bench.tick(10 * LEASE)
        assert await bench.rescue() == []
        assert await bench.claimed_ids() == []
        await bench.complete(job)
        assert await bench.claimed_ids() == ["b"]

    async def test_operator_releases_a_blocked_key(self, bench: Bench) -> None:
        await bench.add("a", key=BLOCK)
        await bench.add("b", key=BLOCK)
        job = await bench.start()
        refused(await bench.apply(actions.release(job, bench.now, "too early")))
        bench.tick(LEASE)
        ended = made(await bench.apply(actions.release(job, bench.now, "gone")))
        assert ended.state is State.STALE
        assert await bench.claimed_ids() == ["b"]
        assert (await bench.key(BLOCK)).takeovers == 1
        refused(await bench.settle(job, Completed()))

    async def test_parked_job_says_so(self, bench: Bench) -> None:
        await bench.add("a", key=K)
        await bench.start()
        job = await bench.add("b", key=K)
        assert (job.stage, job.shown(bench.now)) == (Stage.PARKED, "parked")
        assert job.tries == 0
