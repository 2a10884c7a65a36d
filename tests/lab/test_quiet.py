"""The end of a run: the lab waits for jobs that end slowly, and not for those that are stuck."""

from __future__ import annotations

import time
from typing import Any

import pytest

from headrace.core.model import Counted
from headrace.core.states import State
from headrace.testing.lab import run

PATIENCE = 0.3
"""Seconds; three looks."""


class Slow:
    """An app whose jobs end one at a look, but for those that never do; and a crew that needs no
    tending."""

    def __init__(self, jobs: int, stuck: int = 0) -> None:
        self.left, self._stuck = jobs, stuck

    def queue(self, _: str) -> Slow:
        return self

    async def resume(self) -> None: ...

    async def release_key(self, *_: str, reason: str) -> None: ...

    def tend(self) -> None: ...

    async def count(self) -> list[Counted]:
        self.left = max(self._stuck, self.left - 1)
        active = [Counted("lab", "main", State.ACTIVE, self.left)] if self.left else []
        return [*active, Counted("lab", "main", State.COMPLETED, 7)]


async def until_quiet(slow: Any) -> None:
    await run._until_quiet(slow, slow, PATIENCE)  # pyright: ignore[reportPrivateUsage]


async def test_lab_waits_as_long_as_jobs_end() -> None:
    slow = Slow(10)
    await until_quiet(slow)
    assert slow.left == 0


@pytest.mark.timeout(20)
async def test_lab_does_not_wait_for_jobs_that_are_stuck() -> None:
    slow, began = Slow(3, stuck=2), time.monotonic()
    await until_quiet(slow)
    assert slow.left == 2
    assert time.monotonic() - began >= PATIENCE
