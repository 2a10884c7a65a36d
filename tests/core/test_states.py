"""The transition table."""

from __future__ import annotations

import re

import pytest

from headrace.core.states import (
    CLAIMABLE,
    FINAL,
    REVIVABLE,
    SATISFIES,
    TRANSITIONS,
    WAITING,
    EventType,
    State,
    diagram,
    next_state,
    sources,
)

E, S = EventType, State
WORKER_EVENTS = (
    E.STARTED,
    E.RETRY,
    E.SNOOZED,
    E.RETURNED,
    E.DETACHED,
    E.MOVED,
    E.PROGRESS,
    E.LOGGED,
    E.COMPLETED,
    E.FAILED,
    E.DEAD,
    E.CANCELLED,
    E.EXPIRED,
    E.STALE,
    E.SKIPPED,
    E.CANCELLING,
    E.CHANGED,
)


@pytest.mark.parametrize("state", sorted(FINAL))
@pytest.mark.parametrize("event", WORKER_EVENTS)
def test_final_state_rejects_what_workers_and_upkeep_do(state: State, event: EventType) -> None:
    assert next_state(state, event) is None


@pytest.mark.parametrize(
    ("event", "to", "from_"),
    [
        (E.STARTED, S.ACTIVE, CLAIMABLE),
        (E.RETRY, S.RETRY, {S.ACTIVE}),
        (E.SNOOZED, S.PENDING, {S.ACTIVE}),
        (E.RETURNED, S.PENDING, {S.ACTIVE}),
        (E.MOVED, S.PENDING, {S.ACTIVE}),
        (E.COMPLETED, S.COMPLETED, {S.ACTIVE}),
        (E.FAILED, S.FAILED, {S.ACTIVE}),
        (E.STALE, S.STALE, {S.ACTIVE}),
        (E.CANCELLED, S.CANCELLED, {S.PENDING, S.RETRY, S.BLOCKED, S.ACTIVE}),
        (E.EXPIRED, S.EXPIRED, {S.PENDING, S.RETRY, S.BLOCKED, S.ACTIVE}),
        (E.SKIPPED, S.SKIPPED, {S.PENDING, S.RETRY, S.BLOCKED}),
        (E.DEAD, S.DEAD, {S.ACTIVE, S.RETRY, S.PENDING}),
        (E.DISMISSED, S.DISMISSED, {S.DEAD}),
        (E.RETRIED, S.PENDING, FINAL - {S.DISMISSED}),
        (E.RELEASED, S.PENDING, {S.BLOCKED}),
        (E.UNREACHABLE, S.UNREACHABLE, {S.BLOCKED}),
        (E.BLOCKED, S.BLOCKED, {S.UNREACHABLE, S.PENDING}),
    ],
)
def test_event_leads_to_one_state_from_these(
    event: EventType, to: State, from_: frozenset[State]
) -> None:
    assert sources(event) == from_
    assert {next_state(state, event) for state in from_} == {to}


@pytest.mark.parametrize("event", [E.PROGRESS, E.LOGGED, E.DETACHED, E.CANCELLING])
def test_report_of_a_running_job_keeps_it_running(event: EventType) -> None:
    assert sources(event) == {S.ACTIVE}
    assert next_state(S.ACTIVE, event) is S.ACTIVE


def test_late_finish_can_be_told_in_every_state_and_changes_none() -> None:
    for state in State:
        assert next_state(state, E.STALE_COMPLETION_IGNORED) is state


def test_only_ended_jobs_are_deleted() -> None:
    assert sources(E.DELETED) == FINAL


def test_nothing_but_created_happens_to_no_job() -> None:
    assert [event for event in EventType if next_state(None, event)] == [E.CREATED]
    assert sources(E.CREATED) == frozenset()


def test_every_state_can_be_reached_and_every_event_is_in_the_table() -> None:
    assert set(TRANSITIONS.values()) == set(State)
    assert {event for _, event in TRANSITIONS} == set(EventType)


def test_sets_of_states_divide_them() -> None:
    assert FINAL | WAITING | {S.ACTIVE} == set(State)
    assert not FINAL & WAITING
    assert CLAIMABLE < WAITING
    assert FINAL - {S.DISMISSED} == REVIVABLE
    assert SATISFIES <= FINAL


def test_table_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        TRANSITIONS[S.DEAD, E.STARTED] = S.ACTIVE  # type: ignore[index]


def test_diagram_shows_each_change_of_state_once() -> None:
    lines = diagram().splitlines()
    assert lines[0] == "stateDiagram-v2"
    drawn = {m.groups() for line in lines if (m := re.match(r" +(\S+) --> (\S+): (\S+)$", line))}
    table = {
        (str(before or "[*]"), str(after), str(event))
        for (before, event), after in TRANSITIONS.items()
        if before is not after
    }
    assert drawn == table | {("[*]", "blocked", "created")}
    assert len(lines) == len(drawn) + 1
