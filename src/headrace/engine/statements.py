"""Named SQL statements, for engines that have some.

In a package's `statements.sql`, `-- name: claim_ready` starts a statement. `@job_json@` puts
another statement's text in its place; `@rows(3)@` stands for as many `(?, ?, ?)` as there are rows
to write.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from pkgutil import get_data
from typing import TypeVar

V = TypeVar("V")

_NAME = re.compile(r"^-- name: (\w+)\s*$", re.MULTILINE)
_COMMENT = re.compile(r"^--.*\n?", re.MULTILINE)
_INCLUDE = re.compile(r"@(\w+)@")
_ROWS = re.compile(r"@rows\((\d+)\)@")

LARGEST = 128
"""At most so many rows in one statement: what is left of a batch takes statements of half the
size, and so on, so that the few shapes of a statement stay prepared."""


def text(package: str, name: str) -> str:
    """A file that is shipped with a package. (importlib.resources takes longer to import.)"""
    data = get_data(package, name)
    assert data is not None, f"{package} is not on a file system"
    return data.decode()


def load(package: str) -> dict[str, str]:
    """The statements of a package by name."""
    parts = _NAME.split(text(package, "statements.sql"))[1:]
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


@cache
def for_rows(statement: str, count: int) -> str:
    """The text of a statement that writes `count` rows."""

    def rows(match: re.Match[str]) -> str:
        return ", ".join(["(" + ", ".join("?" * int(match[1])) + ")"] * count)

    return _ROWS.sub(rows, statement)


def runs(statement: str, values: Sequence[V]) -> list[tuple[str, Sequence[V]]]:
    """The texts and values that write all rows, whose values stand one after the other."""
    columns = _width(statement)
    if len(values) == columns:
        return [(for_rows(statement, 1), values)]
    found: list[tuple[str, Sequence[V]]] = []
    start, left = 0, len(values) // columns
    while left:
        count = LARGEST if left >= LARGEST else 1 << left.bit_length() - 1
        end = start + count * columns
        found.append((for_rows(statement, count), values[start:end]))
        start, left = end, left - count
    return found


@cache
def _width(statement: str) -> int:
    """How many values a row of the statement has."""
    found = _ROWS.search(statement)
    assert found, statement
    return int(found[1])
