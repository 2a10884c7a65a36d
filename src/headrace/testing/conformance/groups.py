"""Groups: several jobs, taken whole or not at all (FEATURES 1.6, 7.4)."""

from __future__ import annotations

from headrace.core.admission import Outcome, Verdict
from headrace.core.model import Dedup, DedupMode, WhenFull
from headrace.core.queue import Discard, QueueSettings
from headrace.core.states import EventType, State
from headrace.testing.conformance.bench import Bench, key


def said(verdicts: tuple[Verdict, ...]) -> list[tuple[Outcome, str | None]]:
    return [(verdict.outcome, verdict.reason) for verdict in verdicts]


class Groups:
    """All of a group or nothing of it, with everything that belongs to it."""

    async def test_group_is_taken_whole(self, bench: Bench) -> None:
        verdicts = await bench.insert(bench.new("a"), bench.new("b", queue="q2"))
        assert [verdict.outcome for verdict in verdicts] == [Outcome.ACCEPTED] * 2
        assert await bench.claimed_ids(10, "q", "q2") == ["a", "b"]

    async def test_group_with_one_refused_job_leaves_nothing(self, bench: Bench) -> None:
        await bench.add("old")
        verdicts = await bench.insert(
            bench.new("a"), bench.new("old", payload={"n": 1}), bench.new("b")
        )
        assert said(verdicts) == [
            (Outcome.REJECTED, "group"),
            (Outcome.DUPLICATE, "id"),
            (Outcome.REJECTED, "group"),
        ]
        assert all(verdict.job is None for verdict in verdicts)
        assert await bench.claimed_ids() == ["old"]

    async def test_refused_group_leaves_no_journal_and_no_counts(self, bench: Bench) -> None:
        await bench.insert(bench.new("a"), bench.new("b", depends_on=("missing",)))
        assert await bench.events() == []
        assert await bench.counts() == {}

    async def test_refused_group_leaves_no_dedup_key(self, bench: Bench) -> None:
        dedup = Dedup("d")
        await bench.insert(bench.new("a", dedup=dedup), bench.new("b", depends_on=("missing",)))
        assert (await bench.submit("c", dedup=dedup)).outcome is Outcome.ACCEPTED

    async def test_refused_group_leaves_no_place_of_a_key_taken(self, bench: Bench) -> None:
        limit = key("k", max_queued=0)
        await bench.insert(bench.new("a", key=limit), bench.new("b", depends_on=("missing",)))
        assert await bench.engine.key(bench.service, limit.hash) is None
        assert (await bench.submit("c", key=limit)).outcome is Outcome.ACCEPTED

    async def test_refused_group_brings_replaced_jobs_back(self, bench: Bench) -> None:
        debounce = Dedup("d", DedupMode.DEBOUNCE)
        limit = key("k", max_queued=0, when_full=WhenFull.REPLACE_OLDEST)
        await bench.add("debounced", dedup=debounce, delay=1000)
        await bench.add("keyed", key=limit, priority=0)
        await bench.insert(
            bench.new("x", dedup=debounce),
            bench.new("y", key=limit),
            bench.new("z", depends_on=("missing",)),
        )
        assert await bench.states("debounced", "keyed") == [State.PENDING, State.PENDING]
        assert (await bench.submit("w", dedup=Dedup("d"))).existing_id == "debounced"
        assert await bench.claimed_ids() == ["keyed"]
        bench.tick(1000)
        assert await bench.claimed_ids() == ["debounced"]

    async def test_refused_group_brings_dependents_of_replaced_jobs_back(
        self, bench: Bench
    ) -> None:
        debounce = Dedup("d", DedupMode.DEBOUNCE)
        await bench.add("owner", dedup=debounce)
        await bench.add("child", depends_on=("owner",))
        await bench.insert(bench.new("x", dedup=debounce), bench.new("z", depends_on=("missing",)))
        assert await bench.state("child") is State.BLOCKED
        await bench.run()
        assert await bench.state("child") is State.PENDING

    async def test_groups_of_one_insert_stand_and_fall_alone(self, bench: Bench) -> None:
        good = [bench.new("a"), bench.new("b")]
        bad = [bench.new("c"), bench.new("d", depends_on=("missing",))]
        answers = await bench.engine.insert([bad, good], bench.now)
        assert [verdict.taken for group in answers for verdict in group] == [
            False,
            False,
            True,
            True,
        ]
        assert await bench.claimed_ids() == ["a", "b"]

    async def test_parent_and_child_of_one_group(self, bench: Bench) -> None:
        await bench.insert(bench.new("parent"), bench.new("child", depends_on=("parent",)))
        assert await bench.states("parent", "child") == [State.PENDING, State.BLOCKED]
        await bench.run()
        assert await bench.claimed_ids() == ["child"]

    async def test_child_before_its_parent_in_a_group_is_an_unknown_parent(
        self, bench: Bench
    ) -> None:
        verdicts = await bench.insert(
            bench.new("child", depends_on=("parent",)), bench.new("parent")
        )
        assert said(verdicts)[0] == (Outcome.REJECTED, "unknown-parent")
        assert not await bench.exists("parent")

    async def test_same_id_twice_in_a_group_refuses_it(self, bench: Bench) -> None:
        verdicts = await bench.insert(bench.new("a"), bench.new("a", payload={"n": 2}))
        assert said(verdicts)[1] == (Outcome.DUPLICATE, "id")
        assert not await bench.exists("a")

    async def test_group_that_does_not_fit_its_queue_leaves_nothing(self, bench: Bench) -> None:
        await bench.set_queue(QueueSettings(max_entries=2))
        verdicts = await bench.insert(*(bench.new(id) for id in "abc"))
        assert said(verdicts)[2] == (Outcome.REJECTED, "queue-full")
        assert await bench.counts() == {}

    async def test_child_whose_parent_it_displaces_does_not_wait_for_ever(
        self, bench: Bench
    ) -> None:
        await bench.set_queue(QueueSettings(max_entries=1, discard=Discard.OLD))
        await bench.insert(bench.new("parent"), bench.new("child", depends_on=("parent",)))
        assert await bench.states("parent", "child") == [State.SKIPPED, State.UNREACHABLE]
        assert await bench.story("child") == [EventType.CREATED, EventType.UNREACHABLE]

    async def test_long_chain_in_one_group_runs_to_its_end(self, bench: Bench) -> None:
        chain = [bench.new("j0")]
        chain += [bench.new(f"j{n}", depends_on=(f"j{n - 1}",)) for n in range(1, 60)]
        await bench.insert(*chain)
        for n in range(60):
            assert (await bench.run()).id == f"j{n}"
