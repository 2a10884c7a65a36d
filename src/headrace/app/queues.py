"""Queues at run time: settings, pause, drain, purge, delete."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import msgspec
from msgspec import Struct

from headrace.app import bulk
from headrace.core import actions, queue, retry
from headrace.core.errors import InvalidValue, MigrationNeeded, Refused
from headrace.core.model import Filter
from headrace.core.names import check_name
from headrace.core.queue import (
    DEFAULTS,
    Discard,
    Kind,
    QueueSettings,
    RateLimit,
    Retention,
    decode,
)
from headrace.core.states import FINAL, WAITING, State
from headrace.core.values import Check, flag, milliseconds, one_of, positive, unfit, whole
from headrace.engine.protocol import QUEUE_KIND, Put, queue_document

if TYPE_CHECKING:
    from headrace.app.app import App


class QueueInfo(Struct, frozen=True):
    """A queue with its settings and counts by state."""

    name: str
    settings: QueueSettings
    counts: dict[State, int]


class Queue:
    """`app.queue("mail")`. Changes are followed by running workers within a second."""

    def __init__(self, app: App, name: str) -> None:
        self._app, self.name = app, check_name("queue", name)
        self._document = queue_document(app.service, name)

    async def settings(self) -> QueueSettings:
        """The settings now; the defaults where nobody set any."""
        return (await self._read())[0]

    async def _read(self) -> tuple[QueueSettings, int]:
        engine = await self._app.engine()
        for document in await engine.scan(QUEUE_KIND, self._app.clock.now()):
            if document.name == self._document:
                return decode(document.body), document.revision
        return DEFAULTS, 0

    async def info(self) -> QueueInfo:
        """Settings and counts."""
        return QueueInfo(self.name, await self.settings(), await self._counts())

    async def _counts(self) -> dict[State, int]:
        engine = await self._app.engine()
        counted = await engine.count(self._app.service)
        return {one.state: one.jobs for one in counted if one.queue == self.name}

    async def set(self, *, force: bool = False, **changes: Any) -> Kind:
        """Changes settings; durations in seconds or timedeltas.

        A change that may reject, skip or repeat work that was fine before needs `force`.
        """
        while True:
            old, revision = await self._read()
            new = apply_settings(old, changes)
            counts = await self._counts()
            dead = counts.get(State.DEAD, 0)
            kind = queue.classify(old, new, dead)
            if not revision and not counts and kind is Kind.MIGRATION:
                kind = Kind.UPDATE  # a queue that nobody has used: there is no work to hurt
            if kind is Kind.MIGRATION and not force:
                reasons = "; ".join(queue.dangers(old, new, dead))
                raise MigrationNeeded(
                    f"queue {self.name!r}: {reasons}; repeat it with force if you mean it"
                )
            if await self._write(new, revision):
                return kind

    async def _write(self, settings: QueueSettings, expected: int) -> bool:
        engine = await self._app.engine()
        body = msgspec.Raw(msgspec.json.encode(settings))
        put = Put(QUEUE_KIND, self._document, body, expected)
        return (await engine.put([put], self._app.clock.now()))[0] is not None

    async def pause(self) -> None:
        """Starts no more jobs; running ones finish."""
        await self.set(paused=True)

    async def resume(self) -> None:
        """Goes on after pause or drain."""
        await self.set(paused=False, draining=False)

    async def drain(self) -> None:
        """Takes no new jobs, but runs those it has."""
        await self.set(draining=True)

    async def purge(
        self,
        *,
        waiting: bool = True,
        ended: bool = False,
        progress: bulk.Progress | None = None,
    ) -> int:
        """Deletes the waiting jobs (and, if asked, the ended ones); returns how many."""
        nothing: frozenset[State] = frozenset()
        states = (WAITING if waiting else nothing) | (FINAL if ended else nothing)
        if not states:
            return 0
        wanted = Filter(service=self._app.service, queue=self.name, states=states)
        return (await bulk.act(self._app, wanted, actions.delete, progress)).changed

    async def delete(self, *, force: bool = False) -> int:
        """Deletes the queue with its settings and jobs. Refused while jobs run or wait, unless
        `force` deletes the waiting ones; running ones are always in the way."""
        counts = await self._counts()
        if counts.get(State.ACTIVE):
            raise Refused(
                f"queue {self.name!r} runs {counts[State.ACTIVE]} jobs; pause it and wait for them,"
                " or cancel them"
            )
        waiting = sum(counts.get(state, 0) for state in WAITING)
        if waiting and not force:
            raise Refused(f"queue {self.name!r} holds {waiting} waiting jobs; purge it, or force")
        deleted = await self.purge(ended=True)
        engine = await self._app.engine()
        await engine.put([Put(QUEUE_KIND, self._document, None)], self._app.clock.now())
        return deleted


def apply_settings(old: QueueSettings, changes: Mapping[str, Any]) -> QueueSettings:
    """The settings after the changes, checked."""
    unknown = sorted(changes.keys() - set(QueueSettings.__struct_fields__))
    if unknown:
        known = ", ".join(QueueSettings.__struct_fields__)
        raise InvalidValue(unknown[0], f"is not a queue setting; settings are {known}")
    fields = {name: _setting(name, value) for name, value in changes.items()}
    try:
        shape = msgspec.to_builtins(msgspec.structs.replace(old, **fields))
        settings = msgspec.convert(shape, QueueSettings)
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError) as error:
        raise unfit("settings", error) from None
    return queue.check(settings)


_CHECKS: Mapping[str, Check] = {
    "paused": flag,
    "draining": flag,
    "max_active": partial(whole, least=0),
    "max_tries": whole,
    "weight": partial(whole, least=0),
    "max_entries": whole,
    "discard": partial(one_of, Discard),
    "dead_letters": flag,
}


def _setting(name: str, value: Any) -> Any:
    """A setting as it is kept; None is the default."""
    if value is None and name != "retry":
        return getattr(DEFAULTS, name)
    match name:
        case "retry":
            policy = retry.policy(value)
            if isinstance(policy, retry.Custom):
                raise InvalidValue("retry", "a callable belongs to a task, not to a queue")
            return policy
        case "rate":
            return value if isinstance(value, RateLimit) else parse_rate(value)
        case "retention":
            if not isinstance(value, Mapping):
                raise InvalidValue("retention", f"{value!r} is not a mapping from states to ages")
            items = cast(Mapping[object, object], value)
            return {_state(state): _retention(kept) for state, kept in items.items()}
        case "max_runtime" | "max_age":
            return positive(name, value)
        case _:
            return _CHECKS[name](name, value)


def _state(value: object) -> State:
    try:
        return State(str(value))
    except ValueError:
        raise InvalidValue("retention", f"{value!r} is not a state") from None


def _retention(value: object) -> Retention:
    """Seconds or a timedelta for an age, None for ever, or a Retention."""
    match value:
        case Retention():
            return value
        case None:
            return Retention()
        case int() | float() | timedelta():
            return Retention(age=milliseconds("retention", value))
        case _:
            raise InvalidValue("retention", f"{value!r} is not an age in seconds or a Retention")


_RATE = r"(\d{1,9})/(\d{0,6})([smhd])(?:\+(\d{1,9}))?"
_PERIODS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_rate(text: object) -> RateLimit:
    """`100/s`, `5/m`, `1000/h` or `10/5s`, with `+20` for the burst."""
    found = re.fullmatch(_RATE, text) if isinstance(text, str) and text.isascii() else None
    if found is None:
        raise InvalidValue("rate", f"{text!r} is not a rate; write 100/s, 5/m or 1000/h, +N burst")
    count, periods, unit, burst = found.groups()
    period = int(periods or 1) * _PERIODS[unit]
    return RateLimit(int(count), period, int(burst) if burst else max(1, int(count)))
