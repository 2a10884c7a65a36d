"""Taking turns: writers of several processes get the write lock one after the other.

SQLite's own lock is polled and goes to whoever looks at the right moment: a busy process takes it
again and again while others wait for seconds. Here the next in line holds the door: `next` is
held by whoever waits for `turn`, so the one that just had its turn cannot have it again before
them.

This is only about fairness. SQLite's lock is what keeps the store safe, and a turn that does not
come is gone without.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from pathlib import Path

_PATIENCE = 1.0
"""Seconds to wait for a turn before going without."""
_SULK = 60.0
"""Seconds to go without after that: somebody holds a lock and is not running."""
_AT_THE_DOOR = 0.000_1
_IN_LINE = 0.001
_NOW = fcntl.LOCK_EX | fcntl.LOCK_NB


class Turn:
    """A turn at writing, for one thread."""

    def __init__(self, folder: Path | None) -> None:
        self._next = self._turn = -1
        self._without_until = 0.0
        if folder is not None:
            with contextlib.suppress(OSError):
                flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
                self._next = os.open(folder / "next.lock", flags, 0o600)
                self._turn = os.open(folder / "turn.lock", flags, 0o600)

    def take(self) -> None:
        """Waits for a turn, but not for ever."""
        if self._turn < 0 or time.monotonic() < self._without_until:
            return
        deadline = time.monotonic() + _PATIENCE
        if _lock(self._next, deadline, _IN_LINE):
            came = _lock(self._turn, deadline, _AT_THE_DOOR)
            _unlock(self._next)
            if came:
                return
        self._without_until = time.monotonic() + _SULK

    def take_now(self) -> bool:
        """Takes the turn if nobody has it or waits for it."""
        if self._turn < 0:
            return True
        try:
            fcntl.flock(self._next, _NOW)
            try:
                fcntl.flock(self._turn, _NOW)
            finally:
                fcntl.flock(self._next, fcntl.LOCK_UN)
        except OSError:
            return False
        return True

    def give(self) -> None:
        if self._turn >= 0:
            _unlock(self._turn)

    def close(self) -> None:
        for file in (self._next, self._turn):
            if file >= 0:
                os.close(file)
        self._next = self._turn = -1


def _lock(file: int, deadline: float, pause: float) -> bool:
    while True:
        try:
            fcntl.flock(file, _NOW)
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(pause)
        except OSError:
            return False
        else:
            return True


def _unlock(file: int) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_UN)
    except OSError:
        return  # then it is not locked
