"""The journal (FEATURES 2.5, 9.1)."""

from __future__ import annotations

from headrace.core.model import Job, LogEntry, Progress
from headrace.core.outcome import Snoozed
from headrace.core.states import EventType, State, next_state
from headrace.testing.conformance.bench import CONTEXT, LEASE, Bench, key, raw, refused

FIRST = (State.PENDING, State.BLOCKED)


class Journal:
    """Every change in order, each written with the change itself."""

    async def test_story_of_a_job_is_told_in_order(self, bench: Bench) -> None:
        await bench.add("a")
        await bench.fail(await bench.start(), after=0)
        await bench.settle(await bench.start(), Snoozed(bench.now))
        await bench.run()
        assert await bench.story("a") == [
            EventType.CREATED,
            EventType.STARTED,
            EventType.RETRY,
            EventType.STARTED,
            EventType.SNOOZED,
            EventType.STARTED,
            EventType.COMPLETED,
        ]

    async def test_each_event_leads_from_the_state_before_it(self, bench: Bench) -> None:
        await bench.add("p", max_tries=1)
        await bench.add("c", depends_on=("p",))
        await bench.retry(await bench.kill("p"))
        await bench.run()
        await bench.run()
        for id in ("p", "c"):
            state: State | None = None
            for event in await bench.events(id):
                assert event.previous is state
                expected = next_state(state, event.event)
                assert event.state is expected or (state is None and event.state in FIRST)
                state = event.state

    async def test_sequence_grows_and_the_last_is_the_job_s_version(self, bench: Bench) -> None:
        await bench.add("a")
        await bench.add("b")
        job = await bench.run()
        events = await bench.events()
        numbers = [event.seq for event in events]
        assert numbers == sorted(set(numbers))
        assert [event.seq for event in events if event.job_id == "a"][-1] == job.version

    async def test_token_is_the_sequence_of_the_newest_start(self, bench: Bench) -> None:
        await bench.add("a")
        job = await bench.start()
        assert (await bench.events("a"))[-1].seq == job.token

    async def test_cursor_resumes_without_gap_or_repeat(self, bench: Bench) -> None:
        for n in range(25):
            await bench.add(f"j{n}")
        told: list[str] = []
        after = 0
        while entries := await bench.engine.journal(after, limit=4):
            told += [entry.event.job_id for entry in entries]
            after = entries[-1].event.seq
        assert told == [f"j{n}" for n in range(25)]
        await bench.run()
        fresh = await bench.engine.journal(after)
        assert [entry.event.event for entry in fresh] == [EventType.STARTED, EventType.COMPLETED]

    async def test_journal_of_one_job_has_only_its_own(self, bench: Bench) -> None:
        await bench.add("a")
        await bench.add("b")
        await bench.run()
        assert {event.job_id for event in await bench.events("a")} == {"a"}
        assert len(await bench.engine.journal(0, limit=2, job_id="a")) == 2
        assert await bench.events("nobody") == []

    async def test_event_tells_who_what_and_when(self, bench: Bench) -> None:
        await bench.add("a", type="email:new", max_tries=4, deadline=bench.now + 10**6)
        bench.tick(5)
        await bench.fail(await bench.start(worker="w9"), after=70)
        created, started, retry = await bench.events("a")
        assert (created.at, created.service, created.queue) == (bench.now - 5, "svc", "q")
        assert (created.type, created.context) == ("email:new", CONTEXT)
        assert (started.at, started.worker, started.tries) == (bench.now, "w9", 1)
        assert (retry.error, retry.run_at) == ("ValueError: boom", bench.now + 70)
        assert (retry.max_tries, retry.deadline) == (4, bench.now - 5 + 10**6)

    async def test_created_carries_the_payload_and_completed_the_result(self, bench: Bench) -> None:
        await bench.add("a", payload={"n": 1})
        await bench.run(result={"r": 2})
        created, started, completed = await bench.entries("a")
        assert (created.payload, created.result) == (raw({"n": 1}), None)
        assert (started.payload, started.result) == (None, None)
        assert (completed.payload, completed.result) == (None, raw({"r": 2}))

    async def test_progress_and_only_new_log_entries_are_told(self, bench: Bench) -> None:
        await bench.add("a")
        job = await bench.start()
        first, second = (LogEntry(bench.now, "info", text) for text in ("one", "two"))
        await bench.report(job, logs=[first])
        await bench.report(job, logs=[second])
        await bench.report(job, Progress("half", current=1, total=2))
        logged, again, progress = (await bench.events("a"))[2:]
        assert (logged.logs, again.logs) == ((first,), (second,))
        assert progress.progress == Progress("half", current=1, total=2)
        assert progress.event is EventType.PROGRESS

    async def test_keyed_events_tell_the_slot(self, bench: Bench) -> None:
        limit = key("tenant")
        await bench.add("a", key=limit)
        job = await bench.start()
        created, started = await bench.events("a")
        assert created.slot is not None
        assert (created.slot.name, created.slot.hash) == ("tenant", limit.hash)
        assert started.slot is not None
        assert (started.slot.token, started.slot.lease_until) == (job.token, bench.now + LEASE)

    async def test_refused_change_writes_nothing(self, bench: Bench) -> None:
        await bench.add("a")
        done = await bench.run()
        told = len(await bench.events())
        refused(await bench.cancel(done))
        refused(await bench.delete(await add_and_start(bench, "b")))
        assert len(await bench.events()) == told + 2

    async def test_renewals_are_not_journaled(self, bench: Bench) -> None:
        await bench.add("a")
        job = await bench.start()
        for _ in range(3):
            bench.tick(1000)
            await bench.extend(job)
        assert await bench.story("a") == [EventType.CREATED, EventType.STARTED]


async def add_and_start(bench: Bench, id: str) -> Job:
    await bench.add(id)
    return await bench.start()
