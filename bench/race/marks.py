"""When handlers ran: a file of times, one for each job, that all processes of a race map into
memory. Nothing but the standard library, because every contestant's worker imports it."""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Sequence
from pathlib import Path

VARIABLE = "RACE_MARKS"
SLOTS = 50_000
_SIZE = SLOTS * 8


class Marks:
    """The times, in seconds of the machine's monotonic clock; 0 where a job has not run."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            path.write_bytes(bytes(_SIZE))
        with path.open("r+b") as file:
            self._times = memoryview(mmap.mmap(file.fileno(), _SIZE)).cast("d")

    def mark(self, job: int) -> None:
        """The job runs; only its first run counts."""
        if not self._times[job]:
            self._times[job] = time.monotonic()

    def __getitem__(self, job: int) -> float:
        return self._times[job]

    def times(self, jobs: range) -> Sequence[float]:
        return self._times[jobs.start : jobs.stop].tolist()


_own: Marks | None = None


def work(job: int) -> int:
    """What every handler of a race does: notes that it ran, and returns its argument."""
    global _own
    if _own is None:
        _own = Marks(Path(os.environ[VARIABLE]))
    _own.mark(job)
    return job
