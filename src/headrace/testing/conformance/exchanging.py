"""Handing in and claiming in one step: changes come first, and what they make room for is there."""

from __future__ import annotations

from headrace.core.claims import ClaimRequest, Share
from headrace.core.model import Job
from headrace.core.outcome import Completed, Returned
from headrace.core.queue import QueueSettings
from headrace.core.states import EventType, State
from headrace.testing.conformance.bench import LEASE, Bench, failed, key, made, raw, refused

K = key("k")


def request_of(bench: Bench, limit: int = 1, worker: str = "w1") -> ClaimRequest:
    return ClaimRequest(
        service=bench.service,
        worker=worker,
        shares=(Share("q", limit),),
        limit=limit,
        lease=LEASE,
        now=bench.now,
    )


class Exchanging:
    """`claim` with changes."""

    async def test_changes_are_made_and_jobs_handed_out(self, bench: Bench) -> None:
        for id in ("a", "b", "c"):
            await bench.add(id)
        running = await bench.claim(2)
        changes = [await bench.settled(job, Completed(raw(job.id))) for job in running]
        claimed = await bench.engine.claim(request_of(bench, 5), changes)
        assert [made(answer).id for answer in claimed.answers] == ["a", "b"]
        assert [job.id for job in claimed.jobs] == ["c"]
        assert await bench.states("a", "b", "c") == [
            State.COMPLETED,
            State.COMPLETED,
            State.ACTIVE,
        ]
        assert bytes((await bench.job("a")).result or b"") == b'"a"'

    async def test_place_under_the_cap_that_a_change_frees_is_taken(self, bench: Bench) -> None:
        await bench.set_queue(QueueSettings(max_active=1))
        await bench.add("a")
        await bench.add("b")
        job = await bench.start()
        claimed = await self.exchange(bench, job)
        assert [job.id for job in claimed] == ["b"]

    async def test_slot_of_a_key_that_a_change_frees_is_taken(self, bench: Bench) -> None:
        await bench.add("a", key=K)
        await bench.add("b", key=K)
        job = await bench.start()
        claimed = await self.exchange(bench, job)
        assert [job.id for job in claimed] == ["b"]
        assert [job.id for job in (await bench.key(K)).active] == ["b"]

    async def test_dependent_that_a_change_releases_is_taken(self, bench: Bench) -> None:
        await bench.add("parent")
        await bench.add("child", depends_on=("parent",))
        claimed = await self.exchange(bench, await bench.start())
        assert [job.id for job in claimed] == ["child"]
        events = [(event.job_id, event.event) for event in await bench.events()]
        assert events[-3:] == [
            ("parent", EventType.COMPLETED),
            ("child", EventType.RELEASED),
            ("child", EventType.STARTED),
        ]

    async def exchange(self, bench: Bench, job: Job) -> tuple[Job, ...]:
        change = await bench.settled(job, Completed())
        return (await bench.engine.claim(request_of(bench, 5), [change])).jobs

    async def test_job_that_is_given_back_can_be_had_again_with_a_new_token(
        self, bench: Bench
    ) -> None:
        await bench.add("a")
        job = await bench.start()
        change = await bench.settled(job, Returned())
        claimed = await bench.engine.claim(request_of(bench, worker="w2"), [change])
        (again,) = claimed.jobs
        assert (again.id, again.worker, again.tries) == ("a", "w2", 1)
        assert again.token > job.token

    async def test_refused_change_says_why_and_hinders_nobody(self, bench: Bench) -> None:
        for id in ("a", "b", "c"):
            await bench.add(id)
        lost, other = await bench.claim(2)
        late = await bench.settled(lost, Completed())
        await bench.complete(lost)
        change = await bench.settled(other, failed(after=1000))
        claimed = await bench.engine.claim(request_of(bench, 5), [change, late, late])
        assert made(claimed.answers[0]).state is State.RETRY
        assert [made(answer).id for answer in claimed.answers[1:]] == ["a", "a"], "it is the same"
        assert [job.id for job in claimed.jobs] == ["c"]
        stranger = await bench.settled(other, Completed())
        claimed = await bench.engine.claim(request_of(bench, 5), [stranger])
        assert refused(claimed.answers[0]).job is not None
        assert claimed.jobs == ()

    async def test_changes_are_made_where_nothing_is_there_to_claim(self, bench: Bench) -> None:
        await bench.add("a")
        change = await bench.settled(await bench.start(), Completed())
        claimed = await bench.engine.claim(request_of(bench), [change])
        assert (claimed.jobs, made(claimed.answers[0]).state) == ((), State.COMPLETED)
        claimed = await bench.engine.claim(request_of(bench))
        assert (claimed.jobs, claimed.answers) == ((), ())

    async def test_repeated_exchange_changes_nothing_twice(self, bench: Bench) -> None:
        for id in ("a", "b", "c"):
            await bench.add(id)
        changes = [await bench.settled(await bench.start(), Completed(raw(1)))]
        first = await bench.engine.claim(request_of(bench), changes)
        second = await bench.engine.claim(request_of(bench), changes)
        assert made(first.answers[0]) == made(second.answers[0])
        assert [job.id for job in (*first.jobs, *second.jobs)] == ["b", "c"]
        assert await bench.story("a") == [
            EventType.CREATED,
            EventType.STARTED,
            EventType.COMPLETED,
        ]

    async def test_change_that_comes_too_late_is_noted_before_the_job_starts_again(
        self, bench: Bench
    ) -> None:
        await bench.add("a")
        first = await bench.start()
        late = await bench.settled(first, Completed())
        await bench.settle(first, Returned())
        claimed = await bench.engine.claim(request_of(bench, 5), [late])
        assert refused(claimed.answers[0]).job is not None
        assert [job.id for job in claimed.jobs] == ["a"]
        noted, started = (await bench.events())[-2:]
        assert (noted.event, noted.state) == (EventType.STALE_COMPLETION_IGNORED, State.PENDING)
        assert (started.event, started.previous) == (EventType.STARTED, State.PENDING)

    async def test_retry_that_is_handed_in_says_when_it_is_due(self, bench: Bench) -> None:
        await bench.add("a")
        await bench.add("b")
        change = await bench.settled(await bench.start(), failed(after=1000))
        claimed = await bench.engine.claim(request_of(bench), [change])
        assert [job.id for job in claimed.jobs] == ["b"]
        assert claimed.next_due == made(claimed.answers[0]).run_at
