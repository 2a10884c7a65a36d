"""Time as an argument of everything: the system's clock, or one that a test moves by hand."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol


class Clock(Protocol):
    """Milliseconds since the epoch."""

    def now(self) -> int: ...

    def seconds_until(self, moment: int) -> float:
        """How long to wait, in real seconds, before looking at the clock again."""
        ...

    def on_move(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Calls back when the clock jumps, until the returned function is called."""
        ...


class SystemClock:
    """The system's wall clock."""

    def now(self) -> int:
        return time.time_ns() // 1_000_000

    def seconds_until(self, moment: int) -> float:
        # Rounded up: waking a moment early would only mean looking twice.
        return max(0.0, moment / 1000 - time.time() + 0.0005)

    def on_move(self, callback: Callable[[], None]) -> Callable[[], None]:
        return _nothing


def _nothing() -> None:
    """A wall clock never jumps by hand."""
