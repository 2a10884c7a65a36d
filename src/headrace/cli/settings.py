"""Queue settings as people write them: `max_active=5 retention.completed=1d rate=none`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from headrace.app.queues import parse_rate
from headrace.cli.text import compact, rate, retry_policy
from headrace.cli.values import MOST, parse_duration, parse_retry
from headrace.core.errors import InvalidValue
from headrace.core.queue import DEFAULTS, QueueSettings, Retention
from headrace.core.retry import RetryPolicy
from headrace.core.states import FINAL, State

NONE = "none"
FOREVER = "forever"

_WORDS = {"on": True, "true": True, "yes": True, "off": False, "false": False, "no": False}


def _whole(name: str, text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) > MOST:
        raise InvalidValue(name, f"{text!r} is not a whole number up to {MOST:,}")
    return int(text)


def _duration(name: str, text: str) -> float:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise InvalidValue(name, str(error)) from None


def _flag(name: str, text: str) -> bool:
    if text.lower() not in _WORDS:
        raise InvalidValue(name, f"{text!r} is not on or off")
    return _WORDS[text.lower()]


def _discard(name: str, text: str) -> str:
    if text not in ("new", "old"):
        raise InvalidValue(name, f"{text!r} is not new or old")
    return text


def _rate(_: str, text: str) -> object:
    return parse_rate(text)


def _retry(name: str, text: str) -> RetryPolicy:
    try:
        return parse_retry(text)
    except ValueError as error:
        raise InvalidValue(name, str(error)) from None


_READERS: dict[str, Callable[[str, str], Any]] = {
    "max_active": _whole,
    "max_runtime": _duration,
    "max_tries": _whole,
    "retry": _retry,
    "weight": _whole,
    "max_age": _duration,
    "max_entries": _whole,
    "discard": _discard,
    "rate": _rate,
    "dead_letters": _flag,
}


def changes(old: QueueSettings, pairs: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """What `Queue.set` is to be told; `none` goes back to the default."""
    wanted: dict[str, Any] = {}
    kept = dict(old.retention)
    for name, text in pairs:
        if name.startswith("retention."):
            _retain(kept, name, text)
            wanted["retention"] = kept
        elif name in ("paused", "draining"):
            verb = "pause" if name == "paused" else "drain"
            raise InvalidValue(name, f"is not set like this; use `queue {verb}` and `queue resume`")
        elif name not in _READERS:
            known = ", ".join([*_READERS, "retention.STATE"])
            raise InvalidValue(name, f"is not a queue setting; settings are {known}")
        elif text == NONE:
            wanted[name] = DEFAULTS.retry if name == "retry" else None
        else:
            wanted[name] = _READERS[name](name, text)
    return wanted


def _retain(kept: dict[State, Retention], name: str, text: str) -> None:
    """`retention.dead=30d` for the age, `retention.dead.count=1000` for how many."""
    _, state_name, *rest = name.split(".")
    if state_name not in FINAL or rest not in ([], ["count"]):
        states = ", ".join(sorted(FINAL))
        raise InvalidValue(
            name, f"is not a setting; write retention.STATE or retention.STATE.count with {states}"
        )
    state = State(state_name)
    now = kept.get(state, DEFAULTS.kept(state))
    if rest:
        count = None if text in (NONE, FOREVER) else _whole(name, text)
        kept[state] = Retention(now.age, count)
    elif text == NONE:
        kept.pop(state, None)
    elif text == FOREVER:
        kept[state] = Retention(None, now.count)
    else:
        kept[state] = Retention(round(_duration(name, text) * 1000), now.count)


def shown(settings: QueueSettings) -> dict[str, str]:
    """The settings as `queue set` reads them."""
    texts = {
        "max_active": _or_none(settings.max_active),
        "max_runtime": compact(settings.max_runtime),
        "max_tries": str(settings.max_tries),
        "retry": retry_policy(settings.retry),
        "weight": str(settings.weight),
        "max_age": NONE if settings.max_age is None else compact(settings.max_age),
        "max_entries": _or_none(settings.max_entries),
        "discard": str(settings.discard),
        "rate": NONE if settings.rate is None else rate(settings.rate),
        "dead_letters": "on" if settings.dead_letters else "off",
    }
    for state in sorted(FINAL):
        kept = settings.kept(state)
        texts[f"retention.{state}"] = FOREVER if kept.age is None else compact(kept.age)
        if kept.count is not None:
            texts[f"retention.{state}.count"] = str(kept.count)
    return texts


def _or_none(value: int | None) -> str:
    return NONE if value is None else str(value)
