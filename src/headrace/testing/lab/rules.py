"""The transitions of a job as FEATURES and docs/states.md tell them, written down a second time.

On purpose not made from `headrace.core.states`: the checker must not believe the table that it
checks.
"""

from __future__ import annotations

from collections.abc import Mapping

WAITING = ("pending", "retry", "blocked")
FINAL = frozenset(
    {
        "completed",
        "failed",
        "dead",
        "dismissed",
        "cancelled",
        "expired",
        "skipped",
        "stale",
        "unreachable",
    }
)

_SAME = "="


def _all(states: tuple[str, ...] | frozenset[str], to: str) -> dict[str, str]:
    return {state: state if to is _SAME else to for state in states}


MOVES: Mapping[str, Mapping[str, str]] = {
    "released": {"blocked": "pending"},
    "unreachable": {"blocked": "unreachable"},
    "blocked": {"unreachable": "blocked", "pending": "blocked"},
    "started": {"pending": "active", "retry": "active"},
    "retry": {"active": "retry"},
    "snoozed": {"active": "pending"},
    "returned": {"active": "pending"},
    "moved": {"active": "pending"},
    "detached": {"active": "active"},
    "progress": {"active": "active"},
    "logged": {"active": "active"},
    "cancelling": {"active": "active"},
    "changed": _all(WAITING, _SAME),
    "completed": {"active": "completed"},
    "failed": {"active": "failed"},
    "dead": {"active": "dead"},
    "stale": {"active": "stale"},
    "cancelled": _all(("active", *WAITING), "cancelled"),
    "expired": _all(("active", *WAITING), "expired"),
    "skipped": _all(WAITING, "skipped"),
    "dismissed": {"dead": "dismissed"},
    "retried": _all(FINAL - {"dismissed"}, "pending"),
    "deleted": _all(FINAL, _SAME),
    "stale_completion_ignored": _all(("active", *WAITING, *FINAL), _SAME),
}
"""event → {state before: state after}."""

FIRST = frozenset({"pending", "blocked"})
"""The states that a job is created in."""


def after(event: str, before: str) -> str | None:
    """The state after the event, None where it is not allowed."""
    return MOVES.get(event, {}).get(before)
