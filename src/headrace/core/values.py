"""Values from outside: each is returned as it is kept, or refused by the name of its field."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from datetime import datetime, timedelta
from enum import StrEnum
from numbers import Real
from typing import TypeVar

from headrace.core.codec import storable
from headrace.core.errors import InvalidValue
from headrace.core.model import MAX_MESSAGE

E = TypeVar("E", bound=StrEnum)

MOST = 1_000_000_000
"""No count of anything is meant to be higher."""

Check = Callable[[str, object], object]
"""Raises InvalidValue for a value of the field that makes no sense."""


def text(field: str, value: object) -> str:
    """A text for people, bounded and storable."""
    if not isinstance(value, str):
        raise InvalidValue(field, f"{value!r} is not a text")
    return storable(value[:MAX_MESSAGE])


def number(field: str, value: object) -> float:
    """A number that has a JSON form."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise InvalidValue(field, f"{value!r} is not a number")
    try:
        found = float(value)
    except OverflowError:
        found = math.inf
    if not math.isfinite(found):
        raise InvalidValue(field, f"{value!r} is not a finite number")
    return found


def whole(field: str, value: object, least: int = 1, most: int = MOST) -> int:
    """A count."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InvalidValue(field, f"{value!r} is not a whole number from {least} to {most}")
    return value


def flag(field: str, value: object) -> bool:
    """Yes or no, and nothing that merely looks like it."""
    if not isinstance(value, bool):
        raise InvalidValue(field, f"{value!r} is not True or False")
    return value


def one_of(kind: type[E], field: str, value: object) -> E:
    """One of the words of an enum."""
    for one in kind:
        if value == one:
            return one
    known = ", ".join(repr(str(one)) for one in kind)
    raise InvalidValue(field, f"{value!r} is not one of {known}")


_PLACE = r"(?s)(.*) - at `\$\.(\w+).*`"


def unfit(field: str, error: Exception) -> InvalidValue:
    """What is wrong with a record, by the name of the field that it is about, if that is said."""
    found = re.fullmatch(_PLACE, str(error))
    return InvalidValue(found[2], found[1]) if found else InvalidValue(field, str(error))


def milliseconds(field: str, value: object) -> int:
    """A duration from seconds or a timedelta."""
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise InvalidValue(field, f"{value!r} is not a number of seconds or a timedelta")
    if not 0 <= seconds <= 1e10:
        raise InvalidValue(field, f"{value!r} is not a sensible number of seconds")
    return round(seconds * 1000)


def from_now(field: str, value: object) -> int:
    """How long from now; what has passed already is at once."""
    seconds = value.total_seconds() if isinstance(value, timedelta) else number(field, value)
    return milliseconds(field, max(0.0, seconds))


def positive(field: str, value: object) -> int:
    """A duration that is not nothing."""
    found = milliseconds(field, value)
    if found <= 0:
        raise InvalidValue(field, f"{value!r} is not a positive number of seconds")
    return found


def moment(field: str, value: object) -> int:
    """A time from an aware datetime."""
    if not isinstance(value, datetime):
        raise InvalidValue(field, f"{value!r} is not a datetime")
    if value.tzinfo is None:
        raise InvalidValue(
            field, f"{value!r} has no time zone; say which one, e.g. datetime.now(UTC)"
        )
    return round(value.timestamp() * 1000)
