"""The panel: a few numbers that all processes of a run share, moved by the lab.

The clock of a run is the machine's monotonic clock plus an offset on the panel: the nemesis can
move it, and nobody else can.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable
from pathlib import Path

from headrace.testing.lab.history import Plan

_SIZE = 24


class Panel:
    """The clock's offset in milliseconds, whether the run is to become quiet, and how slow the disk
    is."""

    def __init__(self, path: Path) -> None:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if os.fstat(file).st_size < _SIZE:
                os.ftruncate(file, _SIZE)
            self._memory = mmap.mmap(file, _SIZE)
        finally:
            os.close(file)
        self._numbers = memoryview(self._memory).cast("q")

    @property
    def offset(self) -> int:
        return self._numbers[0]

    @offset.setter
    def offset(self, milliseconds: int) -> None:
        self._numbers[0] = milliseconds

    @property
    def calm(self) -> bool:
        """Handlers do what they should, and at once."""
        return self._numbers[1] != 0

    @calm.setter
    def calm(self, calm: bool) -> None:
        self._numbers[1] = int(calm)

    @property
    def lag(self) -> float:
        """Seconds that every write to the disk takes longer."""
        return self._numbers[2] / 1_000_000

    @lag.setter
    def lag(self, seconds: float) -> None:
        self._numbers[2] = round(seconds * 1_000_000)

    def close(self) -> None:
        self._numbers.release()
        self._memory.close()


class LabClock:
    """The clock of a run. Like the system's, it says nothing when it jumps."""

    def __init__(self, plan: Plan, panel: Panel) -> None:
        self._plan, self._panel = plan, panel

    def now(self) -> int:
        passed = (time.monotonic_ns() - self._plan.mono) // 1_000_000
        return self._plan.wall + passed + self._panel.offset

    def seconds_until(self, moment: int) -> float:
        return max(0.0, (moment - self.now()) / 1000 + 0.0005)

    def on_move(self, callback: Callable[[], None]) -> Callable[[], None]:
        return _nothing


def _nothing() -> None:
    """A wall clock tells nobody that it was set."""
