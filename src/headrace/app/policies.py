"""Retry policies and retention as users write them: in seconds."""

from __future__ import annotations

from headrace.app.options import Seconds
from headrace.core import retry
from headrace.core.queue import Retention
from headrace.core.values import milliseconds


def linear(
    first: Seconds, last: Seconds, steps: int = 20, *, jitter: float | None = None
) -> retry.RetryPolicy:
    """Delays from `first` up to just below `last` in even steps; the last repeats.

    Chance moves a delay d to between d·jitter and d·jitter + d.
    """
    ends = milliseconds("first", first), milliseconds("last", last)
    return retry.check(retry.Linear(steps, *ends, jitter))


def steps(*delays: Seconds, jitter: float | None = None) -> retry.RetryPolicy:
    """The given delays in turn; the last repeats."""
    return retry.check(retry.Steps(tuple(milliseconds("delays", d) for d in delays), jitter))


def exponential(
    first: Seconds = 1.0,
    base: float = 2.0,
    cap: Seconds = 3600.0,
    *,
    jitter: float | None = None,
) -> retry.RetryPolicy:
    """`first`·`base`^(try - 1), at most `cap`."""
    ends = milliseconds("first", first), milliseconds("cap", cap)
    return retry.check(retry.Exponential(ends[0], base, ends[1], jitter))


def keep(age: Seconds | None = None, count: int | None = None) -> Retention:
    """How long ended jobs are kept: by age, by count, or by the stricter of both."""
    return Retention(None if age is None else milliseconds("age", age), count)
