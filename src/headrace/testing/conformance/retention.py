"""Retention (FEATURES 10.6)."""

from __future__ import annotations

import pytest

from headrace.core import actions
from headrace.core.model import Dedup, DedupMode, OnLost, OnParentFailure, Parent
from headrace.core.outcome import Moved, Problem, Terminated
from headrace.core.queue import DAY, QueueSettings, Retention
from headrace.core.retention import SEEN
from headrace.core.states import FINAL, State
from headrace.engine.protocol import job_topic
from headrace.testing.conformance.bench import LEASE, RING_LIMIT, Bench, key, made, raw


async def keep(bench: Bench, state: State, age: int | None, count: int | None = None) -> None:
    await bench.set_queue(QueueSettings(retention={state: Retention(age, count)}))


async def completed(bench: Bench, *ids: str) -> None:
    for id in ids:
        await bench.add(id)
        await bench.run()
        bench.tick(10)


async def ended_in_every_way(bench: Bench) -> None:
    """One job in each final state, named after it."""
    await bench.add("stale", key=key("k", on_lost=OnLost.BLOCK))
    held = await bench.start()
    bench.tick(LEASE)
    await bench.apply(actions.release(held, bench.now, "gone"))
    await bench.add("completed")
    await bench.run()
    await bench.add("failed")
    await bench.settle(await bench.start(), Terminated(Problem("E", "no")))
    await bench.add("dead", max_tries=1)
    await bench.kill("dead")
    await bench.add("dismissed", max_tries=1)
    await bench.apply(actions.dismiss(await bench.kill("dismissed"), bench.now))
    await bench.add("skipped", dedup=Dedup("d", DedupMode.DEBOUNCE))
    await bench.add("cancelled", dedup=Dedup("d", DedupMode.DEBOUNCE))
    await bench.add("unreachable", depends_on=("cancelled",))
    await bench.cancel(await bench.job("cancelled"))
    await bench.add("expired", ttl=0)
    await bench.expire()


