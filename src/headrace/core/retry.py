"""Retry policies: pure functions of the try that failed and of chance in [0, 1).

A policy is a record, so that it travels with the job; a callable of the try and the error stays
with the task (`Custom` marks that the task's own decides).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from types import MappingProxyType

from msgspec import Struct

from headrace.core.errors import InvalidValue

SECOND = 1000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE


class Linear(Struct, frozen=True, tag="linear", omit_defaults=True):
    """`steps` delays from `first` up to just below `last`; the last step repeats.

    Chance moves a delay d to between d·jitter and d·jitter + d.
    """

    steps: int
    first: int
    last: int
    jitter: float | None = None

    def delay(self, number: int, chance: float) -> int:
        step = min(max(number, 1), self.steps) - 1
        return _jitter(
            self.first + step * (self.last - self.first) / self.steps, self.jitter, chance
        )


class Steps(Struct, frozen=True, tag="steps", omit_defaults=True):
    """The given delays in turn; the last repeats."""

    delays: tuple[int, ...]
    jitter: float | None = None

    def delay(self, number: int, chance: float) -> int:
        step = min(max(number, 1), len(self.delays)) - 1
        return _jitter(self.delays[step], self.jitter, chance)


class Exponential(Struct, frozen=True, tag="exponential", omit_defaults=True):
    """`first`·`base`^(try - 1), at most `cap`."""

    first: int = SECOND
    base: float = 2.0
    cap: int = HOUR
    jitter: float | None = None

    def delay(self, number: int, chance: float) -> int:
        exponent = max(number, 1) - 1
        try:
            raw = self.first * self.base**exponent
        except OverflowError:
            raw = self.cap
        return _jitter(min(raw, self.cap), self.jitter, chance)


class AtOnce(Struct, frozen=True, tag="at_once"):
    """No delay."""

    def delay(self, number: int, chance: float) -> int:
        return 0


class Custom(Struct, frozen=True, tag="custom"):
    """The task's own callable decides; where it cannot be found, the default policy does."""

    def delay(self, number: int, chance: float) -> int:
        return DEFAULT.delay(number, chance)


RetryPolicy = Linear | Steps | Exponential | AtOnce | Custom
RetryFunction = Callable[[int, BaseException], float | timedelta]
"""The seconds to wait after the given try failed with the given error."""


def _jitter(delay: float, jitter: float | None, chance: float) -> int:
    return round(delay if jitter is None else delay * jitter + delay * chance)


POLICIES: Mapping[str, RetryPolicy] = MappingProxyType(
    {
        "1m": Linear(20, SECOND, 60 * SECOND, 0.5),
        "10m": Linear(50, MINUTE, 10 * MINUTE, 0.9),
        "1h": Linear(20, 10 * MINUTE, HOUR, 0.9),
        "steps": Steps((5 * SECOND, 30 * SECOND, 2 * MINUTE, 10 * MINUTE, 30 * MINUTE)),
        "exponential": Exponential(jitter=0.5),
        "at_once": AtOnce(),
    }
)
DEFAULT: RetryPolicy = POLICIES["1m"]


def policy(value: object) -> RetryPolicy:
    """A policy from what a user writes: a name, a policy, seconds, or None for at once."""
    match value:
        case None:
            return AtOnce()
        case str():
            if value in POLICIES:
                return POLICIES[value]
            known = ", ".join(POLICIES)
            raise InvalidValue("retry", f"{value!r} is not a retry policy; known are {known}")
        case Linear() | Steps() | Exponential() | AtOnce() | Custom():
            return check(value)
        case bool():
            raise InvalidValue("retry", f"{value!r} is not a retry policy")
        case int() | float() | timedelta():
            return check(Steps((milliseconds(value),)))
        case list() | tuple():
            delays: list[int] = []
            for item in value:  # pyright: ignore[reportUnknownVariableType]
                if isinstance(item, bool) or not isinstance(item, int | float | timedelta):
                    raise InvalidValue("retry", f"{item!r} is not a number of seconds")
                delays.append(milliseconds(item))
            return check(Steps(tuple(delays)))
        case _ if callable(value):
            return Custom()
        case _:
            raise InvalidValue(
                "retry",
                f"{value!r} is not a retry policy; use a name, a policy, seconds, a list of"
                " seconds, a callable or None",
            )


LONGEST = 10**13
"""No delay is longer, in milliseconds: three centuries."""


def milliseconds(value: float | timedelta) -> int:
    """A delay from seconds or a timedelta, or InvalidValue for one that makes no sense."""
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if not 0 <= seconds <= LONGEST / 1000:
        raise InvalidValue("retry", f"{value!r} is not a sensible number of seconds")
    return round(seconds * 1000)


def check(value: RetryPolicy) -> RetryPolicy:
    """Returns the policy, or raises InvalidValue where its numbers make no sense."""
    match value:
        case Linear(steps=steps, first=first, last=last):
            if steps < 1 or not 0 <= first <= last <= LONGEST:
                raise InvalidValue(
                    "retry", "a linear policy needs steps >= 1 and 0 <= first <= last <= 300 years"
                )
        case Steps(delays=delays):
            if not delays or min(delays) < 0 or max(delays) > LONGEST:
                raise InvalidValue(
                    "retry", "give at least one delay, none of them negative or over 300 years"
                )
        case Exponential(first=first, base=base, cap=cap):
            if not 0 <= first <= LONGEST or not 0 <= cap <= LONGEST or not 1 <= base < 1e9:
                raise InvalidValue(
                    "retry", "an exponential policy needs first, cap >= 0, base >= 1, all sensible"
                )
        case AtOnce() | Custom():
            pass
    jitter = getattr(value, "jitter", None)
    if jitter is not None and not 0 <= jitter <= 10:
        raise InvalidValue("retry", f"jitter {jitter!r} is not between 0 and 10")
    return value
