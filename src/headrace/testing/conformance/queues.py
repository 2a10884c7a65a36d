"""Queue settings (FEATURES 5.1, 5.4, 5.6, 5.10): pauses, caps, entries, rates, shares."""

from __future__ import annotations

import asyncio

from headrace.core import actions
from headrace.core.admission import Outcome
from headrace.core.claims import ClaimRequest, Share
from headrace.core.model import Stage
from headrace.core.outcome import Detached
from headrace.core.queue import Discard, QueueSettings, RateLimit
from headrace.core.states import EventType, State
from headrace.testing.conformance.bench import LEASE, Bench


class Queues:
    """A queue's settings hold over all workers, from the moment they are written."""

    async def test_paused_queue_hands_out_nothing_until_it_is_resumed(self, bench: Bench) -> None:
        await bench.add("a")
        await bench.set_queue(QueueSettings(paused=True))
        offer = await bench.offer()
        assert (offer.jobs, offer.next_due) == ((), None)
        await bench.set_queue(QueueSettings())
        assert await bench.claimed_ids() == ["a"]

    async def test_paused_queue_takes_jobs_and_finishes_running_ones(self, bench: Bench) -> None:
        await bench.add("a")
        job = await bench.start()
        await bench.set_queue(QueueSettings(paused=True))
        assert (await bench.complete(job)).state is State.COMPLETED
        assert (await bench.add("b")).shown(bench.now, paused=True) == "paused"

    async def test_resumed_queue_goes_on_in_its_order(self, bench: Bench) -> None:
        for id in ("a", "b", "c", "d"):
            await bench.add(id)
        await bench.apply(actions.reprioritise(await bench.job("c"), bench.now, 0))
        assert await bench.claimed_ids(1) == ["c"]
        await bench.set_queue(QueueSettings(paused=True))
        assert await bench.claimed_ids() == []
        await bench.set_queue(QueueSettings())
        assert await bench.claimed_ids() == ["a", "b", "d"]

    async def test_pause_holds_delayed_jobs_that_became_due(self, bench: Bench) -> None:
        await bench.add("a", delay=10)
        await bench.set_queue(QueueSettings(paused=True))
        bench.tick(10)
        assert await bench.claimed_ids() == []
        await bench.set_queue(QueueSettings())
        assert await bench.claimed_ids() == ["a"]

    async def test_pause_of_one_queue_leaves_others_running(self, bench: Bench) -> None:
        await bench.add("a")
        await bench.add("b", queue="q2")
        await bench.set_queue(QueueSettings(paused=True))
        assert await bench.claimed_ids(10, "q", "q2") == ["b"]

    async def test_draining_queue_refuses_new_jobs_and_finishes_old_ones(
        self, bench: Bench
    ) -> None:
        await bench.add("a")
        await bench.set_queue(QueueSettings(draining=True))
        verdict = await bench.submit("b")
        assert (verdict.outcome, verdict.reason) == (Outcome.REJECTED, "queue-draining")
        assert await bench.claimed_ids() == ["a"]

    async def test_cap_holds_over_all_workers(self, bench: Bench) -> None:
        await bench.set_queue(QueueSettings(max_active=2))
        for n in range(5):
            await bench.add(f"j{n}")
        taken = await asyncio.gather(*(bench.claim(3, worker=f"w{n}") for n in range(4)))
        jobs = [job for claimed in taken for job in claimed]
        assert len(jobs) == 2
        await bench.complete(jobs[0])
        assert len(await bench.claim(5)) == 1

    async def test_caps_of_several_queues_hold_together(self, bench: Bench) -> None:
        for queue, cap in (("a", 4), ("b", 3), ("c", 3)):
            await bench.set_queue(QueueSettings(max_active=cap), queue)
            for _ in range(12):
                await bench.add(queue=queue)
        assert len(await bench.claim(100, "a", "b", "c")) == 10

    async def test_cap_of_zero_hands_out_nothing(self, bench: Bench) -> None:
        await bench.set_queue(QueueSettings(max_active=0))
        await bench.add("a")
        assert await bench.claimed_ids() == []

    async def test_lowered_cap_lets_running_jobs_finish(self, bench: Bench) -> None:
        for n in range(4):
            await bench.add(f"j{n}")
        running = await bench.claim(3)
        await bench.set_queue(QueueSettings(max_active=1))
        for job in running:
            assert await bench.claimed_ids() == []
            await bench.complete(job)
        assert await bench.claimed_ids() == ["j3"]

    async def test_raised_cap_holds_at_once(self, bench: Bench) -> None:
        await bench.set_queue(QueueSettings(max_active=1))
        await bench.add("a")
        await bench.add("b")
        assert await bench.claimed_ids() == ["a"]
        await bench.set_queue(QueueSettings(max_active=2))
        assert await bench.claimed_ids() == ["b"]

    async def test_detached_job_counts_against_the_cap(self, bench: Bench) -> None:
        await bench.set_queue(QueueSettings(max_active=1))
        await bench.add("a")
        await bench.add("b")
        await bench.settle(await bench.start(), Detached(bench.now + 1000))
        assert await bench.claimed_ids() == []

    async def test_full_queue_refuses_new_jobs(self, bench: Bench) -> None:
        await bench.set_queue(QueueSettings(max_entries=2))
        await bench.add("a", delay=1000)
        await bench.add("b")
        verdict = await bench.submit("c")
        assert (verdict.outcome, verdict.reason) == (Outcome.REJECTED, "queue-full")
        await bench.start()
        assert (await bench.submit("c")).outcome is Outcome.ACCEPTED

    async def test_full_queue_may_discard_the_oldest_instead(self, bench: Bench) -> None:
        await bench.set_queue(QueueSettings(max_entries=2, discard=Discard.OLD))
        await bench.add("a", priority=0)
        await bench.add("b", priority=9)
        verdict = await bench.submit("c")
        assert (verdict.outcome, verdict.replaced) == (Outcome.REPLACED, ("a",))
        assert await bench.state("a") is State.SKIPPED
        assert await bench.claimed_ids() == ["c", "b"]

    async def test_running_job_is_never_discarded(self, bench: Bench) -> None:
        await bench.set_queue(QueueSettings(max_entries=1, discard=Discard.OLD))
        await bench.add("a")
        await bench.start()
        assert (await bench.submit("b")).outcome is Outcome.ACCEPTED
        assert (await bench.submit("c")).replaced == ("b",)

    async def test_skipped_job_is_journaled_before_the_one_that_replaced_it(
        self, bench: Bench
    ) -> None:
        await bench.set_queue(QueueSettings(max_entries=1, discard=Discard.OLD))
        await bench.add("a")
        await bench.add("b")
        told = [(event.job_id, event.event) for event in await bench.events()]
        assert told[1:] == [("a", EventType.SKIPPED), ("b", EventType.CREATED)]

    async def test_max_age_of_the_queue_expires_jobs_that_did_not_start(self, bench: Bench) -> None:
        await bench.set_queue(QueueSettings(max_age=1000))
        await bench.add("a")
        bench.tick(1000)
        assert await bench.claimed_ids() == []
        assert await bench.state("a") is State.EXPIRED

    async def test_rate_limit_holds_over_all_workers(self, bench: Bench) -> None:
        await bench.set_queue(QueueSettings(rate=RateLimit(10, 1000, burst=3)))
        for _ in range(20):
            await bench.add()
        taken = await asyncio.gather(*(bench.claim(5, worker=f"w{n}") for n in range(3)))
        assert sum(len(jobs) for jobs in taken) == 3
        bench.tick(100)
        assert len(await bench.claim(5)) == 1
        bench.tick(10_000)
        assert len(await bench.claim(50)) == 3

    async def test_rate_limited_claim_says_when_to_come_back(self, bench: Bench) -> None:
        await bench.set_queue(QueueSettings(rate=RateLimit(10, 1000)))
        await bench.add("a")
        await bench.add("b")
        offer = await bench.offer(2)
        assert ([job.id for job in offer.jobs], offer.next_due) == (["a"], bench.now + 100)
        bench.tick(99)
        assert await bench.claimed_ids() == []
        bench.tick(1)
        assert await bench.claimed_ids() == ["b"]

    async def test_retries_count_against_the_rate(self, bench: Bench) -> None:
        await bench.set_queue(QueueSettings(rate=RateLimit(1, 1000)))
        await bench.add("a")
        await bench.fail(await bench.start(), after=0)
        assert await bench.claimed_ids() == []
        bench.tick(1000)
        assert await bench.claimed_ids() == ["a"]

    async def test_rate_of_zero_blocks(self, bench: Bench) -> None:
        await bench.set_queue(QueueSettings(rate=RateLimit(0, 1000)))
        await bench.add("a")
        bench.tick(10**9)
        offer = await bench.offer()
        assert (offer.jobs, offer.next_due) == ((), None)

    async def test_settings_follow_the_document(self, bench: Bench) -> None:
        await bench.set_queue(QueueSettings(max_tries=2))
        await bench.set_queue(QueueSettings(max_tries=4))
        assert (await bench.add()).max_tries == 4

    async def test_settings_of_one_service_leave_another_s_queue_alone(self, bench: Bench) -> None:
        await bench.set_queue(QueueSettings(paused=True, max_entries=1))
        bench.service = "other"
        await bench.add("a")
        await bench.add("b")
        assert await bench.claimed_ids() == ["a", "b"]

    async def test_shares_are_served_in_turn_up_to_their_size(self, bench: Bench) -> None:
        for queue in ("high", "low"):
            for n in range(4):
                await bench.add(f"{queue}{n}", queue=queue)
        shares = (Share("high", 2), Share("low", 1), Share("high", 1))
        claimed = await bench.engine.claim(claim_of(bench, shares, 10))
        assert [job.id for job in claimed.jobs] == ["high0", "high1", "low0", "high2"]

    async def test_limit_ends_a_claim_before_the_last_share(self, bench: Bench) -> None:
        for queue in ("high", "low"):
            for n in range(3):
                await bench.add(f"{queue}{n}", queue=queue)
        shares = (Share("high", 3), Share("low", 3))
        claimed = await bench.engine.claim(claim_of(bench, shares, 4))
        assert [job.id for job in claimed.jobs] == ["high0", "high1", "high2", "low0"]

    async def test_cap_holds_when_a_queue_is_named_twice(self, bench: Bench) -> None:
        await bench.set_queue(QueueSettings(max_active=3))
        for _ in range(6):
            await bench.add()
        shares = (Share("q", 2), Share("q", 2))
        assert len((await bench.engine.claim(claim_of(bench, shares, 10))).jobs) == 3

    async def test_stage_tells_why_a_job_does_not_run(self, bench: Bench) -> None:
        delayed = await bench.add("a", delay=10)
        assert (delayed.stage, delayed.shown(bench.now)) == (Stage.DELAYED, "scheduled")
        ready = await bench.add("b")
        assert ready.shown(bench.now) == "pending"
        assert (await bench.start()).shown(bench.now) == "active"


def claim_of(bench: Bench, shares: tuple[Share, ...], limit: int) -> ClaimRequest:
    return ClaimRequest(
        service=bench.service, worker="w1", shares=shares, limit=limit, lease=LEASE, now=bench.now
    )
