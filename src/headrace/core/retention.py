"""Retention: which ended jobs may go."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec import Struct

from headrace.core.queue import DAY, QueueSettings
from headrace.core.states import FINAL, State

JOURNAL_AGE = 7 * DAY


class Cutoff(Struct, frozen=True):
    """Jobs of a queue that ended in `state`: those that ended before `ended_before`, and all but
    the newest `keep`, may go."""

    service: str
    queue: str
    state: State
    ended_before: int | None
    keep: int | None


def cutoffs(settings: Mapping[tuple[str, str], QueueSettings], now: int) -> Iterator[Cutoff]:
    """The cut-offs of the given queues; only those that can delete anything."""
    for (service, queue), chosen in settings.items():
        for state in sorted(FINAL):
            kept = chosen.kept(state)
            if kept.age is not None or kept.count is not None:
                before = None if kept.age is None else now - kept.age
                yield Cutoff(service, queue, state, before, kept.count)