class Retaining:
    """Ended jobs go by age and by count; nothing that lives ever goes."""

    async def test_completed_jobs_go_when_they_are_old_enough(self, bench: Bench) -> None:
        await keep(bench, State.COMPLETED, SEEN + 100)
        await completed(bench, "a", "b")
        bench.tick(SEEN + 79)
        assert await bench.prune() == 0
        bench.tick(1)
        assert await bench.prune() == 1
        assert [await bench.exists(id) for id in "ab"] == [False, True]

    async def test_age_counts_from_the_end(self, bench: Bench) -> None:
        await keep(bench, State.COMPLETED, SEEN + 100)
        await bench.add("a")
        job = await bench.start()
        bench.tick(2 * SEEN)
        await bench.complete(job)
        bench.tick(SEEN + 99)
        assert await bench.prune() == 0

    async def test_all_but_the_newest_go_where_a_count_is_kept(self, bench: Bench) -> None:
        await keep(bench, State.COMPLETED, None, 2)
        await completed(bench, "a", "b", "c", "d")
        bench.tick(SEEN)
        assert await bench.prune() == 2
        assert [await bench.exists(id) for id in "abcd"] == [False, False, True, True]
        assert await bench.prune() == 0

    async def test_newest_is_who_ended_last(self, bench: Bench) -> None:
        await keep(bench, State.COMPLETED, None, 1)
        await bench.add("first")
        slow = await bench.start()
        await completed(bench, "second")
        await bench.complete(slow)
        bench.tick(SEEN)
        await bench.prune()
        assert (await bench.exists("first"), await bench.exists("second")) == (True, False)

    async def test_stricter_of_age_and_count_holds(self, bench: Bench) -> None:
        await keep(bench, State.COMPLETED, SEEN + 25, 3)
        await completed(bench, "a", "b", "c", "d", "e")
        bench.tick(SEEN)
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

    async def test_rule_of_one_service_leaves_another_s_queue_of_that_name_alone(
        self, bench: Bench
    ) -> None:
        await keep(bench, State.COMPLETED, 0)
        await completed(bench, "a")
        bench.service = "other"
        await completed(bench, "b", "c")
        await keep(bench, State.COMPLETED, None, 1)
        bench.tick(SEEN)
        assert await bench.prune() == 2
        assert [await bench.exists(id) for id in "abc"] == [False, False, True]

    async def test_moved_job_is_kept_by_the_rule_of_its_last_queue(self, bench: Bench) -> None:
        await keep(bench, State.COMPLETED, 0)
        await bench.add("a")
        await bench.settle(await bench.start(), Moved("q2"))
        await bench.run("q2")
        await completed(bench, "b")
        bench.tick(SEEN)
        assert await bench.prune() == 1
        assert (await bench.exists("a"), await bench.exists("b")) == (True, False)

    async def test_shorter_rule_holds_for_jobs_that_have_ended_before(self, bench: Bench) -> None:
        await completed(bench, "a", "b", "c")
        bench.tick(SEEN)
        assert await bench.prune() == 0
        await keep(bench, State.COMPLETED, None, 1)
        assert await bench.prune() == 2
        assert [await bench.exists(id) for id in "abc"] == [False, False, True]

    async def test_of_jobs_that_ended_in_one_moment_exactly_as_many_as_asked_are_kept(
        self, bench: Bench
    ) -> None:
        await keep(bench, State.CANCELLED, None, 2)
        for id in "abcde":
            await bench.cancel(await bench.add(id))
        bench.tick(SEEN)
        assert await bench.prune() == 3
        assert sum([await bench.exists(id) for id in "abcde"]) == 2
        assert await bench.prune() == 0

    @pytest.mark.parametrize("rule", [Retention(age=0), Retention(count=0)], ids=["age", "count"])
    async def test_every_end_that_is_not_kept_is_seen_and_then_gone(
        self, bench: Bench, rule: Retention
    ) -> None:
        await bench.set_queue(QueueSettings(retention=dict.fromkeys(FINAL, rule)))
        await ended_in_every_way(bench)
        ends = sorted(map(str, FINAL))
        bench.tick(SEEN - 1)
        assert await bench.prune() == 0
        assert await bench.states(*ends) == ends
        bench.tick(1)
        assert await bench.prune() == len(FINAL)
        assert [await bench.exists(id) for id in ends] == [False] * len(FINAL)
        assert await bench.counts() == {}
        assert [(await bench.events(id))[-1].state for id in ends] == ends

    async def test_result_is_there_for_whoever_waits_though_it_is_not_kept(
        self, bench: Bench
    ) -> None:
        await keep(bench, State.COMPLETED, 0)
        await bench.add("a")
        bell = bench.engine.listen(frozenset({job_topic("a")}))
        await bench.run(result=7)
        assert await bell.wait(RING_LIMIT)
        await bench.prune()
        assert (await bench.job("a")).result == raw(7)
        bell.close()

    async def test_count_takes_nothing_that_has_just_ended(self, bench: Bench) -> None:
        await keep(bench, State.COMPLETED, None, 1)
        await completed(bench, "a", "b", "c")
        assert await bench.prune() == 0
        bench.tick(SEEN - 30)
        assert await bench.prune() == 1
        assert [await bench.exists(id) for id in "abc"] == [False, True, True]

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
        await keep(bench, State.COMPLETED, SEEN + 100)
        await bench.add("a")
        await bench.retry(await bench.run())
        bench.tick(2 * SEEN)
        assert await bench.prune() == 0
        await bench.run()
        bench.tick(SEEN + 99)
        assert await bench.prune() == 0

    async def test_round_is_bounded_and_ends_with_nothing(self, bench: Bench) -> None:
        await keep(bench, State.CANCELLED, 0)
        for n in range(7):
            await bench.cancel(await bench.add(f"j{n}"))
        bench.tick(SEEN)
        assert [await bench.prune(limit=3) for _ in range(4)] == [3, 3, 1, 0]

    async def test_oldest_go_first(self, bench: Bench) -> None:
        await keep(bench, State.CANCELLED, 0)
        for id in "abc":
            await bench.cancel(await bench.add(id))
            bench.tick(1)
        bench.tick(SEEN)
        await bench.prune(limit=2)
        assert [await bench.exists(id) for id in "abc"] == [False, False, True]

    async def test_pruned_jobs_leave_the_counts(self, bench: Bench) -> None:
        await keep(bench, State.COMPLETED, 10)
        await completed(bench, "a")
        bench.tick(SEEN)
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
        bench.tick(SEEN)
        assert await bench.prune() == 1
        states = await bench.states("child", "grandchild")
        assert states == [State.UNREACHABLE, State.UNREACHABLE]
        assert made(await bench.retry(await bench.job("child"))).state is State.PENDING

    async def test_pruned_job_s_id_and_dedup_key_can_be_used_again(self, bench: Bench) -> None:
        await keep(bench, State.COMPLETED, 10)
        await bench.add("a", dedup=Dedup("d"))
        await bench.run()
        bench.tick(SEEN)
        await bench.prune()
        assert (await bench.add("a", dedup=Dedup("d"))).state is State.PENDING
