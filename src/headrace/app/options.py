"""Options of a job: what users write, checked, and made into a job."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, TypedDict, cast, get_args

import msgspec
from msgspec import Struct

from headrace.core import codec, keys, retry
from headrace.core.errors import InvalidValue
from headrace.core.model import (
    MAX_METADATA,
    Dedup,
    DedupMode,
    KeyLimit,
    OnLost,
    OnParentFailure,
    WhenFull,
)
from headrace.core.names import check_name
from headrace.core.retry import RetryFunction, RetryPolicy
from headrace.core.values import (
    MOST,
    Check,
    flag,
    milliseconds,
    moment,
    one_of,
    positive,
    whole,
)

if TYPE_CHECKING:
    from headrace.app.jobref import JobRef
    from headrace.app.task import Prepared

Seconds = float | timedelta
KeyTemplate = str | Sequence[keys.Scalar] | Callable[[dict[str, Any]], str | Sequence[keys.Scalar]]


class Throttle(Struct, frozen=True):
    """One job per `seconds`, even after it has ended; `extend` restarts them with each attempt."""

    seconds: Seconds
    key: KeyTemplate | None = None
    extend: bool = False


class Debounce(Struct, frozen=True):
    """A new job replaces one that has not started, and waits `seconds` from now."""

    seconds: Seconds
    key: KeyTemplate | None = None


class KeepLast(Struct, frozen=True):
    """At most one running and one waiting; the newest data wins."""

    key: KeyTemplate | None = None


Unique = bool | KeyTemplate | Throttle | Debounce | KeepLast


class JobOptions(TypedDict, total=False):
    """The options of a job, at the decorator, by `task.options(…)`, or both; the call's win."""

    id: str
    queue: str
    priority: int
    """0 to 9, lower first; 5 unless set."""
    lifo: bool
    delay: Seconds
    run_at: datetime
    deadline: datetime | Seconds
    """By when the job must be finished: a time, or seconds from now."""
    ttl: Seconds
    """Within what time the job must be started."""
    timeout: Seconds
    """How long one try may take."""
    max_tries: int
    retry: str | Seconds | Sequence[Seconds] | RetryPolicy | RetryFunction | None
    unique: Unique
    key: KeyTemplate
    max_active: int
    max_queued: int
    when_full: WhenFull | str
    on_lost: OnLost | str
    depends_on: Sequence[str | JobRef[Any] | Prepared[Any]]
    on_parent_failure: OnParentFailure | str
    metadata: Mapping[str, Any]
    tags: Sequence[str]
    request_id: str
    """Whose request the job is part of; that of the running job, else the job's own id."""
    traceparent: str
    """The W3C trace context of the caller; that of the running job, else a new trace."""
    tracestate: str


_KNOWN = frozenset(JobOptions.__annotations__)


def check(options: Mapping[str, Any]) -> JobOptions:
    """Returns the options, or raises InvalidValue naming the first that makes no sense."""
    unknown = sorted(options.keys() - _KNOWN)
    if unknown:
        known = ", ".join(sorted(_KNOWN))
        raise InvalidValue(unknown[0], f"is not an option; options are {known}")
    for name, checker in _CHECKS.items():
        if name in options:
            checker(name, options[name])
    return JobOptions(**options)  # pyright: ignore[reportArgumentType]


def travelling(options: JobOptions) -> JobOptions:
    """Options of one call: what they say must fit into the job."""
    if callable(options.get("retry")):
        raise InvalidValue(
            "retry", "a callable cannot travel with a job; give it to the task: @app.task(retry=…)"
        )
    return options


def _deadline(field: str, value: object) -> None:
    if isinstance(value, datetime):
        moment(field, value)
    else:
        positive(field, value)


def _from(least: int, most: int = MOST) -> Check:
    return lambda field, value: whole(field, value, least, most)


def _retry(field: str, value: object) -> None:
    retry.policy(value)


def _tags(field: str, value: object) -> None:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise InvalidValue(field, f"{value!r} is not a list of tags")
    for tag in cast(Sequence[object], value):
        check_name("tags", tag)


def _metadata(field: str, value: object) -> None:
    if not isinstance(value, Mapping):
        raise InvalidValue(field, f"{value!r} is not a mapping")
    if len(codec.encode(dict(value), "metadata")) > MAX_METADATA:  # pyright: ignore[reportUnknownArgumentType]
        raise InvalidValue(field, f"is over the limit of {MAX_METADATA:,} bytes")


def _unique(field: str, value: object) -> None:
    match value:
        case bool():
            return
        case KeepLast(key=key):
            _template_or_none(field, key)
        case Throttle(seconds=seconds, key=key, extend=extend):
            positive(field, seconds)
            _template_or_none(field, key)
            flag("extend", extend)
        case Debounce(seconds=seconds, key=key):
            positive(field, seconds)
            _template_or_none(field, key)
        case type():
            raise InvalidValue(field, f"{value!r} is a class; call it")
        case Sequence():
            _template(field, cast(Sequence[object], value))
        case _ if callable(value):
            return
        case _:
            raise InvalidValue(
                field, f"{value!r} is not True, a key, Throttle(…), Debounce(…) or KeepLast(…)"
            )


