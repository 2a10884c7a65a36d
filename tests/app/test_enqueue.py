"""Enqueue and submit: confirmed, or a typed error (FEATURES 1.4, 1.5, 1.6, 6.1)."""

from __future__ import annotations

import pytest

from headrace import (
    App,
    AppClosed,
    Debounce,
    DuplicateJob,
    EngineUnavailable,
    EnqueueRefused,
    InvalidValue,
    KeepLast,
    KeyBusy,
    Outcome,
    PartlyEnqueued,
    QueueFull,
    State,
    Throttle,
    UnknownParent,
)
from headrace.engine.memory import MemoryEngine
from headrace.testing import ManualClock, arguments, jobs, run_until_idle
from tests.support import Outage, story


@pytest.fixture
def work(timed: App):
    @timed.task
    async def work(n: int = 0, tenant: str = "a") -> int:
        return n

    return work


class TestIds:
    async def test_ids_are_ulids_in_order_of_time(
        self, timed: App, work, clock: ManualClock
    ) -> None:
        first = await work.enqueue()
        clock.advance(1)
        second = await work.enqueue()
        assert len(first.id) == 26
        assert first.id < second.id

    @pytest.mark.parametrize("job_id", ["ids", "default", "workers", "a:b-c_D", "0", "x" * 128])
    async def test_custom_ids_are_kept(self, timed: App, work, job_id: str) -> None:
        ref = await work.options(id=job_id).enqueue(3)
        assert ref.id == job_id
        await run_until_idle(timed)
        assert await timed.job(job_id).result() == 3

    async def test_same_id_twice_is_one_job(self, timed: App, work) -> None:
        await work.options(id="one").enqueue(1)
        with pytest.raises(DuplicateJob, match=r"job one .*id that exists") as caught:
            await work.options(id="one", queue="other").enqueue(2)
        assert (caught.value.job_id, caught.value.existing_id) == ("one", "one")
        answer = await work.options(id="one").submit(2)
        assert (answer.outcome, answer.reason, answer.ref) == (Outcome.DUPLICATE, "id", None)
        assert [arguments(job) for job in await jobs(timed)] == [{"n": 1}]

    async def test_bad_service_is_refused(self) -> None:
        with pytest.raises(InvalidValue, match=r"^service: 'a b' is not a name"):
            App("memory:", service="a b")


