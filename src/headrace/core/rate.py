"""Rate limits: how many may start now, by one number per limit (its theoretical arrival time)."""

from __future__ import annotations

from headrace.core.queue import RateLimit


def allowed(limit: RateLimit, arrival: int, now: int) -> int:
    """How many may start at `now`. `arrival` is in microseconds, 0 for a limit never used."""
    if limit.count == 0:
        return 0
    spacing = _spacing(limit)
    ahead = max(arrival, now * 1000) - now * 1000
    return max(0, int((spacing * limit.burst - ahead) // spacing))


def advanced(limit: RateLimit, arrival: int, now: int, started: int) -> int:
    """The arrival time after `started` more starts."""
    if limit.count == 0:
        return arrival
    return max(arrival, now * 1000) + _spacing(limit) * started


def next_start(limit: RateLimit, arrival: int, now: int) -> int | None:
    """When the next may start, in milliseconds; None for never (a limit of 0)."""
    if limit.count == 0:
        return None
    if allowed(limit, arrival, now):
        return now
    spacing = _spacing(limit)
    return -(-(arrival - spacing * (limit.burst - 1)) // 1000)


def _spacing(limit: RateLimit) -> int:
    return max(1, limit.period * 1000 // limit.count)
