"""Pace: whether commits are so quick that an event loop may wait for them itself.

Handing a commit to another thread and back costs more than a quick commit itself: two threads to
wake, each of which waits for the interpreter lock of the other. A disk that is slow, if only for a
while, is left to the writer's thread: the event loop must not stand still for it.
"""

from __future__ import annotations

import time

QUICK = 0.001
"""Seconds that a commit may take on average."""
REST = 2.0
"""Seconds until the next try, after commits were found to take longer."""
_WEIGHT = 1 / 32
"""Of the newest commit in the average: a slow one now and then does not count for much."""
_MOST = 4 * QUICK
"""Seconds that one commit counts as at the most, however slow: it says little of the next."""


class Pace:
    """A moving average of the commits that an event loop waited for."""

    def __init__(self) -> None:
        self._average = 0.0
        self._resting_until = 0.0

    @property
    def quick(self) -> bool:
        return not self._resting_until or time.monotonic() >= self._resting_until

    def took(self, seconds: float) -> None:
        """Counts a commit."""
        self._average += (min(seconds, _MOST) - self._average) * _WEIGHT
        if self._average > QUICK:
            self._average = QUICK  # the next try has to be quick itself
            self._resting_until = time.monotonic() + REST
        elif self._resting_until:
            self._resting_until = 0.0