class TestRefusals:
    """Each refusal has its own error, and `submit` says the same as an outcome."""

    async def refused(self, task, kind: type[EnqueueRefused], reason: str, *args) -> str | None:
        with pytest.raises(kind) as caught:
            await task.enqueue(*args)
        assert type(caught.value) is kind
        answer = await task.submit(*args)
        assert (answer.ref, answer.reason, answer.accepted) == (None, reason, False)
        assert type(answer.error) is kind
        assert answer.existing_id == caught.value.existing_id
        return answer.existing_id

    async def test_duplicate_by_arguments(self, timed: App, work) -> None:
        unique = work.options(unique=True)
        first = await unique.enqueue(1)
        assert await self.refused(unique, DuplicateJob, "dedup-key", 1) == first.id
        await unique.enqueue(2)
        await run_until_idle(timed)
        await unique.enqueue(1)

    async def test_duplicate_by_key(self, timed: App, work) -> None:
        unique = work.options(unique=("report", "/tenant"))
        first = await unique.enqueue(1, "a")
        assert await self.refused(unique, DuplicateJob, "dedup-key", 2, "a") == first.id
        await unique.enqueue(2, "b")

    async def test_duplicate_by_a_function_of_the_payload(self, timed: App, work) -> None:
        unique = work.options(unique=lambda payload: ("parity", payload["n"] % 2))
        first = await unique.enqueue(1)
        assert (await unique.submit(3)).existing_id == first.id
        assert (await unique.submit(2)).accepted

    async def test_keys_that_only_look_alike_are_not_duplicates(self, work) -> None:
        await work.options(unique=("a", "b:c")).enqueue()
        await work.options(unique=("a:b", "c")).enqueue()
        await work.options(unique=(1,)).enqueue()
        await work.options(unique=("1", "")).enqueue()
        await work.options(unique="x" * 600).enqueue()
        await work.options(unique="x" * 601).enqueue()

    async def test_throttle_holds_for_its_window(self, timed, work, clock: ManualClock) -> None:
        throttled = work.options(unique=Throttle(60))
        first = await throttled.enqueue()
        await run_until_idle(timed)
        assert await self.refused(throttled, DuplicateJob, "dedup-key") == first.id
        clock.advance(60)
        await throttled.enqueue()

    async def test_debounce_replaces_what_has_not_started(self, timed, work, clock) -> None:
        debounced = work.options(unique=Debounce(5, key="k"))
        first = await debounced.enqueue(1)
        clock.advance(4)
        answer = await debounced.submit(2)
        assert (answer.outcome, answer.replaced) == (Outcome.REPLACED, (first.id,))
        clock.advance(4)
        assert (await run_until_idle(timed)).tries == 0
        clock.advance(1)
        assert (await run_until_idle(timed)).completed == 1
        assert (await first.get()).state is State.SKIPPED
        assert answer.ref
        assert await answer.ref.result() == 2

    async def test_keep_last_keeps_the_newest(self, timed: App, work) -> None:
        last = work.options(unique=KeepLast(key="k"))
        first = await last.enqueue(1)
        second = await last.enqueue(2)
        await run_until_idle(timed)
        assert (await first.get()).state is State.SKIPPED
        assert await second.result() == 2

    async def test_full_queue(self, timed: App, work) -> None:
        await timed.queue("default").set(max_entries=1, force=True)
        await work.enqueue()
        await self.refused(work, QueueFull, "queue-full")

    async def test_draining_queue(self, timed: App, work) -> None:
        await timed.queue("default").drain()
        await self.refused(work, QueueFull, "queue-draining")
        await timed.queue("default").resume()
        await work.enqueue()

    async def test_full_key(self, timed: App, work) -> None:
        keyed = work.options(key=("tenant", "/tenant"), max_queued=0)
        first = await keyed.enqueue(0, "a")
        assert await self.refused(keyed, KeyBusy, "queue-depth", 0, "a") == first.id
        await keyed.enqueue(0, "b")
        with pytest.raises(InvalidValue, match="nothing at '/tenant'; an argument left to its"):
            await keyed.enqueue()

    async def test_coalesced(self, timed: App, work) -> None:
        keyed = work.options(key="k", max_queued=0, when_full="coalesce")
        first = await keyed.enqueue()
        assert await self.refused(keyed, KeyBusy, "queue-depth") == first.id
        assert (await keyed.submit()).outcome is Outcome.COALESCED
        assert len(await jobs(timed)) == 1

    async def test_replace_oldest_skips_the_oldest(self, timed: App, work) -> None:
        keyed = work.options(key="k", max_queued=1, when_full="replace-oldest")
        first, second = await keyed.enqueue(1), await keyed.enqueue(2)
        third = await keyed.submit(3)
        assert (third.outcome, third.replaced) == (Outcome.REPLACED, (first.id,))
        assert [str(event) for event in await story(timed, first.id)] == ["created", "skipped"]
        assert (await second.get()).state is State.PENDING

    async def test_unknown_parent(self, work) -> None:
        child = work.options(depends_on=["nobody"])
        assert await self.refused(child, UnknownParent, "unknown-parent") == "nobody"

    async def test_unreachable_engine_and_closed_app(self) -> None:
        engine = Outage(MemoryEngine())
        app = App(engine)  # pyright: ignore[reportArgumentType]
        task = app.task(type="t")(lambda: None)
        engine.down = True
        with pytest.raises(EngineUnavailable):
            await task.enqueue()
        engine.down = False
        await app.close()
        with pytest.raises(AppClosed, match="is closed; open it again"):
            await task.enqueue()
        await app.open()
        await task.enqueue()


