"""A violation: a promise that a history does not keep."""

from __future__ import annotations

from msgspec import Struct


class Violation(Struct, frozen=True, omit_defaults=True):
    """What is wrong, with which job, and at which journal entries."""

    message: str
    job: str | None = None
    seqs: tuple[int, ...] = ()
    check: str = ""