def _template_or_none(field: str, value: object) -> None:
    if value is not None:
        _template(field, value)


def _template(field: str, value: object) -> None:
    if value == "":
        raise InvalidValue(field, "is empty; give a constant, a JSON pointer or a list of them")
    if callable(value) or isinstance(value, str):
        return
    listed = isinstance(value, Sequence) and not isinstance(value, bytes | bytearray)
    parts = cast(Sequence[object], value) if listed else [None]
    if not all(isinstance(part, get_args(keys.Scalar)) for part in parts):
        raise InvalidValue(field, f"{value!r} is not a list of constants and JSON pointers")


_TRACEPARENT = r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}"
_TRACESTATE = r"[ -~]{1,512}"
_REQUEST_ID = r"[!-~]{1,256}"


def _like(pattern: str, remedy: str) -> Check:
    def checker(field: str, value: object) -> None:
        if not isinstance(value, str) or not re.fullmatch(pattern, value):
            raise InvalidValue(field, f"{value!r:.200} {remedy}")

    return checker


_CHECKS: Mapping[str, Check] = {
    "id": check_name,
    "queue": check_name,
    "priority": _from(0, 9),
    "lifo": flag,
    "delay": milliseconds,
    "run_at": moment,
    "deadline": _deadline,
    "ttl": positive,
    "timeout": positive,
    "max_tries": whole,
    "retry": _retry,
    "unique": _unique,
    "key": _template,
    "max_active": whole,
    "max_queued": _from(0),
    "when_full": partial(one_of, WhenFull),
    "on_lost": partial(one_of, OnLost),
    "on_parent_failure": partial(one_of, OnParentFailure),
    "metadata": _metadata,
    "tags": _tags,
    "request_id": _like(_REQUEST_ID, "is not 1 to 256 printable ASCII characters without spaces"),
    "traceparent": _like(
        _TRACEPARENT, "is not a W3C traceparent: 00-<32 hex digits>-<16 hex digits>-01"
    ),
    "tracestate": _like(_TRACESTATE, "is not 1 to 512 printable ASCII characters"),
}


def key_segments(field: str, template: KeyTemplate, payload: bytes) -> tuple[keys.Scalar, ...]:
    """The segments of a key for this payload."""
    if isinstance(template, str):
        template = (template,)
    decoded = codec.decode_any(payload)
    if callable(template):
        try:
            made: Any = template(decoded)
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
            raise InvalidValue(field, f"the callable failed: {problem}") from error
        made = tuple(cast(list[Any], made)) if isinstance(made, list | tuple) else (made,)
        if not made or not all(isinstance(part, get_args(keys.Scalar)) for part in made):
            raise InvalidValue(field, f"the callable returned {made!r}, which is not a key")
        return made
    return keys.resolve(template, decoded, field)


def key_limit(options: JobOptions, type: str, payload: bytes) -> KeyLimit | None:
    """The concurrency key. `max_active` without a key limits the type as a whole."""
    if "key" in options:
        segments = key_segments("key", options["key"], payload)
    elif "max_active" in options:
        segments = ("type", type)
    else:
        for name in ("max_queued", "when_full", "on_lost"):
            if name in options:
                raise InvalidValue(name, "is about a concurrency key; give `key` or `max_active`")
        return None
    if "when_full" in options and "max_queued" not in options:
        raise InvalidValue("when_full", "is about a key that is full; give `max_queued` too")
    return KeyLimit(
        name=keys.name_of(segments)[:512],
        hash=keys.hash_of(segments),
        max_active=options.get("max_active", 1),
        max_queued=options.get("max_queued"),
        when_full=WhenFull(options.get("when_full", WhenFull.REJECT)),
        on_lost=OnLost(options.get("on_lost", OnLost.RETRY)),
    )


def dedup(options: JobOptions, type: str, payload: bytes) -> Dedup | None:
    """The dedup key and its rule."""
    unique = options.get("unique", False)
    match unique:
        case False:
            return None
        case Throttle(seconds=seconds, key=key, extend=extend):
            window = milliseconds("unique", seconds)
            return Dedup(_dedup_key(key, type, payload), DedupMode.THROTTLE, window, extend)
        case Debounce(seconds=seconds, key=key):
            window = milliseconds("unique", seconds)
            return Dedup(_dedup_key(key, type, payload), DedupMode.DEBOUNCE, window)
        case KeepLast(key=key):
            return Dedup(_dedup_key(key, type, payload), DedupMode.KEEP_LAST)
        case True:
            return Dedup(_dedup_key(None, type, payload))
        case _:
            return Dedup(_dedup_key(unique, type, payload))


def _dedup_key(template: KeyTemplate | None, type: str, payload: bytes) -> str:
    """By the given key, or by the type and the exact arguments."""
    if template is not None:
        segments = key_segments("unique", template, payload)
        name, digest = keys.name_of(segments), keys.hash_of(segments)
        plain = len(segments) == 1 and isinstance(segments[0], str) and len(name) <= 512
        return name if plain else f"{name[:479]}#{digest[:32]}"
    canonical = msgspec.json.encode(codec.decode_any(payload), order="sorted")
    return f"{type}#{keys.digest(canonical)}"
