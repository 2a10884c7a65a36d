"""Dependencies (FEATURES 7.1–7.3)."""

from __future__ import annotations

import asyncio

from headrace.core import actions
from headrace.core.admission import Outcome
from headrace.core.model import Dedup, DedupMode, Filter, OnParentFailure, Parent
from headrace.core.outcome import Moved
from headrace.core.queue import QueueSettings, Retention
from headrace.core.retention import SEEN
from headrace.core.states import EventType, State
from headrace.testing.conformance.bench import Bench, made, raw

WAIT, RUN = OnParentFailure.WAIT, OnParentFailure.RUN
BLOCKED, PENDING, UNREACHABLE = State.BLOCKED, State.PENDING, State.UNREACHABLE


class Edges:
    """A dependent runs when its parents have completed, not before, and is never stranded."""

    async def test_child_is_blocked_until_all_parents_completed(self, bench: Bench) -> None:
        await bench.add("p1")
        await bench.add("p2")
        child = await bench.add("child", depends_on=("p1", "p2"))
        assert (child.state, child.waiting_on) == (BLOCKED, 2)
        await bench.run()
        assert ((await bench.job("child")).waiting_on, await bench.state("child")) == (1, BLOCKED)
        await bench.run()
        assert await bench.state("child") is PENDING
        assert await bench.claimed_ids() == ["child"]

    async def test_child_of_completed_parents_runs_at_once(self, bench: Bench) -> None:
        await bench.add("p")
        await bench.run()
        assert (await bench.add("child", depends_on=("p",))).state is PENDING

    async def test_child_of_one_completed_and_one_open_parent_waits_for_one(
        self, bench: Bench
    ) -> None:
        await bench.add("p1")
        await bench.run()
        await bench.add("p2")
        assert (await bench.add("child", depends_on=("p1", "p2"))).waiting_on == 1
        await bench.run()
        assert await bench.state("child") is PENDING

    async def test_parent_named_twice_counts_once(self, bench: Bench) -> None:
        await bench.add("p")
        await bench.add("child", depends_on=("p", "p"))
        await bench.run()
        assert await bench.claimed_ids() == ["child"]

    async def test_parent_may_be_in_another_queue(self, bench: Bench) -> None:
        await bench.add("p", queue="q2")
        await bench.add("child", depends_on=("p",))
        await bench.run("q2")
        assert await bench.claimed_ids() == ["child"]

    async def test_unknown_parent_is_refused_by_name(self, bench: Bench) -> None:
        await bench.add("p")
        verdict = await bench.submit("child", depends_on=("p", "missing"))
        assert (verdict.outcome, verdict.reason) == (Outcome.REJECTED, "unknown-parent")
        assert verdict.existing_id == "missing"
        assert not await bench.exists("child")

    async def test_job_cannot_depend_on_itself(self, bench: Bench) -> None:
        assert (await bench.submit("a", depends_on=("a",))).reason == "unknown-parent"

    async def test_fan_out_and_fan_in(self, bench: Bench) -> None:
        await bench.add("root")
        for n in range(5):
            await bench.add(f"mid{n}", depends_on=("root",))
        await bench.add("end", depends_on=tuple(f"mid{n}" for n in range(5)))
        await bench.run()
        jobs = await bench.claim(10)
        assert len(jobs) == 5
        await asyncio.gather(*(bench.complete(job) for job in jobs))
        assert await bench.claimed_ids() == ["end"]

    async def test_children_added_while_the_parent_completes_are_all_released(
        self, bench: Bench
    ) -> None:
        await bench.add("p")
        job = await bench.start()
        adds = [bench.submit(f"c{n}", depends_on=("p",)) for n in range(20)]
        await asyncio.gather(*adds[:10], bench.complete(job), *adds[10:])
        assert len(await bench.claim(50)) == 20

    async def test_released_child_keeps_its_delay(self, bench: Bench) -> None:
        await bench.add("p")
        await bench.add("child", depends_on=("p",), delay=1000)
        await bench.run()
        assert await bench.claimed_ids() == []
        bench.tick(1000)
        assert await bench.claimed_ids() == ["child"]

    async def test_paused_queue_holds_a_released_child(self, bench: Bench) -> None:
        await bench.add("p", queue="q2")
        await bench.add("child", depends_on=("p",))
        await bench.set_queue(QueueSettings(paused=True))
        await bench.run("q2")
        assert await bench.claimed_ids() == []
        assert await bench.state("child") is PENDING

    async def test_child_waits_through_its_parent_s_retries_and_moves(self, bench: Bench) -> None:
        await bench.add("p")
        await bench.add("child", depends_on=("p",))
        await bench.fail(await bench.start(), after=0)
        await bench.settle(await bench.start(), Moved("q2"))
        assert await bench.state("child") is BLOCKED
        await bench.run("q2")
        assert await bench.state("child") is PENDING

    async def test_failed_parent_makes_all_descendants_unreachable(self, bench: Bench) -> None:
        await bench.add("p", max_tries=1)
        await bench.add("child", depends_on=("p",))
        await bench.add("grandchild", depends_on=("child",))
        await bench.kill("p")
        assert await bench.states("child", "grandchild") == [UNREACHABLE, UNREACHABLE]
        assert (await bench.events("child"))[-1].reason == "parent p ended dead"

    async def test_every_end_without_success_breaks_the_edge(self, bench: Bench) -> None:
        cancelled = await bench.add("cancelled")
        expired = await bench.add("expired", ttl=0)
        deleted = await bench.add("deleted")
        for parent in (cancelled, expired, deleted):
            await bench.add(f"of-{parent.id}", depends_on=(parent.id,))
        await bench.cancel(cancelled)
        await bench.expire()
        await bench.delete(deleted)
        states = await bench.states("of-cancelled", "of-expired", "of-deleted")
        assert states == [UNREACHABLE] * 3

    async def test_child_of_a_failed_parent_is_unreachable_from_the_start(
        self, bench: Bench
    ) -> None:
        await bench.add("p", max_tries=1)
        await bench.kill("p")
        assert (await bench.add("child", depends_on=("p",))).state is UNREACHABLE
        assert await bench.story("child") == [EventType.CREATED, EventType.UNREACHABLE]

    async def test_waiting_policy_waits_until_the_parent_succeeds(self, bench: Bench) -> None:
        await bench.add("p", max_tries=1)
        await bench.add("child", depends_on=("p",), on_parent_failure=WAIT)
        dead = await bench.kill("p")
        assert await bench.state("child") is BLOCKED
        await bench.retry(dead)
        await bench.run()
        assert await bench.claimed_ids() == ["child"]

    async def test_running_policy_runs_whatever_became_of_the_parent(self, bench: Bench) -> None:
        await bench.add("p", max_tries=1)
        await bench.add("child", depends_on=("p",), on_parent_failure=RUN)
        await bench.kill("p")
        assert await bench.claimed_ids() == ["child"]
        assert (await bench.add("late", depends_on=("p",), on_parent_failure=RUN)).state is PENDING

    async def test_retried_parent_brings_descendants_back(self, bench: Bench) -> None:
        await bench.add("p", max_tries=1)
        await bench.add("child", depends_on=("p",))
        await bench.add("grandchild", depends_on=("child",))
        await bench.retry(await bench.kill("p"))
        assert await bench.states("child", "grandchild") == [BLOCKED, BLOCKED]
        assert [(await bench.run()).id for _ in range(3)] == ["p", "child", "grandchild"]

    async def test_descendant_of_two_failed_parents_needs_both_back(self, bench: Bench) -> None:
        await bench.add("p1", max_tries=1)
        await bench.add("p2", max_tries=1)
        await bench.add("child", depends_on=("p1", "p2"))
        first, second = await bench.kill("p1"), await bench.kill("p2")
        await bench.retry(first)
        assert await bench.state("child") is UNREACHABLE
        await bench.run()
        await bench.retry(second)
        assert ((await bench.job("child")).waiting_on, await bench.state("child")) == (1, BLOCKED)
        await bench.run()
        assert await bench.claimed_ids() == ["child"]

    async def test_unreachable_job_can_be_run_by_an_operator(self, bench: Bench) -> None:
        await bench.add("p", max_tries=1)
        await bench.add("child", depends_on=("p",))
        await bench.kill("p")
        assert made(await bench.retry(await bench.job("child"))).state is PENDING
        assert await bench.claimed_ids() == ["child"]

    async def test_cancelled_child_that_is_retried_waits_for_its_parent_again(
        self, bench: Bench
    ) -> None:
        await bench.add("p")
        child = await bench.add("child", depends_on=("p",))
        back = made(await bench.retry(made(await bench.cancel(child))))
        assert (back.state, back.waiting_on) == (BLOCKED, 1)
        await bench.run()
        assert await bench.claimed_ids() == ["child"]

    async def test_child_that_was_brought_back_waits_for_every_parent_that_is_brought_back(
        self, bench: Bench
    ) -> None:
        """The child waits for `open` again; then `gone` comes back too, and is quicker."""
        await bench.add("gone", max_tries=1)
        await bench.add("open", queue="slow")
        await bench.add("child", depends_on=("gone", "open"))
        gone = await bench.kill("gone")
        assert made(await bench.retry(await bench.job("child"))).state is State.BLOCKED
        await bench.retry(gone)
        await bench.run()
        assert await bench.state("child") is State.BLOCKED
        await bench.run("slow")
        assert await bench.claimed_ids() == ["child"]

    async def test_cancelled_child_is_not_woken_by_its_parent(self, bench: Bench) -> None:
        await bench.add("p")
        await bench.cancel(await bench.add("child", depends_on=("p",)))
        await bench.run()
        assert await bench.state("child") is State.CANCELLED
        assert made(await bench.retry(await bench.job("child"))).state is PENDING

    async def test_results_of_parents_are_there_for_the_child(self, bench: Bench) -> None:
        await bench.add("p1")
        await bench.add("p2", max_tries=1, priority=9)
        await bench.add("child", depends_on=("p1", "p2"), on_parent_failure=RUN)
        await bench.run(result={"n": 1})
        assert await bench.parents("child") == [
            Parent("p1", State.COMPLETED, raw({"n": 1})),
            Parent("p2", None, None),
        ]
        await bench.kill("p2")
        assert (await bench.parents("child"))[1] == Parent("p2", State.DEAD, None)

    async def test_parent_that_came_back_is_open_again_for_the_child(self, bench: Bench) -> None:
        await bench.add("p", max_tries=1)
        await bench.add("child", depends_on=("p",), on_parent_failure=WAIT)
        await bench.retry(await bench.kill("p"))
        assert await bench.parents("child") == [Parent("p", None, None)]

    async def test_results_survive_the_parent_s_deletion_and_discard(self, bench: Bench) -> None:
        await bench.set_queue(QueueSettings(retention={State.COMPLETED: Retention(age=0)}), "gone")
        await bench.add("discarded", queue="gone")
        await bench.add("deleted")
        await bench.add("child", depends_on=("discarded", "deleted"))
        await bench.run("gone", result=1)
        await bench.delete(await bench.run(result=2))
        bench.tick(SEEN)
        assert await bench.prune() == 1
        assert [parent.result for parent in await bench.parents("child")] == [raw(1), raw(2)]
        assert await bench.claimed_ids() == ["child"]

    async def test_parent_deleted_while_a_child_waits_for_its_retry_strands_nobody(
        self, bench: Bench
    ) -> None:
        await bench.add("p", max_tries=1)
        await bench.add("child", depends_on=("p",), on_parent_failure=WAIT)
        await bench.add("grandchild", depends_on=("child",))
        await bench.delete(await bench.kill("p"))
        assert await bench.states("child", "grandchild") == [UNREACHABLE, UNREACHABLE]
        assert made(await bench.retry(await bench.job("child"))).state is PENDING

    async def test_parent_replaced_by_its_own_child_strands_nobody(self, bench: Bench) -> None:
        debounce = Dedup("d", DedupMode.DEBOUNCE)
        await bench.add("p", dedup=debounce)
        await bench.add("middle", depends_on=("p",))
        child = await bench.add("child", dedup=debounce, depends_on=("middle",))
        assert await bench.states("p", "middle") == [State.SKIPPED, UNREACHABLE]
        assert child.state is UNREACHABLE
        run = await bench.add("run", depends_on=("p",), on_parent_failure=RUN)
        assert run.state is PENDING

    async def test_blocked_job_changed_from_an_older_snapshot_still_counts_its_parents(
        self, bench: Bench
    ) -> None:
        await bench.add("p1")
        await bench.add("p2")
        child = await bench.add("child", depends_on=("p1", "p2"))
        await bench.run()
        made(await bench.apply(actions.reprioritise(child, bench.now, 1)))
        await bench.run()
        assert await bench.claimed_ids() == ["child"]

    async def test_dependents_can_be_found_by_their_parent(self, bench: Bench) -> None:
        await bench.add("p")
        await bench.add("c1", depends_on=("p",))
        await bench.add("c2", depends_on=("p",))
        assert await bench.found(Filter(parent="p")) == ["c2", "c1"]
