"""Concurrency keys: templates over the payload, their hash, parking and depth."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from enum import StrEnum
from typing import cast

import msgspec

from headrace.core.errors import InvalidValue
from headrace.core.model import JSON, WhenFull

Scalar = str | int | float | bool

_INDEX = "0|[1-9][0-9]*"
"""A place in an array as JSON pointers write it: no sign, no leading zero."""


def resolve(template: Sequence[Scalar], payload: JSON, field: str = "key") -> tuple[Scalar, ...]:
    """The segments of a template: constants as they are, JSON pointers (`/tenant`) looked up."""
    if not template:
        raise InvalidValue(field, "the template is empty; give constants and JSON pointers")
    return tuple(
        _pointed(segment, payload, field)
        if isinstance(segment, str) and segment.startswith("/")
        else segment
        for segment in template
    )


def _pointed(pointer: str, payload: JSON, field: str) -> Scalar:
    value: JSON = payload
    for raw in pointer[1:].split("/"):
        part = raw.replace("~1", "/").replace("~0", "~")
        value = _step(value, part, pointer, field)
    if not isinstance(value, str | int | float | bool):
        raise InvalidValue(field, f"{pointer!r} is not a string, number or boolean in the payload")
    return value


def _step(value: JSON, part: str, pointer: str, field: str) -> JSON:
    try:
        if isinstance(value, dict):
            return cast(dict[str, JSON], value)[part]
        if isinstance(value, list) and re.fullmatch(_INDEX, part):
            return cast(list[JSON], value)[int(part)]
    except (KeyError, IndexError):
        pass
    raise InvalidValue(
        field,
        f"the payload has nothing at {pointer!r}; an argument left to its default is not in it",
    )


def name_of(segments: Sequence[Scalar]) -> str:
    """The key for people."""
    return ":".join(("true" if s else "false") if isinstance(s, bool) else str(s) for s in segments)


def hash_of(segments: Sequence[Scalar]) -> str:
    """The key for engines: 1 and "1" and true are three keys."""
    try:
        text = msgspec.json.encode({"version": 1, "segments": list(segments)})
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidValue("key", f"{segments!r} cannot be a key: {error}") from None
    if b"null" in text and not all(map(_solid, segments)):
        raise InvalidValue("key", f"{segments!r} cannot be a key: a segment has no value")
    return digest(text)


def digest(data: bytes) -> str:
    import hashlib  # many services have no keys

    return hashlib.sha256(data).hexdigest()


def _solid(segment: object) -> bool:
    """Whether the segment is one that JSON can tell from null."""
    return segment is not None and not (isinstance(segment, float) and not math.isfinite(segment))


def parks(active: int, ahead: int, max_active: int) -> bool:
    """Whether a due job waits outside the ready line of its queue.

    `ahead` counts the ready jobs of the key in the same queue with the same or a better
    priority. At most `max_active` of a key stand in a queue's ready line per priority, so a
    tenant's backlog never stands in another's way; and one always does while a slot is free, so
    the key never stalls.
    """
    return active + ahead >= max_active


class Depth(StrEnum):
    """What a key's depth limit makes of a new job."""

    ACCEPT = "accept"
    REJECT = "reject"
    COALESCE = "coalesce"
    REPLACE = "replace"


def depth(
    active: int, queued: int, max_active: int, max_queued: int | None, when_full: WhenFull
) -> Depth:
    """Free slots do not count against `max_queued`."""
    if max_queued is None or queued < max_queued + max(0, max_active - active):
        return Depth.ACCEPT
    match when_full:
        case WhenFull.REJECT:
            return Depth.REJECT
        case WhenFull.COALESCE:
            return Depth.COALESCE
        case WhenFull.REPLACE_OLDEST:
            return Depth.REPLACE if queued else Depth.REJECT


def full_reason(active: int, max_active: int) -> str:
    """Why a key refuses a job."""
    return "active-limit" if active >= max_active else "queue-depth"
