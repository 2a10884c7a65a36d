"""The named statements of this engine; see `engine/statements.py`."""

from __future__ import annotations

from headrace.engine.statements import load

STATEMENTS = load("headrace.engine.sqlite")


def statement(name: str) -> str:
    """The text of a statement."""
    return STATEMENTS[name]
