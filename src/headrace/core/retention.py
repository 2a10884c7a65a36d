"""Retention: which ended jobs may go."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec import Struct

from headrace.core.queue import DAY, QueueSettings
from headrace.core.retry import SECOND
from headrace.core.states import FINAL, State

JOURNAL_AGE = 7 * DAY


SEEN = 10 * SECOND
"""An ended job stays so long at least, whatever its retention: whoever waits for it, and has missed
the bell, looks every 5 s."""


class Cutoff(Struct, frozen=True):
    """Jobs of a queue that ended in `state`: those that ended before `ended_before`, and all but
    the newest `keep`, may go; but none that ended after `seen_before`."""

    service: str
    queue: str
    state: State
    ended_before: int | None
    keep: int | None
    seen_before: int

    def lets_go(self, ended_at: int, newer: int) -> bool:
        """Whether a job may go after which `newer` others ended."""
        if ended_at > self.seen_before:
            return False
        return (self.keep is not None and newer >= self.keep) or (
            self.ended_before is not None and ended_at <= self.ended_before
        )


def cutoffs(settings: Mapping[tuple[str, str], QueueSettings], now: int) -> Iterator[Cutoff]:
    """The cut-offs of the given queues; only those that can delete anything."""
    for (service, queue), chosen in settings.items():
        for state in sorted(FINAL):
            kept = chosen.kept(state)
            if kept.age is not None or kept.count is not None:
                before = None if kept.age is None else now - kept.age
                yield Cutoff(service, queue, state, before, kept.count, now - SEEN)
