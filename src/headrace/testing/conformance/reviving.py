"""Retry, replay, dismiss, delete (FEATURES 2.3, 3.5)."""

from __future__ import annotations

from headrace.core import actions
from headrace.core.model import Job, LogEntry, Progress
from headrace.core.outcome import Completed
from headrace.core.queue import QueueSettings
from headrace.core.states import FINAL, EventType, State
from headrace.testing.conformance.bench import Bench, made, raw, refused


class Reviving:
    """Ended jobs come back only when someone says so."""

    async def test_retried_job_has_its_identity_and_nothing_of_its_past(self, bench: Bench) -> None:
        await bench.add("a", max_tries=1, payload={"n": 1})
        job = await bench.start()
        await bench.report(job, Progress("half"))
        await bench.report(job, logs=[LogEntry(bench.now, "info", "x")])
        back = made(await bench.retry(await bench.fail(job)))
        assert (back.id, back.state, back.tries) == ("a", State.PENDING, 0)
        assert (back.result, back.error, back.progress) == (None, None, None)
        assert (back.started_at, back.finished_at) == (None, None)
        assert back.spec == job.spec
        details = await bench.details("a")
        assert (details.errors, details.logs) == ((), ())

    async def test_retried_job_runs_to_completion(self, bench: Bench) -> None:
        await bench.add("a", max_tries=1)
        await bench.retry(await bench.kill("a"))
        assert (await bench.start()).tries == 1
        assert await bench.story("a") == [
            EventType.CREATED,
            EventType.STARTED,
            EventType.DEAD,
            EventType.RETRIED,
            EventType.STARTED,
        ]

    async def test_completed_job_can_be_run_again(self, bench: Bench) -> None:
        await bench.add("a")
        await bench.retry(await bench.run(result=1))
        assert (await bench.run(result=2)).result == raw(2)

    async def test_every_ended_job_but_a_dismissed_one_can_be_retried(self, bench: Bench) -> None:
        ended = await one_of_each_end(bench)
        assert set(ended) == FINAL
        dismissed = ended.pop(State.DISMISSED)
        refused(await bench.retry(dismissed))
        for state, job in ended.items():
            assert made(await bench.retry(job)).state is State.PENDING, state

    async def test_waiting_or_running_job_cannot_be_retried(self, bench: Bench) -> None:
        waiting = await bench.add("a")
        refused(await bench.retry(waiting))
        running = await bench.start()
        refused(await bench.retry(running))
        assert await bench.job("a") == running

    async def test_deadline_that_has_passed_is_dropped(self, bench: Bench) -> None:
        await bench.add("a", deadline=bench.now + 100)
        bench.tick(100)
        await bench.expire()
        back = made(await bench.retry(await bench.job("a")))
        assert (back.deadline, back.expires_at) == (None, None)
        assert await bench.claimed_ids() == ["a"]

    async def test_deadline_to_come_is_kept(self, bench: Bench) -> None:
        deadline = bench.now + 1000
        await bench.add("a", deadline=deadline)
        back = made(await bench.retry(await bench.run()))
        assert (back.deadline, back.expires_at) == (deadline, deadline)

    async def test_dead_job_can_be_replayed_and_only_a_dead_one(self, bench: Bench) -> None:
        await bench.add("a", max_tries=1)
        dead = await bench.kill("a")
        assert made(await bench.apply(actions.replay(dead, bench.now))).state is State.PENDING
        done = await bench.run()
        refused(await bench.apply(actions.replay(done, bench.now)))

    async def test_dead_job_can_be_dismissed_and_only_a_dead_one(self, bench: Bench) -> None:
        await bench.add("a", max_tries=1)
        dead = await bench.kill("a")
        gone = made(await bench.apply(actions.dismiss(dead, bench.now, "known")))
        assert (gone.state, gone.finished_at) == (State.DISMISSED, bench.now)
        refused(await bench.apply(actions.dismiss(gone, bench.now)))
        await bench.add("b")
        refused(await bench.apply(actions.dismiss(await bench.run(), bench.now)))

    async def test_old_owner_cannot_touch_a_retried_job(self, bench: Bench) -> None:
        await bench.add("a", max_tries=1)
        job = await bench.start()
        await bench.retry(await bench.fail(job))
        bench.tick(1)
        refused(await bench.settle(job, Completed()))
        assert await bench.state("a") is State.PENDING

    async def test_ended_job_can_be_deleted(self, bench: Bench) -> None:
        await bench.add("a")
        made(await bench.delete(await bench.run()))
        assert not await bench.exists("a")
        assert await bench.counts() == {}
        assert (await bench.story("a"))[-1] is EventType.DELETED

    async def test_waiting_job_that_is_deleted_is_cancelled_first(self, bench: Bench) -> None:
        made(await bench.delete(await bench.add("a")))
        assert not await bench.exists("a")
        assert await bench.claimed_ids() == []
        assert await bench.story("a") == [EventType.CREATED, EventType.CANCELLED]

    async def test_running_job_cannot_be_deleted(self, bench: Bench) -> None:
        await bench.add("a")
        running = await bench.start()
        refused(await bench.delete(running))
        assert await bench.job("a") == running

    async def test_deleted_job_leaves_nothing_to_its_successor(self, bench: Bench) -> None:
        await bench.add("a", max_tries=1)
        job = await bench.start()
        await bench.report(job, logs=[LogEntry(bench.now, "info", "x")])
        await bench.delete(await bench.fail(job))
        await bench.add("a")
        details = await bench.details("a")
        assert (details.errors, details.logs, details.job.tries) == ((), (), 0)


async def one_of_each_end(bench: Bench) -> dict[State, Job]:
    """A job that ended in each of the final states which operators and workers bring about."""
    await bench.add("dead", max_tries=1)
    await bench.kill("dead")
    await bench.add("dismissed", max_tries=1)
    await bench.apply(actions.dismiss(await bench.kill("dismissed"), bench.now))
    await bench.add("child", depends_on=("dead",))
    await bench.add("completed")
    await bench.run()
    await bench.cancel(await bench.add("cancelled"))
    await bench.apply(actions.skip(await bench.add("skipped"), bench.now, "replaced"))
    await bench.add("expired", deadline=bench.now - 1)
    await bench.expire()
    await bench.add("stale")
    stale = await bench.start(lease=0)
    await bench.apply(actions.release(stale, bench.now, "gone"))
    await bench.set_queue(QueueSettings(dead_letters=False), "plain")
    await bench.add("failed", queue="plain", max_tries=1)
    await bench.fail(await bench.start("plain"))
    ids = ("child", "dead", "dismissed", "completed", "cancelled", "skipped", "expired", "stale")
    jobs = [await bench.job(id) for id in (*ids, "failed")]
    return {job.state: job for job in jobs}
