"""Retention (FEATURES 10.6)."""

from __future__ import annotations

from headrace.core.model import Dedup, OnParentFailure, Parent
from headrace.core.queue import DAY, QueueSettings, Retention
from headrace.core.states import EventType, State
from headrace.testing.conformance.bench import Bench, made, raw


async def keep(bench: Bench, state: State, age: int | None, count: int | None = None) -> None:
    await bench.set_queue(QueueSettings(retention={state: Retention(age, count)}))


async def completed(bench: Bench, *ids: str) -> None:
    for id in ids:
        await bench.add(id)
        await bench.run()
        bench.tick(10)


class Retaining:
    """Ended jobs go by age and by count; nothing that lives ever goes."""

    async def test_completed_jobs_go_when_they_are_old_enough(self, bench: Bench) -> None:
        await keep(bench, State.COMPLETED, 100)
        await completed(bench, "a", "b")
        bench.tick(79)
        assert await bench.prune() == 0
        bench.tick(1)
        assert await bench.prune() == 1
        assert [await bench.exists(id) for id in "ab"] == [False, True]

    async def test_age_counts_from_the_end(self, bench: Bench) -> None:
        await keep(bench, State.COMPLETED, 100)
        await bench.add("a")
        job = await bench.start()
        bench.tick(5000)
        await bench.complete(job)
        bench.tick(99)
        assert await bench.prune() == 0

    async def test_all_but_the_newest_go_where_a_count_is_kept(self, bench: Bench) -> None:
        await keep(bench, State.COMPLETED, None, 2)
        await completed(bench, "a", "b", "c", "d")
        assert await bench.prune() == 2
        assert [await bench.exists(id) for id in "abcd"] == [False, False, True, True]
        assert await bench.prune() == 0

    async def test_newest_is_who_ended_last(self, bench: Bench) -> None:
        await keep(bench, State.COMPLETED, None, 1)
        await bench.add("first")
        slow = await bench.start()
        await completed(bench, "second")
        await bench.complete(slow)
        await bench.prune()
        assert (await bench.exists("first"), await bench.exists("second")) == (True, False)

    async def test_stricter_of_age_and_count_holds(self, bench: Bench) -> None:
        await keep(bench, State.COMPLETED, 25, 3)
        await completed(bench, "a", "b", "c", "d", "e")
        await bench.prune()
        assert [await bench.exists(id) for id in "abcde"] == [False, False, False, True, True]

    async def test_each_state_and_queue_is_kept_by_its_own_rule(self, bench: Bench) -> None:
        await keep(bench, State.COMPLETED, 0)
        await bench.add("dead", max_tries=1)
        await bench.kill("dead")
        await bench.add("elsewhere", queue="q2")
        await bench.run("q2")
        bench.tick(DAY - 1)
        assert await bench.prune() == 0
        bench.tick(1)
        assert await bench.prune() == 1
        assert (await bench.exists("dead"), await bench.exists("elsewhere")) == (True, False)

    async def test_states_that_discard_at_once_go_with_the_next_round(self, bench: Bench) -> None:
        await keep(bench, State.CANCELLED, 0)
        await bench.cancel(await bench.add("a"))
        assert await bench.prune() == 1
        assert not await bench.exists("a")
        assert (await bench.story("a"))[-1] is EventType.CANCELLED

    async def test_living_jobs_never_go(self, bench: Bench) -> None:
        await bench.set_queue(
            QueueSettings(
                retention={s: Retention(0, 0) for s in (State.DEAD, State.EXPIRED, State.STALE)}
            )
        )
        await bench.add("active")
        await bench.start()
        await bench.add("parent", delay=10**12)
        await bench.add("blocked", depends_on=("parent",))
        await bench.add("pending")
        bench.tick(10**11)
        assert await bench.prune() == 0
        assert len(await bench.engine.get(["active", "parent", "blocked", "pending"])) == 4

    async def test_retried_job_is_no_longer_old(self, bench: Bench) -> None:
        await keep(bench, State.COMPLETED, 100)
        await bench.add("a")
        await bench.retry(await bench.run())
        bench.tick(1000)
        assert await bench.prune() == 0
        await bench.run()
        bench.tick(99)
        assert await bench.prune() == 0

    async def test_round_is_bounded_and_ends_with_nothing(self, bench: Bench) -> None:
        await keep(bench, State.CANCELLED, 0)
        for n in range(7):
            await bench.cancel(await bench.add(f"j{n}"))
        assert [await bench.prune(limit=3) for _ in range(4)] == [3, 3, 1, 0]

    async def test_oldest_go_first(self, bench: Bench) -> None:
        await keep(bench, State.CANCELLED, 0)
        for id in "abc":
            await bench.cancel(await bench.add(id))
            bench.tick(1)
        await bench.prune(limit=2)
        assert [await bench.exists(id) for id in "abc"] == [False, False, True]

    async def test_pruned_jobs_leave_the_counts(self, bench: Bench) -> None:
        await keep(bench, State.COMPLETED, 10)
        await completed(bench, "a")
        await bench.prune()
        assert await bench.counts() == {}

    async def test_old_journal_entries_go_and_new_ones_stay_in_sequence(self, bench: Bench) -> None:
        await completed(bench, "a", "b")
        last = (await bench.events())[-1].seq
        assert await bench.prune(journal_before=bench.now - 11) == 3
        assert {event.job_id for event in await bench.events()} == {"b"}
        await bench.add("c")
        assert (await bench.events())[-1].seq > last

    async def test_sequence_grows_though_the_whole_journal_was_pruned(self, bench: Bench) -> None:
        await completed(bench, "a")
        last = (await bench.events())[-1].seq
        bench.tick(1000)
        await bench.prune(journal_before=bench.now)
        await bench.add("b")
        assert (await bench.start()).token > last

    async def test_results_survive_the_parent_s_pruning(self, bench: Bench) -> None:
        await keep(bench, State.COMPLETED, 10)
        await bench.add("p")
        await bench.run(result={"n": 1})
        await bench.add("child", depends_on=("p",), delay=10**6)
        bench.tick(10**5)
        await bench.prune()
        assert not await bench.exists("p")
        assert await bench.parents("child") == [Parent("p", State.COMPLETED, raw({"n": 1}))]
        bench.tick(10**6)
        assert await bench.claimed_ids() == ["child"]

    async def test_pruned_parent_strands_no_child_that_waits_for_its_retry(
        self, bench: Bench
    ) -> None:
        await keep(bench, State.DEAD, 10)
        await bench.add("p", max_tries=1)
        await bench.add("child", depends_on=("p",), on_parent_failure=OnParentFailure.WAIT)
        await bench.add("grandchild", depends_on=("child",))
        await bench.kill("p")
        bench.tick(10)
        assert await bench.prune() == 1
        states = await bench.states("child", "grandchild")
        assert states == [State.UNREACHABLE, State.UNREACHABLE]
        assert made(await bench.retry(await bench.job("child"))).state is State.PENDING

    async def test_pruned_job_s_id_and_dedup_key_can_be_used_again(self, bench: Bench) -> None:
        await keep(bench, State.COMPLETED, 10)
        await bench.add("a", dedup=Dedup("d"))
        await bench.run()
        bench.tick(10)
        await bench.prune()
        assert (await bench.add("a", dedup=Dedup("d"))).state is State.PENDING