class TestMany:
    async def test_order_is_kept_and_each_is_answered(self, timed: App, work) -> None:
        other = timed.task(type="other")(lambda: None)
        await work.options(id="taken").enqueue(0)
        batch = [
            work.prepare(1),
            other.prepare(),
            work.options(id="taken").prepare(2),
            work.options(unique="u").prepare(3),
            work.options(unique="u", max_tries=7).prepare(4),
            timed.prepare("foreign", {"a": 1}, queue="q"),
        ]
        answers = await timed.enqueue_many(batch)
        outcomes = [str(answer.outcome) for answer in answers]
        assert outcomes == ["accepted"] * 2 + ["duplicate", "accepted", "duplicate", "accepted"]
        assert [answer.ref.id for answer in answers if answer.ref] == [
            batch[n].id for n in (0, 1, 3, 5)
        ]
        assert [job.id for job in await jobs(timed)][1:] == [batch[n].id for n in (0, 1, 3, 5)]
        assert answers[4].existing_id == batch[3].id

    async def test_options_do_not_leak_between_jobs(self, timed: App, work) -> None:
        await timed.enqueue_many([work.options(max_tries=2, queue="q").prepare(1), work.prepare(2)])
        one, two = await jobs(timed)
        assert (one.max_tries, one.queue) == (2, "q")
        assert (two.max_tries, two.queue) == (10, "default")

    async def test_thousands_take_one_round_trip_per_few_hundred(self) -> None:
        calls: list[int] = []

        class Counting(MemoryEngine):
            async def insert(self, groups, now):
                calls.append(len(groups))
                return await super().insert(groups, now)

        app = App(Counting())
        task = app.task(type="t")(lambda n: None)
        answers = await app.enqueue_many(task.prepare(n) for n in range(1201))
        assert sum(calls) == 1201
        assert len(calls) <= 6
        assert [arguments(job)["n"] for job in await jobs(app)] == list(range(1201))
        assert all(answer.accepted for answer in answers)

    @pytest.mark.parametrize("wrong", ["engine", "generator"])
    async def test_failure_midway_carries_what_was_confirmed(self, wrong: str) -> None:
        class Failing(MemoryEngine):
            async def insert(self, groups, now):
                if wrong == "engine" and groups[0][0].id == "j4":
                    raise EngineUnavailable("away")
                return await super().insert(groups, now)

        app = App(Failing())
        task = app.task(type="t")(lambda: None)

        def source():
            for n in range(10):
                if wrong == "generator" and n == 6:
                    raise EngineUnavailable("no more")
                yield task.options(id=f"j{n}").prepare()

        with pytest.raises(PartlyEnqueued, match=r"jobs were confirmed, then: ") as caught:
            await app.enqueue_many(source(), batch=2)
        assert isinstance(caught.value.__cause__, EngineUnavailable)
        confirmed = [answer.ref.id for answer in caught.value.confirmed]
        assert set(confirmed) == {job.id for job in await jobs(app)}
        assert confirmed[:4] == ["j0", "j1", "j2", "j3"]

    async def test_failure_of_the_first_chunk_is_told_as_it_is(self) -> None:
        outage = Outage(MemoryEngine())
        outage.down = True
        app = App(outage)  # pyright: ignore[reportArgumentType]
        with pytest.raises(EngineUnavailable):
            await app.enqueue_many([app.prepare("t")])

    async def test_only_prepared_jobs_in_sensible_batches_are_taken(self, timed: App, work) -> None:
        for jobs_in in ([work], [work.prepare(), "x"]):
            with pytest.raises(InvalidValue, match=r"^jobs: .* is not a prepared job"):
                await timed.enqueue_many(jobs_in)
            with pytest.raises(InvalidValue, match=r"^jobs: .* is not a prepared job"):
                await timed.enqueue_group(jobs_in)
        for batch in (0, -1, 2.5, True):
            with pytest.raises(InvalidValue, match=r"^batch: "):
                await timed.enqueue_many([work.prepare()], batch=batch)
        assert await jobs(timed) == []

    async def test_culprit_of_a_group_is_known_whatever_its_key_says(
        self, timed: App, work
    ) -> None:
        await work.options(unique="of its group").enqueue()
        with pytest.raises(DuplicateJob):
            await timed.enqueue_group(
                [work.prepare(), work.options(unique="of its group").prepare()]
            )

    async def test_nothing_is_nothing(self, timed: App) -> None:
        assert await timed.enqueue_many([]) == []
        assert await timed.enqueue_group([]) == []

    async def test_group_is_taken_whole_or_not_at_all(self, timed: App, work) -> None:
        await work.options(id="taken").enqueue()
        with pytest.raises(DuplicateJob, match="taken"):
            await timed.enqueue_group([work.prepare(1), work.options(id="taken").prepare(2)])
        assert len(await jobs(timed)) == 1
        parent = work.prepare(1)
        child = work.options(depends_on=[parent.id]).prepare(2)
        refs = await timed.enqueue_group([parent, child])
        assert [(await ref.get()).state for ref in refs] == [State.PENDING, State.BLOCKED]
        assert (await run_until_idle(timed)).completed == 3

    async def test_preparing_twice_and_enqueueing_again_is_harmless(self, timed: App, work) -> None:
        prepared = work.prepare(1)
        first = await timed.enqueue_many([prepared])
        again = await timed.enqueue_many([prepared])
        assert first[0].accepted
        assert again[0].accepted, "the same insert, as after a lost answer"
        assert len(await jobs(timed)) == 1
