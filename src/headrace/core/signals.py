"""What a handler raises to end its try in a particular way.

raise Terminate("the address does not exist")   # failed at once, no retry
raise Retry(after=30)                           # next try in 30 seconds
raise Retry("not yet")                          # next try when the retry policy says
raise Snooze(until=tomorrow)                    # later, and this try does not count
raise Cancel("superseded")                      # cancelled
"""

from __future__ import annotations

from datetime import datetime, timedelta

from headrace.core.errors import InvalidValue
from headrace.core.values import from_now, moment


class Signal(Exception):
    """The root of the signals. Not an error: middleware should let it pass."""


class Terminate(Signal):
    """The job fails at once, with no retry."""


class Retry(Signal):
    """The try failed; the next comes `after` so many seconds, whatever the policy says, or when
    the policy says."""

    def __init__(self, message: str = "", *, after: float | timedelta | None = None) -> None:
        super().__init__(message)
        if after is not None:
            from_now("after", after)
        self.after = after


class Snooze(Signal):
    """Gives the job back without counting the try, until a time or for so many seconds."""

    def __init__(
        self, *, until: datetime | None = None, seconds: float | timedelta | None = None
    ) -> None:
        super().__init__()
        if (until is None) == (seconds is None):
            raise InvalidValue("snooze", "give `until` or `seconds`, one of them")
        if until is not None:
            moment("until", until)
        if seconds is not None:
            from_now("seconds", seconds)
        self.until, self.seconds = until, seconds


class Cancel(Signal):
    """The job ends `cancelled`."""
