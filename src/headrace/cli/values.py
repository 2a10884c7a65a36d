"""What people type: names, durations, times, weights, JSON. Each is checked as it is read."""

from __future__ import annotations

import re
import sys
import time
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

import click
import msgspec

from headrace.core.errors import InvalidValue
from headrace.core.names import check_name
from headrace.core.retry import POLICIES, RetryPolicy, policy

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)", re.ASCII)
_NUMBER = re.compile(r"\d+(?:\.\d+)?", re.ASCII)


def parse_duration(text: str) -> float:
    """Seconds from `90`, `90s`, `5m`, `2h`, `1d` or `1h30m`; ValueError otherwise."""
    if _NUMBER.fullmatch(text):
        return float(text)
    parts = _PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError(f"{text!r} is not a duration; write 90s, 5m, 2h, 1d or 1h30m")
    return sum(float(number) * _UNITS[unit] for number, unit in parts)


def parse_moment(text: str) -> datetime:
    """A time with its zone, as RFC 3339 writes it; ValueError otherwise."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a time; write 2030-01-31T12:00:00Z") from None
    if moment.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone; add Z for UTC, or one like +02:00")
    return moment


def parse_retry(text: str) -> RetryPolicy:
    """A named policy, or delays with commas between them; ValueError otherwise."""
    if text in POLICIES:
        return POLICIES[text]
    try:
        return policy([parse_duration(part) for part in text.split(",")])
    except ValueError:
        known = ", ".join(POLICIES)
        raise ValueError(
            f"{text!r} is not a retry policy; use one of {known}, or delays like 5s,1m,10m"
        ) from None


MOST = 1_000_000_000
"""No count of anything is meant to be higher."""

COUNT = click.IntRange(1, MOST)
SEQUENCE = click.IntRange(0, (1 << 63) - 1)


def one_of(kind: type[StrEnum]) -> click.Choice[str]:
    """A choice among the words of an enum."""
    return click.Choice([str(one) for one in kind])


class Cursor(click.ParamType[str]):
    """Where a list goes on."""

    name = "cursor"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if not value.isascii() or not value.isdigit() or len(value) > 18:
            self.fail(f"{value!r} is not a cursor; pass on the one that a list gave", param, ctx)
        return value


class Name(click.ParamType[str]):
    """A name of a queue, type, service or job."""

    name = "name"

    def __init__(self, field: str) -> None:
        self._field = field

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            return check_name(self._field, value)
        except InvalidValue as error:
            self.fail(str(error).removeprefix(f"{self._field}: "), param, ctx)


class Duration(click.ParamType[float]):
    """Seconds, or a number with a unit."""

    name = "duration"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        if isinstance(value, int | float):
            return float(value)
        try:
            return parse_duration(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Retry(click.ParamType[RetryPolicy]):
    """A retry policy by its name, or delays."""

    name = "policy"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> RetryPolicy:
        if not isinstance(value, str):
            return value
        try:
            return parse_retry(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Moment(click.ParamType[datetime]):
    """A time with its zone. With `ago`, a duration counts back from now; with `ahead`, on from
    now."""

    name = "time"

    def __init__(self, *, ago: bool = False, ahead: bool = False) -> None:
        self._sign = -1 if ago else 1 if ahead else 0

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> datetime:
        if isinstance(value, datetime):
            return value
        if self._sign:
            try:
                seconds = time.time() + self._sign * parse_duration(value)
                return datetime.fromtimestamp(seconds, UTC)
            except (ValueError, OverflowError):
                pass
        try:
            return parse_moment(value)
        except ValueError as error:
            hint = ", or a duration like 2h" if self._sign else ""
            self.fail(f"{error}{hint}", param, ctx)


class Share(click.ParamType[tuple[str, int | None]]):
    """`NAME` or `NAME=WEIGHT`."""

    name = "name[=weight]"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, int | None]:
        if isinstance(value, tuple):
            return value  # pyright: ignore[reportUnknownVariableType]
        name, equals, weight = value.partition("=")
        name = Name("queue").convert(name, param, ctx)
        if not equals:
            return name, None
        if not weight.isascii() or not weight.isdigit() or int(weight) < 1:
            self.fail(f"{weight!r} is not a weight; write {name}=3", param, ctx)
        return name, int(weight)


class Pair(click.ParamType[tuple[str, str]]):
    """`KEY=VALUE`."""

    name = "key=value"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value  # pyright: ignore[reportUnknownVariableType]
        key, equals, text = value.partition("=")
        if not key or not equals:
            self.fail(f"{value!r} is not KEY=VALUE", param, ctx)
        return key, text


def read_payload(text: str | None) -> msgspec.Raw:
    """A JSON object, kept byte for byte so that every digit survives; `-` reads stdin."""
    if text is None:
        return msgspec.Raw(b"{}")
    if text == "-":
        body, place = sys.stdin.buffer.read(), "stdin"
    else:
        body, place = text.encode("utf-8", "surrogateescape"), "PAYLOAD"
    try:
        decoded = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        hint = '; quote it for your shell: \'{"name": "value"}\'' if text != "-" else ""
        raise click.UsageError(f"{place} is not JSON: {error}{hint}") from None
    if not isinstance(decoded, dict):
        raise click.UsageError(f"{place} is not a JSON object of the arguments by name")
    return msgspec.Raw(body.strip())
