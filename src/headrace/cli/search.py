"""Looking for jobs: the options that narrow a list, and the pages behind it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection
from datetime import datetime
from typing import Any, TypedDict, TypeVar

import click

from headrace.app.app import App
from headrace.cli import shapes
from headrace.cli.values import COUNT, Cursor, Moment, Name
from headrace.core.model import Filter, Job
from headrace.core.states import DERIVED, State

F = TypeVar("F", bound=Callable[..., Any])


class Wanted(TypedDict, total=False):
    """What a list is narrowed by."""

    states: tuple[str, ...]
    queue: str | None
    type: str | None
    key: str | None
    tag: str | None
    text: str | None
    since: datetime | None
    until: datetime | None


class Paging(TypedDict):
    """How much of a list is shown."""

    limit: int
    everything: bool
    cursor: str | None


def options(*chosen: Callable[[F], F]) -> Callable[[F], F]:
    """Several options as one decorator, shown in the given order."""

    def decorate(function: F) -> F:
        for option in reversed(chosen):
            function = option(function)
        return function

    return decorate


by_queue = click.option("--queue", type=Name("queue"), help="Jobs of this queue.")
by_type = click.option("--type", type=Name("type"), help="Jobs of this type.")
by_text = click.option("--text", help="Text in the id, payload or error.")

paging = options(
    click.option("--limit", type=COUNT, default=50, help="How many at most; 50."),
    click.option("--all", "everything", is_flag=True, help="All of them."),
    click.option("--cursor", type=Cursor(), help="Go on after the job that has this cursor."),
)

narrowing = options(
    click.option(
        "--state",
        "states",
        multiple=True,
        type=click.Choice([*map(str, State), *DERIVED]),
        metavar="STATE",
        help=f"Jobs in this state, again for more: {', '.join([*State, *DERIVED])}.",
    ),
    by_queue,
    by_type,
    click.option("--key", help="Jobs with this concurrency key, by name or hash."),
    click.option("--tag", type=Name("tag"), help="Jobs with this tag."),
    by_text,
    click.option("--since", type=Moment(ago=True), help="Created since then: 2h, or a time."),
    click.option("--until", type=Moment(ago=True), help="Created before then: 1d, or a time."),
)


class Search:
    """Jobs that were asked for, newest first."""

    def __init__(self, app: App, wanted: Wanted, paused: Collection[str]) -> None:
        self._app, self._paused = app, paused
        shown = wanted.get("states", ())
        self._derived = frozenset(state for state in shown if state in DERIVED)
        self._stored = frozenset(State(state) for state in shown if state not in DERIVED)
        behind = frozenset[State]().union(*(DERIVED[state] for state in self._derived))
        self.filter = Filter(
            service=app.service,
            queue=wanted.get("queue"),
            type=wanted.get("type"),
            states=self._stored | behind,
            key=wanted.get("key"),
            tag=wanted.get("tag"),
            text=wanted.get("text"),
            created_from=_milliseconds(wanted.get("since")),
            created_until=_milliseconds(wanted.get("until")),
        )

    def shown(self, job: Job) -> str:
        return job.shown(self._app.clock.now(), job.queue in self._paused)

    def shape(self, job: Job) -> shapes.Shape:
        return shapes.job(job, self._app.clock.now(), job.queue in self._paused)

    def _fits(self, job: Job) -> bool:
        return not self._derived or job.state in self._stored or self.shown(job) in self._derived

    async def jobs(self, paging: Paging) -> AsyncIterator[Job]:
        """One more than the limit, so that it can be said whether more follow."""
        engine = await self._app.engine()
        left = None if paging["everything"] else paging["limit"] + 1
        cursor = paging["cursor"]
        while True:
            page = await engine.find(self.filter, cursor, 500 if left is None else min(left, 500))
            for job in page.jobs:
                if self._fits(job):
                    yield job
                    left = None if left is None else left - 1
                    if left == 0:
                        return
            if page.cursor is None:
                return
            cursor = page.cursor


def _milliseconds(moment: datetime | None) -> int | None:
    return None if moment is None else round(moment.timestamp() * 1000)
