"""Leases and fencing (FEATURES 2.3, 3.1, 5.9, 8.2, 8.3)."""

from __future__ import annotations

import asyncio

from headrace.core import actions
from headrace.core.claims import Lease, Renewal
from headrace.core.model import Job, LogEntry, Progress
from headrace.core.outcome import Completed, Failed, Outcome, Problem, Returned, Snoozed, Terminated
from headrace.core.states import EventType, State
from headrace.testing.conformance.bench import LEASE, Bench, made, refused

PROBLEM = Problem("ValueError", "boom")


class Leases:
    """One owner at a time; whoever lost the lease can do nothing any more."""

    async def test_claim_hands_out_a_lease_and_counts_the_try(self, bench: Bench) -> None:
        await bench.add("a")
        job = await bench.start(worker="w7")
        assert (job.state, job.tries, job.worker) == (State.ACTIVE, 1, "w7")
        assert (job.lease_until, job.started_at) == (bench.now + LEASE, bench.now)
        assert await bench.job("a") == job

    async def test_running_job_is_not_handed_out_again(self, bench: Bench) -> None:
        await bench.add("a")
        await bench.start()
        bench.tick(10 * LEASE)
        assert await bench.claimed_ids() == []

    async def test_each_job_goes_to_one_of_many_workers(self, bench: Bench) -> None:
        for n in range(50):
            await bench.add(f"j{n}")
        taken = await asyncio.gather(*(bench.claim(10, worker=f"w{n}") for n in range(8)))
        ids = [job.id for jobs in taken for job in jobs]
        assert sorted(ids) == sorted(f"j{n}" for n in range(50))

    async def test_token_grows_with_every_claim(self, bench: Bench) -> None:
        await bench.add("a")
        tokens = [0]
        for _ in range(3):
            job = await bench.start()
            tokens.append(job.token)
            await bench.settle(job, Returned())
        assert tokens == sorted(set(tokens))

    async def test_renewed_lease_lasts(self, bench: Bench) -> None:
        await bench.add("a")
        job = await bench.start()
        bench.tick(LEASE - 1)
        assert await bench.extend(job) == [Renewal(True)]
        assert (await bench.job("a")).lease_until == bench.now + LEASE
        bench.tick(LEASE - 1)
        assert await bench.rescue() == []
        assert (await bench.complete(job)).state is State.COMPLETED

    async def test_renewal_answers_for_each_lease(self, bench: Bench) -> None:
        for id in "abc":
            await bench.add(id)
        a, b, c = await bench.claim(3)
        await bench.complete(a)
        await bench.cancel(b, "why")
        renewals = await bench.extend(a, b, c)
        assert renewals == [Renewal(False), Renewal(True, "why"), Renewal(True)]

    async def test_renewal_of_an_unknown_job_is_not_held(self, bench: Bench) -> None:
        assert await bench.engine.extend([Lease("no", 1, 1)], bench.now) == [Renewal(False)]
        assert await bench.engine.extend([], bench.now) == []

    async def test_only_held_leases_are_renewed(self, bench: Bench) -> None:
        await bench.add("a")
        old = await bench.start()
        bench.tick(LEASE)
        await bench.rescue()
        new = await bench.start(worker="w2")
        bench.tick(5)
        assert await bench.extend(old) == [Renewal(False)]
        assert await bench.job("a") == new

    async def test_old_and_new_lease_of_one_job_are_told_apart_in_one_renewal(
        self, bench: Bench
    ) -> None:
        old = await lost_to_another(bench)
        new = await bench.job("a")
        assert await bench.extend(old, new) == [Renewal(False), Renewal(True)]
        assert await bench.extend(new, old) == [Renewal(True), Renewal(False)]

    async def test_lapsed_lease_sends_the_job_elsewhere(self, bench: Bench) -> None:
        await bench.add("a")
        await bench.start()
        bench.tick(LEASE - 1)
        assert await bench.rescue() == []
        bench.tick(1)
        assert made((await bench.rescue())[0]).state is State.RETRY
        job = await bench.start(worker="w2")
        assert (job.tries, job.worker) == (2, "w2")

    async def test_rescued_job_is_not_sent_to_the_back_of_the_line(self, bench: Bench) -> None:
        await bench.add("old")
        await bench.start()
        await bench.add("new")
        bench.tick(LEASE)
        await bench.rescue()
        assert (await bench.start()).id == "old"

    async def test_rescued_job_keeps_the_lost_lease_as_an_error(self, bench: Bench) -> None:
        await bench.add("a")
        await bench.start()
        bench.tick(LEASE)
        await bench.rescue()
        (error,) = await bench.errors("a")
        assert (error.type, error.number, error.at) == ("LeaseLost", 1, bench.now)

    async def test_lapsed_lease_still_completes_while_nobody_took_the_job(
        self, bench: Bench
    ) -> None:
        await bench.add("a")
        job = await bench.start()
        bench.tick(10 * LEASE)
        assert (await bench.complete(job)).state is State.COMPLETED

    async def test_expired_lease_cannot_complete_job(self, bench: Bench) -> None:
        old = await lost_to_another(bench)
        stored = await bench.job("a")
        answer = refused(await bench.settle(old, Completed()))
        assert "lease" in answer.reason
        assert await bench.job("a") == stored

    async def test_expired_lease_cannot_end_or_give_back_job(self, bench: Bench) -> None:
        old = await lost_to_another(bench)
        stored = await bench.job("a")
        outcomes: list[Outcome] = [
            Failed(PROBLEM),
            Terminated(PROBLEM),
            Snoozed(bench.now),
            Returned(),
        ]
        for outcome in outcomes:
            refused(await bench.settle(old, outcome))
        assert await bench.job("a") == stored
        assert len(await bench.errors("a")) == 1

    async def test_expired_lease_cannot_log_or_report(self, bench: Bench) -> None:
        old = await lost_to_another(bench)
        refused(await bench.report(old, Progress("late")))
        refused(await bench.report(old, logs=[LogEntry(bench.now, "info", "late")]))
        details = await bench.details("a")
        assert (details.job.progress, details.logs) == (None, ())

    async def test_late_finish_is_journaled_and_changes_nothing(self, bench: Bench) -> None:
        old = await lost_to_another(bench)
        stored = await bench.job("a")
        await bench.settle(old, Completed())
        event = (await bench.events("a"))[-1]
        assert event.event is EventType.STALE_COMPLETION_IGNORED
        assert (event.state, event.reason) == (State.ACTIVE, "completed")
        assert await bench.job("a") == stored

    async def test_late_finish_is_journaled_though_the_job_is_deleted_in_the_same_step(
        self, bench: Bench
    ) -> None:
        await bench.add("a")
        old = await bench.start()
        waiting = await bench.fail(old, after=0)
        late = await bench.settled(old, Completed())
        await bench.engine.apply([late, actions.delete(waiting, bench.now)])
        assert (await bench.story("a"))[-2:] == [
            EventType.STALE_COMPLETION_IGNORED,
            EventType.CANCELLED,
        ]
        assert not await bench.exists("a")

    async def test_new_owner_completes_after_the_old_one_was_refused(self, bench: Bench) -> None:
        old = await lost_to_another(bench)
        await bench.settle(old, Completed())
        assert (await bench.complete(await bench.job("a"), "new")).state is State.COMPLETED

    async def test_first_of_two_ends_wins(self, bench: Bench) -> None:
        await bench.add("a")
        job = await bench.start()
        await bench.complete(job, 1)
        refused(await bench.settle(job, Terminated(PROBLEM)))
        assert (await bench.job("a")).state is State.COMPLETED

    async def test_of_two_rescuers_one_wins(self, bench: Bench) -> None:
        await bench.add("a")
        job = await bench.start()
        bench.tick(LEASE)
        change = await bench.lost(job)
        bench.tick(1)
        late = await bench.lost(job)
        made(await bench.apply(change))
        refused(await bench.apply(late))
        assert len(await bench.errors("a")) == 1

    async def test_renewal_between_look_and_rescue_keeps_the_job(self, bench: Bench) -> None:
        await bench.add("a")
        job = await bench.start()
        bench.tick(LEASE)
        change = await bench.lost(await bench.job("a"))
        await bench.extend(job)
        refused(await bench.apply(change))
        assert (await bench.complete(job)).state is State.COMPLETED

    async def test_rescue_leaves_no_trace_when_refused(self, bench: Bench) -> None:
        await bench.add("a")
        job = await bench.start()
        refused(await bench.apply(await bench.lost(job)))
        assert await bench.story("a") == [EventType.CREATED, EventType.STARTED]

    async def test_job_that_kills_its_worker_each_time_runs_out_of_tries(
        self, bench: Bench
    ) -> None:
        await bench.add("a", max_tries=3)
        for _ in range(3):
            await bench.start()
            bench.tick(LEASE)
            await bench.rescue()
        assert await bench.state("a") is State.DEAD
        assert [error.number for error in await bench.errors("a")] == [1, 2, 3]

    async def test_all_jobs_of_a_killed_worker_run_elsewhere(self, bench: Bench) -> None:
        for n in range(10):
            await bench.add(f"j{n}")
        await bench.claim(10, worker="killed")
        bench.tick(LEASE)
        assert len(await bench.rescue()) == 10
        assert len(await bench.claim(20, worker="w2")) == 10

    async def test_rescued_jobs_re_enter_by_priority(self, bench: Bench) -> None:
        await bench.add("low", priority=9)
        await bench.add("high", priority=1)
        await bench.claim(2)
        bench.tick(LEASE)
        await bench.add("middle", priority=5)
        await bench.rescue()
        assert await bench.claimed_ids() == ["high", "middle", "low"]

    async def test_waiting_job_cannot_be_completed(self, bench: Bench) -> None:
        job = await bench.add("a")
        refused(await bench.settle(job, Completed()))
        refused(await bench.report(job, Progress("early")))
        assert await bench.state("a") is State.PENDING

    async def test_change_of_an_unknown_job_is_refused(self, bench: Bench) -> None:
        job = await bench.add("a")
        await bench.delete(job)
        assert refused(await bench.apply(actions.retry(job, bench.now))).job is None

    async def test_batch_of_changes_is_answered_one_by_one(self, bench: Bench) -> None:
        await bench.add("a")
        waiting = await bench.add("b")
        job = await bench.start()
        changes = [
            await bench.settled(waiting, Completed()),
            await bench.settled(job, Completed()),
            actions.cancel(waiting, bench.now, "no"),
        ]
        first, second, third = await bench.engine.apply(changes)
        refused(first)
        assert made(second).state is State.COMPLETED
        assert made(third).state is State.CANCELLED

    async def test_lease_lapses_at_its_last_millisecond_and_not_before(self, bench: Bench) -> None:
        await bench.add("a")
        job = await bench.start(lease=1000)
        bench.tick(999)
        refused(await bench.apply(await bench.lost(job)))
        bench.tick(1)
        made(await bench.apply(await bench.lost(job)))


async def lost_to_another(bench: Bench) -> Job:
    """Job `a` as its first owner knew it, now run by another worker."""
    await bench.add("a")
    old = await bench.start()
    bench.tick(LEASE)
    await bench.rescue()
    await bench.start(worker="w2")
    return old
