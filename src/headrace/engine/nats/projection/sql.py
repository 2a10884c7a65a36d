"""Named statements from the .sql files beside this one.

`-- name: known` starts a statement; `@rows(3)@` stands for as many `(?, ?, ?)` as there are rows
to write.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

_NAME = re.compile(r"^-- name: (\w+)\s*$", re.MULTILINE)
_COMMENT = re.compile(r"^--.*\n?", re.MULTILINE)
_ROWS = re.compile(r"@rows\((\d+)\)@")

LARGEST = 128
"""At most so many rows in one statement: what is left of a batch takes statements of half the
size, and so on, so that the few shapes of a statement stay prepared."""


def _text(name: str) -> str:
    return files("headrace.engine.nats.projection").joinpath(name).read_text("utf-8")


def _load() -> dict[str, str]:
    parts = _NAME.split(_text("statements.sql"))[1:]
    return {
        name: _COMMENT.sub("", body).strip()
        for name, body in zip(parts[::2], parts[1::2], strict=True)
    }


SCHEMA = _text("schema.sql")
STATEMENTS = _load()


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
