"""Admission: the table of verdicts, dedup, and edges."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from headrace.core import edges
from headrace.core.admission import (
    Facts,
    Holder,
    Outcome,
    Verdict,
    admit,
    creation_policy,
    extended,
    holder_after,
    reconsidered,
)
from headrace.core.edges import EdgeState, edge_state
from headrace.core.event import Policy
from headrace.core.keys import hash_of
from headrace.core.model import Dedup, DedupMode, Job, KeyLimit, OnParentFailure, WhenFull
from headrace.core.queue import Discard, QueueSettings
from headrace.core.states import FINAL, EventType, State
from tests.core.jobs import NOW, job, new, running

M = DedupMode
KEY = KeyLimit("k", hash_of(["k"]), max_queued=0)


def facts(settings: QueueSettings | None = None, **found: Any) -> Facts:
    return Facts(settings or QueueSettings(), **found)


def test_plain_job_is_accepted_in_its_first_state() -> None:
    verdict = admit(new(max_tries=4, priority=2), facts(), NOW)
    assert (verdict.outcome, verdict.replaced, verdict.behind) == (Outcome.ACCEPTED, (), None)
    assert verdict.taken
    assert verdict.job
    assert (verdict.job.state, verdict.job.version) == (State.PENDING, 0)
    assert (verdict.job.max_tries, verdict.job.priority) == (4, 2)


def test_defaults_come_from_the_queue() -> None:
    made = admit(new(), facts(QueueSettings(max_tries=2)), NOW).job
    assert made
    assert (made.max_tries, made.priority) == (2, 5)


@pytest.mark.parametrize(
    ("deadline", "ttl", "max_age", "expires_at"),
    [
        (None, None, None, None),
        (NOW + 9, None, None, NOW + 9),
        (None, 5, None, NOW + 5),
        (None, None, 7, NOW + 7),
        (NOW + 9, 5, 7, NOW + 5),
        (NOW + 1, 5, 7, NOW + 1),
    ],
)
def test_earliest_limit_expires_the_job(
    deadline: int | None, ttl: int | None, max_age: int | None, expires_at: int | None
) -> None:
    spec = new(deadline=deadline, ttl=ttl)
    made = admit(spec, facts(QueueSettings(max_age=max_age)), NOW).job
    assert made
    assert (made.expires_at, made.deadline) == (expires_at, deadline)


def test_repeated_insert_is_accepted_and_any_other_is_a_duplicate() -> None:
    spec = new()
    stored = running(spec)
    again = admit(spec, facts(existing=stored), NOW)
    assert (again.outcome, again.job) == (Outcome.ACCEPTED, stored)
    other = admit(new(payload=msgspec.Raw(b"[]")), facts(existing=stored), NOW)
    assert (other.outcome, other.reason, other.job) == (Outcome.DUPLICATE, "id", None)
    assert not other.taken


def test_draining_queue_and_unknown_parent_reject() -> None:
    draining = admit(new(), facts(QueueSettings(draining=True)), NOW)
    assert (draining.outcome, draining.reason) == (Outcome.REJECTED, "queue-draining")
    orphan = admit(new(depends_on=("p", "x")), facts(parents={"p": job("p"), "x": None}), NOW)
    assert (orphan.reason, orphan.existing_id) == ("unknown-parent", "x")


UNSTARTED, STARTED, RUNNING = job("o"), job("o", state=State.RETRY, tries=1), running(new("o"))
ENDED = job("o", state=State.COMPLETED)
ACCEPT, DUPLICATE, REPLACE, BEHIND = "accept", "duplicate", "replace", "behind"


@pytest.mark.parametrize(
    ("mode", "owner", "held_until", "expected"),
    [
        (M.SIMPLE, UNSTARTED, None, DUPLICATE),
        (M.SIMPLE, RUNNING, None, DUPLICATE),
        (M.SIMPLE, ENDED, None, ACCEPT),
        (M.SIMPLE, None, None, ACCEPT),
        (M.SIMPLE, ENDED, NOW + 1, DUPLICATE),
        (M.SIMPLE, ENDED, NOW, ACCEPT),
        (M.THROTTLE, RUNNING, NOW + 1, DUPLICATE),
        (M.THROTTLE, ENDED, NOW + 1, DUPLICATE),
        (M.THROTTLE, None, NOW + 1, DUPLICATE),
        (M.THROTTLE, RUNNING, NOW, ACCEPT),
        (M.THROTTLE, RUNNING, None, DUPLICATE),
        (M.THROTTLE, ENDED, None, ACCEPT),
        (M.DEBOUNCE, UNSTARTED, None, REPLACE),
        (M.DEBOUNCE, STARTED, None, DUPLICATE),
        (M.DEBOUNCE, RUNNING, None, DUPLICATE),
        (M.DEBOUNCE, ENDED, None, ACCEPT),
        (M.DEBOUNCE, None, None, ACCEPT),
        (M.KEEP_LAST, UNSTARTED, None, REPLACE),
        (M.KEEP_LAST, STARTED, None, BEHIND),
        (M.KEEP_LAST, RUNNING, None, BEHIND),
        (M.KEEP_LAST, ENDED, None, ACCEPT),
        (M.KEEP_LAST, None, None, ACCEPT),
    ],
)
def test_dedup_table(
    mode: DedupMode, owner: Job | None, held_until: int | None, expected: str
) -> None:
    found = facts(holder=Holder("o", held_until), holder_job=owner)
    verdict = admit(new("n", dedup=Dedup("d", mode, 10)), found, NOW)
    seen = {
        ACCEPT: (Outcome.ACCEPTED, None, (), None),
        DUPLICATE: (Outcome.DUPLICATE, "o", (), None),
        REPLACE: (Outcome.REPLACED, None, ("o",), None),
        BEHIND: (Outcome.ACCEPTED, None, (), "o"),
    }
    told = (verdict.outcome, verdict.existing_id, verdict.replaced, verdict.behind)
    assert told == seen[expected]


def test_job_behind_an_owner_is_blocked_by_it_once() -> None:
    found = facts(holder=Holder("o"), holder_job=RUNNING, parents={})
    made = admit(new("n", dedup=Dedup("d", M.KEEP_LAST)), found, NOW).job
    assert made
    assert (made.state, made.waiting_on) == (State.BLOCKED, 1)
    found.parents = {"o": RUNNING, "p": job("p")}
    both = new("n", dedup=Dedup("d", M.KEEP_LAST), depends_on=("o", "p"))
    made = admit(both, found, NOW).job
    assert made
    assert made.waiting_on == 2


def test_successor_of_a_successor_waits_behind_the_same_owner() -> None:
    waiting = job("w", state=State.BLOCKED, waiting_on=1)
    found = facts(holder=Holder("w"), holder_job=waiting, holder_behind=RUNNING)
    verdict = admit(new("n", dedup=Dedup("d", M.KEEP_LAST)), found, NOW)
    assert (verdict.replaced, verdict.behind) == (("w",), "o")


@pytest.mark.parametrize("mode", M)
def test_window_outlives_the_owner_only_for_throttle(mode: DedupMode) -> None:
    held = holder_after(new(dedup=Dedup("d", mode, 10)), NOW)
    assert held == Holder("a", NOW + 10 if mode is M.THROTTLE else None)
    assert holder_after(new(), NOW) is None


def test_window_is_extended_only_where_asked_and_where_there_is_one() -> None:
    asking = new(dedup=Dedup("d", M.THROTTLE, 10, extend=True))
    assert extended(asking, Holder("o", NOW + 1), NOW) == Holder("o", NOW + 10)
    assert extended(asking, Holder("o", None), NOW) is None
    assert extended(new(dedup=Dedup("d", M.THROTTLE, 10)), Holder("o", NOW + 1), NOW) is None


@pytest.mark.parametrize(
    ("when_full", "outcome", "existing", "replaced"),
    [
        (WhenFull.REJECT, Outcome.REJECTED, "run", ()),
        (WhenFull.COALESCE, Outcome.COALESCED, "wait", ()),
        (WhenFull.REPLACE_OLDEST, Outcome.REPLACED, None, ("wait",)),
    ],
)
def test_full_key(
    when_full: WhenFull, outcome: Outcome, existing: str | None, replaced: tuple[str, ...]
) -> None:
    found = facts(active=1, queued=1, first_queued="wait", first_active="run")
    spec = new(key=msgspec.structs.replace(KEY, when_full=when_full))
    verdict = admit(spec, found, NOW)
    assert (verdict.outcome, verdict.existing_id) == (outcome, existing)
    assert verdict.replaced == replaced


def test_debounced_owner_gives_up_its_place_only_in_its_own_key() -> None:
    dedup = Dedup("d", M.DEBOUNCE)
    same = facts(
        holder=Holder("o"), holder_job=job("o", new("o", key=KEY)), queued=1, first_queued="o"
    )
    assert admit(new("n", key=KEY, dedup=dedup), same, NOW).replaced == ("o",)
    other = facts(holder=Holder("o"), holder_job=UNSTARTED, queued=1, first_queued="x")
    verdict = admit(new("n", key=KEY, dedup=dedup), other, NOW)
    assert (verdict.outcome, verdict.reason) == (Outcome.REJECTED, "queue-depth")


def test_full_queue_refuses_or_discards_the_oldest() -> None:
    found = {"waiting": 2, "oldest_waiting": "old"}
    refusing = admit(new(), facts(QueueSettings(max_entries=2), **found), NOW)
    assert (refusing.outcome, refusing.reason) == (Outcome.REJECTED, "queue-full")
    old = QueueSettings(max_entries=2, discard=Discard.OLD)
    assert admit(new(), facts(old, **found), NOW).replaced == ("old",)
    assert admit(new(), facts(old, waiting=1), NOW).outcome is Outcome.ACCEPTED


def test_job_is_replaced_once_for_two_reasons() -> None:
    settings = QueueSettings(max_entries=1, discard=Discard.OLD)
    found = facts(settings, holder=Holder("o"), holder_job=UNSTARTED, waiting=2, oldest_waiting="o")
    assert admit(new("n", dedup=Dedup("d", M.DEBOUNCE)), found, NOW).replaced == ("o",)


def test_created_event_tells_a_replacement_and_nothing_else() -> None:
    assert creation_policy(Verdict(Outcome.ACCEPTED, "a")) is None
    told = creation_policy(Verdict(Outcome.REPLACED, "a", replaced=("b",)))
    assert told == Policy("replaced", replaced_id="b")


# Edges


@pytest.mark.parametrize("policy", OnParentFailure)
@pytest.mark.parametrize("state", State)
def test_edge_table(state: State, policy: OnParentFailure) -> None:
    if state not in FINAL:
        expected = EdgeState.OPEN
    elif state is State.COMPLETED or policy is OnParentFailure.RUN:
        expected = EdgeState.SATISFIED
    elif policy is OnParentFailure.WAIT:
        expected = EdgeState.OPEN
    else:
        expected = EdgeState.BROKEN
    assert edge_state(state, policy) is expected


def test_child_counts_the_parents_it_waits_for() -> None:
    parents = {
        "done": job("done", state=State.COMPLETED),
        "open": job("open"),
        "run": running(new("run")),
    }
    made = admit(new("c", depends_on=tuple(parents)), facts(parents=parents), NOW).job
    assert made
    assert (made.state, made.waiting_on) == (State.BLOCKED, 2)


def test_child_of_a_failed_parent_becomes_unreachable_in_the_same_step() -> None:
    failed = job("p", state=State.FAILED)
    verdict = admit(new("c", depends_on=("p",)), facts(parents={"p": failed}), NOW)
    assert verdict.then
    assert verdict.then.event is EventType.UNREACHABLE
    assert verdict.then.reason == "parent p ended failed"


def test_verdict_is_reconsidered_when_parents_were_replaced() -> None:
    spec = new("c", depends_on=("p",))
    found = facts(parents={"p": job("p")})
    verdict = admit(spec, found, NOW)
    assert verdict.then is None
    found.parents = {"p": job("p", state=State.SKIPPED)}
    again = reconsidered(verdict, spec, found, NOW)
    assert again.then
    assert again.then.event is EventType.UNREACHABLE
    running_anyway = new("c", depends_on=("p",), on_parent_failure=OnParentFailure.RUN)
    made = reconsidered(verdict, running_anyway, found, NOW).job
    assert made
    assert (made.state, made.waiting_on) == (State.PENDING, 0)


def test_released_job_keeps_its_delay_and_loses_none() -> None:
    assert edges.released(NOW, NOW + 50).run_at == NOW + 50
    assert edges.released(NOW, NOW - 50).run_at == NOW
    assert edges.reblocked(NOW, 2, "p").waiting_on == 2
    assert edges.still_waiting(NOW, 1).event is EventType.BLOCKED
