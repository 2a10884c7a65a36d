"""Named statements from the .sql files beside this one.

`-- name: claim_ready` starts a statement. `@job_json@` puts another statement's text in its
place; `@rows(3)@` stands for as many `(?, ?, ?)` as there are rows to write.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

_NAME = re.compile(r"^-- name: (\w+)\s*$", re.MULTILINE)
_COMMENT = re.compile(r"^--.*\n?", re.MULTILINE)
_INCLUDE = re.compile(r"@(\w+)@")
_ROWS = re.compile(r"@rows\((\d+)\)@")

LARGEST = 128
"""At most so many rows in one statement: what is left of a batch takes statements of half the
size, and so on, so that the few shapes of a statement stay prepared."""


def _load() -> dict[str, str]:
    text = files("headrace.engine.sqlite").joinpath("statements.sql").read_text("utf-8")
    parts = _NAME.split(text)[1:]
    statements = {
        name: _COMMENT.sub("", body).strip()
        for name, body in zip(parts[::2], parts[1::2], strict=True)
    }

    def included(match: re.Match[str]) -> str:
        return statements[match[1]]

    return {
        name: _INCLUDE.sub(included, _INCLUDE.sub(included, body))
        for name, body in statements.items()
    }


STATEMENTS = _load()


def statement(name: str) -> str:
    """The text of a statement."""
    return STATEMENTS[name]


@cache
def for_rows(name: str, count: int) -> str:
    """The text of a statement that writes `count` rows."""

    def rows(match: re.Match[str]) -> str:
        row = "(" + ", ".join("?" * int(match[1])) + ")"
        return ", ".join([row] * count)

    return _ROWS.sub(rows, STATEMENTS[name])


@cache
def width(name: str) -> int:
    """How many values a row of the statement has."""
    found = _ROWS.search(STATEMENTS[name])
    assert found, name
    return int(found[1])
