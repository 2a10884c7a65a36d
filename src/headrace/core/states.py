"""The states of a job, the events that move it, and the one table of transitions.

Everything that an engine, a worker or a view needs to know about a state is a table here:
which end a job, which wait, which satisfy an edge. Nothing else decides it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType


class State(StrEnum):
    """The stored states."""

    __hash__ = str.__hash__  # enum's own is a Python call, and every table look-up pays it

    PENDING = "pending"
    BLOCKED = "blocked"
    ACTIVE = "active"
    RETRY = "retry"
    COMPLETED = "completed"
    FAILED = "failed"
    DEAD = "dead"
    DISMISSED = "dismissed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    SKIPPED = "skipped"
    STALE = "stale"
    UNREACHABLE = "unreachable"


class EventType(StrEnum):
    """What can happen to a job; each writes one entry to the journal."""

    __hash__ = str.__hash__

    CREATED = "created"
    BLOCKED = "blocked"
    RELEASED = "released"
    STARTED = "started"
    RETRY = "retry"
    SNOOZED = "snoozed"
    RETURNED = "returned"
    DETACHED = "detached"
    MOVED = "moved"
    PROGRESS = "progress"
    LOGGED = "logged"
    CANCELLING = "cancelling"
    CHANGED = "changed"
    COMPLETED = "completed"
    FAILED = "failed"
    DEAD = "dead"
    DISMISSED = "dismissed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    SKIPPED = "skipped"
    STALE = "stale"
    UNREACHABLE = "unreachable"
    STALE_COMPLETION_IGNORED = "stale_completion_ignored"
    RETRIED = "retried"
    DELETED = "deleted"


FINAL = frozenset(
    {
        State.COMPLETED,
        State.FAILED,
        State.DEAD,
        State.DISMISSED,
        State.CANCELLED,
        State.EXPIRED,
        State.SKIPPED,
        State.STALE,
        State.UNREACHABLE,
    }
)
"""No worker touches a job in one of these again, unless it is explicitly brought back."""

CLAIMABLE = frozenset({State.PENDING, State.RETRY})
"""States from which a job can start once it is due and its key has a slot."""

WAITING = CLAIMABLE | {State.BLOCKED}
"""Accepted and not running."""

REVIVABLE = FINAL - {State.DISMISSED}
"""Final states that an explicit `retry` brings back."""

DERIVED: dict[str, frozenset[State]] = {
    "scheduled": frozenset({State.PENDING}),
    "parked": CLAIMABLE,
    "paused": CLAIMABLE,
    "detached": frozenset({State.ACTIVE}),
}
"""States that are shown and not stored, and the stored ones behind them; see `Job.shown`."""

SATISFIES = frozenset({State.COMPLETED})
"""Parent states that satisfy an edge."""

FIRST = frozenset({State.PENDING, State.BLOCKED})
"""States a job is created in: blocked while a parent has not completed."""


def _transitions() -> dict[tuple[State | None, EventType], State]:
    s, e = State, EventType
    table: dict[tuple[State | None, EventType], State] = {
        (None, e.CREATED): s.PENDING,
        (s.BLOCKED, e.RELEASED): s.PENDING,
        (s.BLOCKED, e.UNREACHABLE): s.UNREACHABLE,
        (s.UNREACHABLE, e.BLOCKED): s.BLOCKED,
        (s.PENDING, e.BLOCKED): s.BLOCKED,
        (s.PENDING, e.STARTED): s.ACTIVE,
        (s.RETRY, e.STARTED): s.ACTIVE,
        (s.ACTIVE, e.RETRY): s.RETRY,
        (s.ACTIVE, e.SNOOZED): s.PENDING,
        (s.ACTIVE, e.RETURNED): s.PENDING,
        (s.ACTIVE, e.MOVED): s.PENDING,
        (s.ACTIVE, e.DETACHED): s.ACTIVE,
        (s.ACTIVE, e.PROGRESS): s.ACTIVE,
        (s.ACTIVE, e.LOGGED): s.ACTIVE,
        (s.ACTIVE, e.CANCELLING): s.ACTIVE,
        (s.ACTIVE, e.COMPLETED): s.COMPLETED,
        (s.ACTIVE, e.FAILED): s.FAILED,
        (s.ACTIVE, e.STALE): s.STALE,
        (s.DEAD, e.DISMISSED): s.DISMISSED,
    }
    for state in (s.ACTIVE, *CLAIMABLE):
        table[state, e.DEAD] = s.DEAD
    for state in (s.ACTIVE, *WAITING):
        table[state, e.CANCELLED] = s.CANCELLED
        table[state, e.EXPIRED] = s.EXPIRED
    for state in WAITING:
        table[state, e.SKIPPED] = s.SKIPPED
        table[state, e.CHANGED] = state
    for state in REVIVABLE:
        table[state, e.RETRIED] = s.PENDING
    for state in FINAL:
        table[state, e.DELETED] = state
    for state in State:
        table[state, e.STALE_COMPLETION_IGNORED] = state
    return table


TRANSITIONS: Mapping[tuple[State | None, EventType], State] = MappingProxyType(_transitions())
"""(state, event) → next state. A pair that is not here is refused and changes nothing."""


def next_state(state: State | None, event: EventType) -> State | None:
    """The state after `event`, or None where the table does not allow it."""
    return TRANSITIONS.get((state, event))


def sources(event: EventType) -> frozenset[State]:
    """The states in which `event` is allowed."""
    return frozenset(s for s, e in TRANSITIONS if e is event and s is not None)


def diagram() -> str:
    """The state diagram in Mermaid, from the table."""
    lines = ["stateDiagram-v2", "    [*] --> blocked: created"]
    for (before, event), after in sorted(
        TRANSITIONS.items(), key=lambda item: (item[0][0] or "", item[0][1])
    ):
        if before is not after:
            lines.append(f"    {before or '[*]'} --> {after}: {event}")
    return "\n".join(lines) + "\n"
