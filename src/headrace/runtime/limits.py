"""Time limits: tells the worker which runs are out of time.

Most limits are far away and most jobs are short, so a timer per job would be wasted: runs are
looked over once a second, and only those whose limit is near get a timer of their own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from headrace.runtime.clock import Clock
from headrace.runtime.runs import Run, Runs

NEAR = 2.0


class TimeLimits:
    """Calls `expired(run)` once for each run whose limit has come."""

    def __init__(self, clock: Clock, runs: Runs, expired: Callable[[Run], None]) -> None:
        self._clock, self._runs, self._expired = clock, runs, expired
        self._timers: dict[Run, asyncio.TimerHandle] = {}
        self._look: asyncio.TimerHandle | None = None

    def watch(self, run: Run, now: int) -> None:
        if run.limit is not None and run.limit - now < NEAR * 1000:
            self._arm(run, run.limit)
        elif self._look is None:
            self._look = asyncio.get_running_loop().call_later(NEAR / 2, self.check)

    def forget(self, run: Run) -> None:
        run.limit = None
        if self._timers and (timer := self._timers.pop(run, None)):
            timer.cancel()

    def check(self) -> None:
        """Looks all runs over."""
        if self._look is not None:
            self._look.cancel()
        self._look = None
        now, limited = self._clock.now(), False
        for run in list(self._runs.values()):
            if run.limit is None:
                continue
            limited = True
            if run.limit <= now:
                self._fire(run)
            elif run.limit - now < NEAR * 1000 and run not in self._timers:
                self._arm(run, run.limit)
        if limited:
            self._look = asyncio.get_running_loop().call_later(NEAR / 2, self.check)

    def _arm(self, run: Run, limit: int) -> None:
        seconds = self._clock.seconds_until(limit)
        loop = asyncio.get_running_loop()
        self._timers[run] = loop.call_later(seconds, self._due, run)

    def _due(self, run: Run) -> None:
        self._timers.pop(run, None)
        if run.limit is not None and run.limit > self._clock.now():
            self._arm(run, run.limit)
        elif run.limit is not None:
            self._fire(run)

    def _fire(self, run: Run) -> None:
        self.forget(run)
        self._expired(run)

    def close(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        if self._look is not None:
            self._look.cancel()
        self._timers.clear()
