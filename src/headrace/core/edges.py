"""Edges: what the end of a parent means for a dependent."""

from __future__ import annotations

from enum import StrEnum

from headrace.core.change import Write
from headrace.core.model import OnParentFailure
from headrace.core.states import FINAL, SATISFIES, EventType, State


class EdgeState(StrEnum):
    """How one edge stands."""

    OPEN = "open"
    SATISFIED = "satisfied"
    BROKEN = "broken"


def edge_state(parent: State, policy: OnParentFailure) -> EdgeState:
    """How the edge to a parent in state `parent` stands for a dependent with this policy."""
    if parent not in FINAL:
        return EdgeState.OPEN
    if parent in SATISFIES or policy is OnParentFailure.RUN:
        return EdgeState.SATISFIED
    return EdgeState.OPEN if policy is OnParentFailure.WAIT else EdgeState.BROKEN


def released(at: int, run_at: int) -> Write:
    """The last open edge was satisfied: the dependent may run."""
    return Write(event=EventType.RELEASED, at=at, waiting_on=0, run_at=max(at, run_at))


def still_waiting(at: int, waiting_on: int) -> Write:
    """The dependent was brought back, but parents that it waited for have not ended."""
    return Write(
        event=EventType.BLOCKED,
        at=at,
        waiting_on=waiting_on,
        reason="it waits for its parents again",
    )


def unreachable(at: int, parent_id: str, parent: State) -> Write:
    """A parent broke the edge: the dependent ends, and so do its own dependents."""
    return Write(event=EventType.UNREACHABLE, at=at, reason=f"parent {parent_id} ended {parent}")


def reblocked(at: int, waiting_on: int, parent_id: str) -> Write:
    """The parent that broke the edge was brought back: the dependent waits again."""
    return Write(
        event=EventType.BLOCKED,
        at=at,
        waiting_on=waiting_on,
        reason=f"parent {parent_id} was retried",
    )
