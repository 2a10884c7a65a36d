"""Cancelling (FEATURES 8.4)."""

from __future__ import annotations

from headrace.core import actions
from headrace.core.claims import Renewal
from headrace.core.outcome import Cancelled, Completed, Detached, Returned, Snoozed
from headrace.core.states import EventType, State
from headrace.testing.conformance.bench import LEASE, Bench, failed, key, made, refused


class Cancelling:
    """Waiting jobs end at once; running ones are asked, and keep their slot until they stop."""

    async def test_waiting_job_is_cancelled_at_once_and_never_starts(self, bench: Bench) -> None:
        job = await bench.add("a")
        ended = made(await bench.cancel(job, "wrong one"))
        assert (ended.state, ended.finished_at) == (State.CANCELLED, bench.now)
        assert (await bench.events("a"))[-1].reason == "wrong one"
        assert await bench.claimed_ids() == []

    async def test_job_can_be_cancelled_wherever_it_waits(self, bench: Bench) -> None:
        parent = await bench.add("parent", delay=10)
        blocked = await bench.add("blocked", depends_on=("parent",))
        await bench.add("failed-once", max_tries=5)
        retry = await bench.fail(await bench.start(), after=100)
        for job in (blocked, parent, retry):
            assert made(await bench.cancel(job)).state is State.CANCELLED

    async def test_running_job_is_asked_and_goes_on(self, bench: Bench) -> None:
        await bench.add("a")
        job = await bench.start()
        asked = made(await bench.cancel(job, "please"))
        assert (asked.state, asked.cancelling) == (State.ACTIVE, "please")
        assert await bench.extend(job) == [Renewal(True, "please")]
        assert await bench.story("a") == [
            EventType.CREATED,
            EventType.STARTED,
            EventType.CANCELLING,
        ]

    async def test_owner_ends_the_asked_job_cancelled(self, bench: Bench) -> None:
        await bench.add("a")
        job = await bench.start()
        await bench.cancel(job, "please")
        ended = made(await bench.settle(job, Cancelled()))
        assert (ended.state, ended.cancelling) == (State.CANCELLED, None)
        assert (await bench.events("a"))[-1].reason == "please"

    async def test_handler_that_finished_has_finished(self, bench: Bench) -> None:
        await bench.add("a")
        job = await bench.start()
        await bench.cancel(job)
        assert (await bench.complete(job)).state is State.COMPLETED

    async def test_asked_job_that_fails_is_cancelled_instead_of_retried(self, bench: Bench) -> None:
        await bench.add("a", max_tries=5)
        job = await bench.start()
        await bench.cancel(job, "please")
        assert (await bench.fail(job)).state is State.CANCELLED
        assert (await bench.events("a"))[-1].reason == "please"

    async def test_asked_job_that_is_given_back_is_cancelled(self, bench: Bench) -> None:
        for id, outcome in (("a", Returned()), ("b", Snoozed(bench.now + 5))):
            await bench.add(id)
            job = await bench.start()
            await bench.cancel(job)
            assert made(await bench.settle(job, outcome)).state is State.CANCELLED
            assert (await bench.job(id)).id == id

    async def test_asked_job_whose_worker_dies_is_cancelled_by_rescue(self, bench: Bench) -> None:
        await bench.add("a")
        await bench.cancel(await bench.start())
        bench.tick(LEASE)
        await bench.rescue()
        assert await bench.state("a") is State.CANCELLED

    async def test_asked_job_that_wants_to_detach_is_cancelled(self, bench: Bench) -> None:
        await bench.add("a")
        job = await bench.start()
        await bench.cancel(job)
        answer = await bench.settle(job, Detached(bench.now + 1000))
        assert made(answer).state is State.CANCELLED

    async def test_slot_is_not_given_away_while_the_handler_runs(self, bench: Bench) -> None:
        limit = key("k")
        await bench.add("a", key=limit)
        await bench.add("b", key=limit)
        job = await bench.start()
        await bench.cancel(job)
        assert await bench.claimed_ids() == []
        await bench.settle(job, Cancelled())
        assert await bench.claimed_ids() == ["b"]

    async def test_detached_job_is_cancelled_at_once(self, bench: Bench) -> None:
        await bench.add("a")
        job = await bench.start()
        detached = made(await bench.settle(job, Detached(bench.now + 1000)))
        assert made(await bench.cancel(detached)).state is State.CANCELLED
        refused(await bench.settle(job, Completed()))

    async def test_cancel_decided_before_the_job_detached_still_ends_it(self, bench: Bench) -> None:
        await bench.add("a")
        job = await bench.start()
        change = actions.cancel(job, bench.now, "no")
        await bench.settle(job, Detached(bench.now + 1000))
        assert made(await bench.apply(change)).state is State.CANCELLED

    async def test_cancel_decided_while_detached_asks_a_later_owner(self, bench: Bench) -> None:
        await bench.add("a", max_tries=5)
        detached = made(await bench.settle(await bench.start(), Detached(bench.now + 1000)))
        change = actions.cancel(detached, bench.now, "no")
        made(await bench.settle(detached, failed(after=0)))
        await bench.start()
        asked = made(await bench.apply(change))
        assert (asked.state, asked.cancelling) == (State.ACTIVE, "no")

    async def test_ended_job_cannot_be_cancelled(self, bench: Bench) -> None:
        await bench.add("a")
        done = await bench.run()
        refused(await bench.cancel(done))
        assert await bench.job("a") == done

    async def test_late_completion_cannot_overwrite_a_cancelled_job(self, bench: Bench) -> None:
        await bench.add("a")
        job = await bench.start()
        await bench.settle(job, Cancelled("stop"))
        bench.tick(1)
        refused(await bench.settle(job, Completed()))
        assert await bench.state("a") is State.CANCELLED

    async def test_cancel_decided_on_a_waiting_job_asks_it_once_it_runs(self, bench: Bench) -> None:
        waiting = await bench.add("a")
        change = actions.cancel(waiting, bench.now, "no")
        await bench.start()
        assert made(await bench.apply(change)).state is State.ACTIVE
        assert (await bench.job("a")).cancelling == "no"

    async def test_cancel_is_forgotten_when_the_job_is_brought_back(self, bench: Bench) -> None:
        await bench.add("a")
        job = await bench.start()
        await bench.cancel(job)
        ended = made(await bench.settle(job, Cancelled()))
        made(await bench.retry(ended))
        assert await bench.extend(await bench.start()) == [Renewal(True)]
