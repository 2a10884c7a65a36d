"""What tests of the app and the runtime share."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import click

from headrace import App, EngineUnavailable, State
from headrace.core.states import EventType
from headrace.engine.protocol import Engine

LIMIT = 20.0
"""Seconds after which something that must happen is taken not to; far more than it needs."""


def subcommands(command: click.Command) -> dict[str, click.Command]:
    """The commands of a group, also those that are imported when they are asked for."""
    if not isinstance(command, click.Group):
        return {}
    ctx = click.Context(command)
    found = {name: command.get_command(ctx, name) for name in command.list_commands(ctx)}
    return {name: below for name, below in found.items() if below is not None}


async def eventually(check: Callable[[], Any], limit: float = LIMIT) -> Any:
    """The first true answer of `check`, which may be async; fails when none comes in time."""
    deadline = time.monotonic() + limit
    while True:
        answer = check()
        if inspect.isawaitable(answer):
            answer = await answer
        if answer:
            return answer
        assert time.monotonic() < deadline, f"never came: {_text(check)}"
        await asyncio.sleep(0.005)


def _text(check: Callable[[], Any]) -> str:
    try:
        return inspect.getsource(check).strip()
    except (OSError, TypeError):
        return repr(check)


async def within(awaitable: Awaitable[Any], limit: float = LIMIT) -> Any:
    """The answer, or a failure where it takes too long."""
    async with asyncio.timeout(limit):
        return await awaitable


async def state(app: App, job_id: str) -> State:
    return (await app.job(job_id).get()).state


async def story(app: App, job_id: str) -> list[EventType]:
    """What happened to the job, in order."""
    engine = await app.engine()
    return [entry.event.event for entry in await engine.journal(0, 10_000, job_id)]


class Outage:
    """An engine that can be away: a proxy that refuses every operation while `down`."""

    _OPERATIONS = frozenset(
        [
            "insert",
            "claim",
            "apply",
            "extend",
            "prune",
            "get",
            "find",
            "count",
            "journal",
            "put",
            "scan",
            "key",
        ]
    )

    def __init__(
        self, inner: Engine, switch: list[bool] | None = None, told: Counter[str] | None = None
    ) -> None:
        self._inner = inner
        self._switch = [False] if switch is None else switch
        self.refused = 0
        self.told = Counter[str]() if told is None else told
        """How often each operation was refused, here and by all twins."""

    @property
    def down(self) -> bool:
        return self._switch[0]

    @down.setter
    def down(self, value: bool) -> None:
        self._switch[0] = value

    def twin(self) -> Outage:
        return Outage(self._inner.twin(), self._switch, self.told)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name not in self._OPERATIONS:
            return found

        async def operation(*args: Any, **kwargs: Any) -> Any:
            if self.down:
                self.refused += 1
                self.told[name] += 1
                raise EngineUnavailable("the test has taken the engine away")
            return await found(*args, **kwargs)

        return operation
