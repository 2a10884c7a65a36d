"""A clock that a test moves by hand."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

START = datetime(2030, 1, 1, 12, tzinfo=UTC)
"""When a manual clock begins: the same in every run."""

_LATER = 3600.0
"""Real seconds to wait for a time that only the test can bring; a move ends the wait."""


class ManualClock:
    """Stands still until it is moved. Whoever waits for a time (workers, time limits, leases) is
    told of every move. Any thread may move and read it."""

    def __init__(self, start: datetime = START) -> None:
        self._now = _milliseconds(start)
        self._lock = threading.Lock()
        self._callbacks: dict[object, Callable[[], None]] = {}

    def __repr__(self) -> str:
        return f"ManualClock({self.time.isoformat()})"

    @property
    def time(self) -> datetime:
        """The time as a datetime in UTC."""
        return datetime.fromtimestamp(self._now / 1000, UTC)

    def advance(self, seconds: float | timedelta) -> None:
        """Moves the clock forward."""
        if isinstance(seconds, timedelta):
            seconds = seconds.total_seconds()
        if not 0 <= seconds < float("inf"):
            raise ValueError(f"a clock cannot be advanced by {seconds!r} seconds; see `set`")
        self._move(self._now + round(seconds * 1000))

    def set(self, moment: datetime) -> None:
        """Moves the clock to a time, also to an earlier one, as a machine's clock may jump."""
        self._move(_milliseconds(moment))

    def _move(self, now: int) -> None:
        with self._lock:
            self._now = now
            callbacks = list(self._callbacks.values())
        for callback in callbacks:
            callback()

    # What the app and its workers use

    def now(self) -> int:
        """Milliseconds since the epoch."""
        return self._now

    def seconds_until(self, moment: int) -> float:
        """How long to wait, in real seconds, before looking at the clock again."""
        return 0.0 if moment <= self._now else _LATER

    def on_move(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Calls back at every move, until the returned function is called."""
        key = object()
        with self._lock:
            self._callbacks[key] = callback

        def forget() -> None:
            with self._lock:
                self._callbacks.pop(key, None)

        return forget


def _milliseconds(moment: datetime) -> int:
    if moment.tzinfo is None:
        raise ValueError(f"{moment!r} has no time zone; say which one, e.g. tzinfo=UTC")
    return round(moment.timestamp() * 1000)
