"""How the processes behaved."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.testing.lab.history import History
from headrace.testing.lab.notes import Left, Surprise
from headrace.testing.lab.violation import Violation


def errors_are_typed(history: History) -> Iterator[Violation]:
    """Nobody saw an error that is not in the tree of Headrace's errors."""
    for note in history.of(Surprise):
        yield Violation(f"process {note.pid}, {note.where}: {note.error}")


def processes_stay(history: History) -> Iterator[Violation]:
    """No worker and no producer ended without being told to."""
    for note in history.of(Left):
        if not note.killed:
            yield Violation(f"process {note.victim} ended by itself with {note.code}")
