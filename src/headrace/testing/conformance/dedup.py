"""Dedup keys (FEATURES 6.2–6.4)."""

from __future__ import annotations

import asyncio

from headrace.core import actions
from headrace.core.admission import Outcome
from headrace.core.model import Dedup, DedupMode
from headrace.core.outcome import Moved, Snoozed
from headrace.core.states import EventType, State
from headrace.testing.conformance.bench import Bench, key, made, refused

SIMPLE = Dedup("d")
THROTTLE = Dedup("d", DedupMode.THROTTLE, 1000)
EXTENDING = Dedup("d", DedupMode.THROTTLE, 1000, extend=True)
DEBOUNCE = Dedup("d", DedupMode.DEBOUNCE)
KEEP_LAST = Dedup("d", DedupMode.KEEP_LAST)


async def accepted(bench: Bench, id: str, dedup: Dedup) -> bool:
    return (await bench.submit(id, dedup=dedup)).taken


class Deduplication:
    """One owner per key, whatever happens to it."""

    async def test_second_job_of_a_held_key_is_a_duplicate(self, bench: Bench) -> None:
        await bench.add("a", dedup=SIMPLE)
        verdict = await bench.submit("b", dedup=SIMPLE, queue="q2", type="other")
        assert (verdict.outcome, verdict.reason) == (Outcome.DUPLICATE, "dedup-key")
        assert verdict.existing_id == "a"
        assert not await bench.exists("b")

    async def test_other_keys_and_services_are_free(self, bench: Bench) -> None:
        await bench.add("a", dedup=SIMPLE)
        assert await accepted(bench, "b", Dedup("other"))
        bench.service = "elsewhere"
        assert await accepted(bench, "c", SIMPLE)

    async def test_key_is_held_while_the_owner_runs_and_retries(self, bench: Bench) -> None:
        await bench.add("a", dedup=SIMPLE)
        job = await bench.start()
        assert not await accepted(bench, "b", SIMPLE)
        await bench.settle(job, Snoozed(bench.now))
        assert not await accepted(bench, "b", SIMPLE)
        await bench.fail(await bench.start())
        assert not await accepted(bench, "b", SIMPLE)

    async def test_key_is_freed_by_every_end(self, bench: Bench) -> None:
        await bench.add("done", dedup=SIMPLE)
        await bench.run()
        await bench.add("dead", dedup=SIMPLE, max_tries=1)
        await bench.kill("dead")
        await bench.cancel(await bench.add("cancelled", dedup=SIMPLE))
        await bench.delete(await bench.add("deleted", dedup=SIMPLE))
        await bench.add("expired", dedup=SIMPLE, ttl=0)
        await bench.expire()
        assert await accepted(bench, "last", SIMPLE)

    async def test_refused_insert_leaves_no_key(self, bench: Bench) -> None:
        await bench.add("a")
        assert not await accepted(bench, "a", SIMPLE)
        assert not (await bench.submit("b", dedup=SIMPLE, depends_on=("no",))).taken
        assert await accepted(bench, "c", SIMPLE)

    async def test_key_goes_with_the_job_to_another_queue(self, bench: Bench) -> None:
        await bench.add("a", dedup=SIMPLE)
        await bench.settle(await bench.start(), Moved("q2"))
        assert not await accepted(bench, "b", SIMPLE)
        await bench.run("q2")
        assert await accepted(bench, "c", SIMPLE)

    async def test_many_producers_make_one_job(self, bench: Bench) -> None:
        verdicts = await asyncio.gather(*(bench.submit(f"j{n}", dedup=SIMPLE) for n in range(20)))
        assert sum(verdict.taken for verdict in verdicts) == 1
        owner = next(verdict.job_id for verdict in verdicts if verdict.taken)
        assert {verdict.existing_id for verdict in verdicts} == {None, owner}

    async def test_freed_key_stays_freed(self, bench: Bench) -> None:
        job = await bench.add("a", dedup=SIMPLE)
        made(await bench.apply(actions.free_dedup(job, bench.now)))
        await bench.add("b", dedup=SIMPLE)
        assert (await bench.run()).id == "a"
        assert not await accepted(bench, "c", SIMPLE)

    async def test_job_that_lost_its_key_cannot_free_another_s(self, bench: Bench) -> None:
        job = await bench.add("a", dedup=SIMPLE)
        await bench.apply(actions.free_dedup(job, bench.now))
        await bench.add("b", dedup=SIMPLE)
        await bench.apply(actions.free_dedup(await bench.job("a"), bench.now))
        assert not await accepted(bench, "c", SIMPLE)

    async def test_throttle_holds_for_its_window_even_after_completion(self, bench: Bench) -> None:
        await bench.add("a", dedup=THROTTLE)
        await bench.run()
        bench.tick(999)
        assert (await bench.submit("b", dedup=THROTTLE)).existing_id == "a"
        bench.tick(1)
        assert await accepted(bench, "b", THROTTLE)

    async def test_throttle_window_counts_from_creation(self, bench: Bench) -> None:
        await bench.add("a", dedup=THROTTLE)
        bench.tick(1000)
        assert await accepted(bench, "b", THROTTLE)
        assert await bench.claimed_ids() == ["a", "b"]

    async def test_refused_duplicate_extends_the_window_where_asked(self, bench: Bench) -> None:
        await bench.add("a", dedup=EXTENDING)
        bench.tick(900)
        assert not await accepted(bench, "b", EXTENDING)
        bench.tick(999)
        assert not await accepted(bench, "c", THROTTLE)
        bench.tick(1)
        assert await accepted(bench, "d", EXTENDING)

    async def test_window_outlives_the_owner_s_deletion_and_pruning(self, bench: Bench) -> None:
        await bench.add("a", dedup=THROTTLE)
        await bench.delete(await bench.run())
        bench.tick(500)
        await bench.prune()
        assert not await accepted(bench, "b", THROTTLE)
        bench.tick(500)
        await bench.prune()
        assert await accepted(bench, "b", THROTTLE)

    async def test_prune_leaves_the_key_of_a_living_owner(self, bench: Bench) -> None:
        await bench.add("a", dedup=THROTTLE)
        bench.tick(1000)
        await bench.prune()
        assert not await accepted(bench, "b", SIMPLE)

    async def test_end_of_an_old_owner_leaves_the_new_owner_s_key(self, bench: Bench) -> None:
        await bench.add("a", dedup=THROTTLE)
        bench.tick(1000)
        await bench.add("b", dedup=THROTTLE)
        await bench.run()
        assert not await accepted(bench, "c", THROTTLE)

    async def test_debounce_replaces_an_owner_that_has_not_started(self, bench: Bench) -> None:
        await bench.add("a", dedup=DEBOUNCE, delay=1000)
        bench.tick(900)
        verdict = await bench.submit("b", dedup=DEBOUNCE, delay=1000)
        assert (verdict.outcome, verdict.replaced) == (Outcome.REPLACED, ("a",))
        assert await bench.state("a") is State.SKIPPED
        bench.tick(999)
        assert await bench.claimed_ids() == []
        bench.tick(1)
        assert await bench.claimed_ids() == ["b"]

    async def test_debounce_replacement_is_told_in_the_journal(self, bench: Bench) -> None:
        await bench.add("a", dedup=DEBOUNCE)
        await bench.add("b", dedup=DEBOUNCE)
        skipped, created = (await bench.events())[1:]
        assert (skipped.job_id, skipped.event) == ("a", EventType.SKIPPED)
        assert created.policy is not None
        assert (created.policy.outcome, created.policy.replaced_id) == ("replaced", "a")

    async def test_debounce_is_suppressed_by_an_owner_that_started(self, bench: Bench) -> None:
        await bench.add("a", dedup=DEBOUNCE)
        job = await bench.start()
        assert not await accepted(bench, "b", DEBOUNCE)
        await bench.fail(job)
        assert not await accepted(bench, "b", DEBOUNCE)

    async def test_keep_last_lets_one_wait_behind_the_running_owner(self, bench: Bench) -> None:
        await bench.add("a", dedup=KEEP_LAST)
        job = await bench.start()
        waiting = await bench.add("b", dedup=KEEP_LAST)
        assert (waiting.state, waiting.waiting_on) == (State.BLOCKED, 1)
        assert await bench.claimed_ids() == []
        await bench.complete(job)
        assert await bench.claimed_ids() == ["b"]

    async def test_keep_last_runs_the_newest_data_after_the_owner(self, bench: Bench) -> None:
        await bench.add("a", dedup=KEEP_LAST)
        job = await bench.start()
        await bench.add("b", dedup=KEEP_LAST)
        assert (await bench.submit("c", dedup=KEEP_LAST)).replaced == ("b",)
        assert await bench.claimed_ids() == []
        await bench.complete(job)
        assert await bench.claimed_ids() == ["c"]

    async def test_keep_last_replaces_an_owner_that_has_not_started(self, bench: Bench) -> None:
        await bench.add("a", dedup=KEEP_LAST)
        assert (await bench.submit("b", dedup=KEEP_LAST)).replaced == ("a",)
        assert await bench.claimed_ids() == ["b"]

    async def test_keep_last_waits_through_the_owner_s_retries(self, bench: Bench) -> None:
        await bench.add("a", dedup=KEEP_LAST, max_tries=2)
        job = await bench.start()
        await bench.add("b", dedup=KEEP_LAST)
        await bench.fail(job, after=0)
        await bench.fail(await bench.start())
        assert await bench.states("a", "b") == [State.DEAD, State.PENDING]

    async def test_keep_last_owner_has_its_key_back_when_its_successor_is_cancelled(
        self, bench: Bench
    ) -> None:
        await bench.add("a", dedup=KEEP_LAST)
        job = await bench.start()
        await bench.cancel(await bench.add("b", dedup=KEEP_LAST))
        assert (await bench.add("c", dedup=KEEP_LAST)).state is State.BLOCKED
        await bench.complete(job)
        assert await bench.claimed_ids() == ["c"]

    async def test_keep_last_job_that_depends_on_the_owner_itself_runs(self, bench: Bench) -> None:
        await bench.add("a", dedup=KEEP_LAST)
        job = await bench.start()
        await bench.add("b", dedup=KEEP_LAST, depends_on=("a",))
        await bench.complete(job)
        assert await bench.claimed_ids() == ["b"]

    async def test_retried_job_holds_its_key_again(self, bench: Bench) -> None:
        await bench.add("a", dedup=SIMPLE)
        await bench.retry(await bench.run())
        assert not await accepted(bench, "b", SIMPLE)

    async def test_retry_is_refused_while_another_job_holds_the_key(self, bench: Bench) -> None:
        await bench.add("a", dedup=SIMPLE)
        done = await bench.run()
        await bench.add("b", dedup=SIMPLE)
        assert "dedup" in refused(await bench.retry(done)).reason
        assert await bench.job("a") == done

    async def test_descendant_stays_unreachable_while_another_holds_its_key(
        self, bench: Bench
    ) -> None:
        await bench.add("parent", max_tries=1)
        await bench.add("child", depends_on=("parent",), dedup=SIMPLE)
        dead = await bench.kill("parent")
        await bench.add("other", dedup=SIMPLE)
        await bench.retry(dead)
        assert await bench.states("child", "other") == [State.UNREACHABLE, State.PENDING]

    async def test_descendant_that_comes_back_holds_its_key_again(self, bench: Bench) -> None:
        await bench.add("parent", max_tries=1)
        await bench.add("child", depends_on=("parent",), dedup=SIMPLE)
        await bench.retry(await bench.kill("parent"))
        assert await bench.state("child") is State.BLOCKED
        assert not await accepted(bench, "other", SIMPLE)

    async def test_debounce_of_another_key_s_owner_respects_the_depth(self, bench: Bench) -> None:
        full = key("full", max_queued=0)
        await bench.add("owner", dedup=DEBOUNCE, delay=1000)
        await bench.add("first", key=full)
        verdict = await bench.submit("new", dedup=DEBOUNCE, key=full)
        assert (verdict.outcome, verdict.reason) == (Outcome.REJECTED, "queue-depth")
        assert await bench.state("owner") is State.PENDING
