"""How far a store has got, and what of that this process has been told."""

from __future__ import annotations

from msgspec import Struct


class Span(Struct, frozen=True, array_like=True):
    """The numbers that one commit used: journal entries and document revisions, each from the
    newest before it to the newest after it."""

    seq_before: int = 0
    seq: int = 0
    revision_before: int = 0
    revision: int = 0


_MOST_GAPS = 1000


class Coverage:
    """Up to which number everything is known. Commits chain: each starts where the last ended,
    so a commit that nobody told of leaves a gap."""

    def __init__(self, known: int = 0) -> None:
        self.known = known
        self._ahead: dict[int, int] = {}

    def add(self, before: int, after: int) -> None:
        if after <= self.known:
            return
        if before > self.known:
            if len(self._ahead) < _MOST_GAPS:
                self._ahead[before] = after
            return
        self.known = after
        while self._ahead:
            reached = [start for start in self._ahead if start <= self.known]
            if not reached:
                return
            self.known = max(self.known, *(self._ahead.pop(start) for start in reached))

    def reach(self, number: int) -> bool:
        """Takes note that the store has got to `number`; False if some of it was not known."""
        if number <= self.known:
            return True
        self.known = number
        self._ahead = {start: end for start, end in self._ahead.items() if end > number}
        return False
