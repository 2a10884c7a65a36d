"""Time limits: tells the worker which runs are out of time.

Most limits are far away and most jobs are short, so a timer per job would be wasted: runs are
looked over once a second, and only those whose limit is near get a timer of their own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace.runtime.clock import Clock

if TYPE_CHECKING:
    from headrace.runtime.worker import Run

NEAR = 2.0


class TimeLimits:
    """Calls `expired(run)` once for each run whose limit has come."""

    def __init__(self, clock: Clock, expired: Callable[[Run], None]) -> None:
        self._clock, self._expired = clock, expired
        self._limits: dict[Run, int] = {}
        self._timers: dict[Run, asyncio.TimerHandle] = {}
        self._look: asyncio.TimerHandle | None = None

    def watch(self, run: Run, limit: int, now: int) -> None:
        self._limits[run] = limit
        if limit - now < NEAR * 1000:
            self._arm(run, limit)
        elif self._look is None:
            self._look = asyncio.get_running_loop().call_later(NEAR / 2, self.check)

    def forget(self, run: Run) -> None:
        self._limits.pop(run, None)
        if self._timers and (timer := self._timers.pop(run, None)):
            timer.cancel()

    def check(self) -> None:
        """Looks all runs over."""
        if self._look is not None:
            self._look.cancel()
        self._look = None
        now = self._clock.now()
        for run, limit in list(self._limits.items()):
            if limit <= now:
                self._fire(run)
            elif limit - now < NEAR * 1000 and run not in self._timers:
                self._arm(run, limit)
        if self._limits:
            self._look = asyncio.get_running_loop().call_later(NEAR / 2, self.check)

    def _arm(self, run: Run, limit: int) -> None:
        seconds = self._clock.seconds_until(limit)
        loop = asyncio.get_running_loop()
        self._timers[run] = loop.call_later(seconds, self._due, run)

    def _due(self, run: Run) -> None:
        self._timers.pop(run, None)
        limit = self._limits.get(run)
        if limit is not None and limit > self._clock.now():
            self._arm(run, limit)
        elif limit is not None:
            self._fire(run)

    def _fire(self, run: Run) -> None:
        self.forget(run)
        self._expired(run)

    def close(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        if self._look is not None:
            self._look.cancel()
        self._limits.clear()
        self._timers.clear()
