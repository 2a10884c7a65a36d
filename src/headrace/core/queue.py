"""Queue settings, and whether a change of them may hurt work that was fine before."""

from __future__ import annotations

from enum import StrEnum

import msgspec
from msgspec import Struct

from headrace.core import retry
from headrace.core.errors import InvalidValue
from headrace.core.model import DEFAULT_MAX_TRIES
from headrace.core.retry import RetryPolicy
from headrace.core.states import FINAL, State

DAY = 24 * retry.HOUR


class Discard(StrEnum):
    """Which job goes when a queue holds `max_entries` waiting jobs."""

    NEW = "new"
    OLD = "old"


class Retention(Struct, frozen=True, omit_defaults=True):
    """How long ended jobs are kept: by age, by count, or by the stricter of both.

    None keeps for ever; 0 only until whoever waited can have seen how the job ended.
    """

    age: int | None = None
    count: int | None = None


class RateLimit(Struct, frozen=True):
    """At most `count` starts per `period`, and up to `burst` at once."""

    count: int
    period: int
    burst: int = 1


DEFAULT_RETENTION: dict[State, Retention] = {
    State.COMPLETED: Retention(age=DAY),
    State.DEAD: Retention(),
} | {state: Retention(age=30 * DAY) for state in FINAL - {State.COMPLETED, State.DEAD}}


class QueueSettings(
    Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """The settings of one queue. A queue nobody has set has exactly these defaults."""

    paused: bool = False
    draining: bool = False
    """Takes no new jobs, but finishes what it has."""
    max_active: int | None = None
    max_runtime: int = retry.HOUR
    max_tries: int = DEFAULT_MAX_TRIES
    retry: RetryPolicy = retry.DEFAULT
    weight: int = 1
    max_age: int | None = None
    max_entries: int | None = None
    discard: Discard = Discard.NEW
    rate: RateLimit | None = None
    dead_letters: bool = True
    retention: dict[State, Retention] = {}

    def kept(self, state: State) -> Retention:
        """How long jobs of this queue that ended in `state` are kept."""
        return self.retention.get(state, DEFAULT_RETENTION[state])


DEFAULTS = QueueSettings()

_AT_LEAST = {
    "max_active": 0,
    "max_runtime": 1,
    "max_tries": 1,
    "weight": 0,
    "max_age": 1,
    "max_entries": 1,
}


def check(settings: QueueSettings) -> QueueSettings:
    """Returns the settings, or raises InvalidValue naming the field that makes no sense."""
    for field, least in _AT_LEAST.items():
        value = getattr(settings, field)
        if value is not None and value < least:
            raise InvalidValue(field, f"{value!r} is below {least}")
    retry.check(settings.retry)
    if settings.rate and (
        settings.rate.count < 0 or settings.rate.period < 1 or settings.rate.burst < 1
    ):
        raise InvalidValue("rate", "needs count >= 0, period >= 1 ms and burst >= 1")
    for state, kept in settings.retention.items():
        if state not in FINAL:
            raise InvalidValue("retention", f"{state} is not a final state")
        if (kept.age is not None and kept.age < 0) or (kept.count is not None and kept.count < 0):
            raise InvalidValue("retention", f"{state}: age and count must not be negative")
    return settings


class Kind(StrEnum):
    """What a change of settings amounts to."""

    NOTHING = "nothing"
    UPDATE = "update"
    MIGRATION = "migration"


_UNLIMITED = float("inf")


def _lowered(old: int | None, new: int | None) -> bool:
    return (_UNLIMITED if new is None else new) < (_UNLIMITED if old is None else old)


def _shorter(old: RetryPolicy, new: RetryPolicy) -> bool:
    return any(new.delay(n, 0.5) < old.delay(n, 0.5) for n in range(1, 21))


def _stricter_retention(old: QueueSettings, new: QueueSettings) -> bool:
    return any(
        _lowered(old.kept(state).age, new.kept(state).age)
        or _lowered(old.kept(state).count, new.kept(state).count)
        for state in FINAL
    )


def dangers(old: QueueSettings, new: QueueSettings, dead_jobs: int = 0) -> tuple[str, ...]:
    """What in the change may reject, skip, delete or repeat work that was fine before."""
    table = {
        "max_active is lowered": _lowered(old.max_active, new.max_active),
        "max_runtime is lowered": new.max_runtime < old.max_runtime,
        "max_tries is lowered": new.max_tries < old.max_tries,
        "retry delays are shortened": _shorter(old.retry, new.retry),
        "max_age is lowered": _lowered(old.max_age, new.max_age),
        "max_entries is lowered": _lowered(old.max_entries, new.max_entries),
        "discard old may drop waiting jobs": new.max_entries is not None
        and new.discard is Discard.OLD
        and (old.discard is not Discard.OLD or old.max_entries is None),
        "dead letters are switched off while dead jobs exist": old.dead_letters
        and not new.dead_letters
        and dead_jobs > 0,
        "retention is shortened": _stricter_retention(old, new),
    }
    return tuple(reason for reason, holds in table.items() if holds)


def classify(old: QueueSettings, new: QueueSettings, dead_jobs: int = 0) -> Kind:
    """Whether a change of settings is nothing, an update, or a migration that needs `force`."""
    if old == new:
        return Kind.NOTHING
    return Kind.MIGRATION if dangers(old, new, dead_jobs) else Kind.UPDATE


def decode(body: bytes | msgspec.Raw) -> QueueSettings:
    """Settings as stored; InvalidValue where they cannot be read, as those of a newer Headrace."""
    try:
        return msgspec.json.decode(body, type=QueueSettings)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidValue("queue settings", f"the document cannot be read: {error}") from None
