"""`headrace workers` and `headrace events`: what is going on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

import click

from headrace.app.app import App
from headrace.app.looking import EventFilter
from headrace.cli import shapes
from headrace.cli.command import Command, Desk, on_app, shared
from headrace.cli.job_view import happened
from headrace.cli.output import Cell, Column, Styled, state_cell
from headrace.cli.search import by_queue, by_type
from headrace.cli.text import ago
from headrace.cli.values import SEQUENCE, Name
from headrace.core.event import rfc3339
from headrace.core.states import EventType
from headrace.engine.protocol import Engine, Entry
from headrace.runtime.presence import Presence

WORKER_COLUMNS = (
    Column("WORKER"),
    Column("SERVICE"),
    Column("HOST"),
    Column("PID", right=True),
    Column("STATUS"),
    Column("BUSY", right=True),
    Column("STARTED"),
    Column("LAST BEAT"),
    Column("VERSION"),
    Column("QUEUES", whole=False),
)


@click.command("workers", cls=Command)
@on_app()
async def workers(desk: Desk, /) -> None:
    """List the workers that live: of all services, or of --service."""
    present = await desk.app.workers()
    if shared().service is not None:
        present = [worker for worker in present if worker.service == desk.app.service]
    now = desk.now()
    if desk.out.json:
        desk.out.value([shapes.worker(worker, now) for worker in present])
    elif present:
        desk.out.table(WORKER_COLUMNS, [_worker(worker, now) for worker in present])
    else:
        desk.out.note("No workers; start one with `headrace worker MODULE:APP`.")


def _worker(worker: Presence, now: int) -> list[Cell]:
    return [
        worker.id,
        worker.service,
        worker.host,
        str(worker.pid),
        Styled("stopping", "yellow") if worker.stopping else "running",
        f"{len(worker.jobs)}/{worker.concurrency}",
        ago(worker.started_at, now),
        ago(worker.beat_at, now),
        worker.version,
        ", ".join(worker.queues),
    ]


@dataclass(frozen=True, slots=True)
class Lookout:
    """Which journal entries are wanted."""

    app: App
    job: str | None
    after: int | None
    follow: bool

    async def entries(self) -> AsyncIterator[Entry]:
        after = self.after
        if after is None and self.job is None and self.follow:
            after = await newest(await self.app.engine())
        wanted: EventFilter = {} if self.job is None else {"job_id": self.job}
        async for entry in self.app.events(after or 0, self.follow, **wanted):
            yield entry


async def newest(engine: Engine) -> int:
    """The sequence of the newest journal entry, found in few looks."""
    low, high = 0, 1024
    while await engine.journal(high, 1):
        low, high = high, high * 2
    while low < high:
        middle = (low + high) // 2
        if await engine.journal(middle, 1):
            low = middle + 1
        else:
            high = middle
    return low


@click.command("events", cls=Command)
@click.option("--follow", is_flag=True, help="Go on as things happen; from now, unless --after.")
@click.option("--after", type=SEQUENCE, help="Only entries after this sequence.")
@click.option("--job", type=Name("id"), help="Events of this job.")
@click.option("--limit", type=click.IntRange(min=1), help="At most so many entries.")
@by_type
@by_queue
@click.option(
    "--event",
    "kinds",
    multiple=True,
    type=click.Choice([str(kind) for kind in EventType]),
    metavar="EVENT",
    help=f"Events of this kind, again for more: {', '.join(EventType)}.",
)
@on_app()
async def events(
    desk: Desk,
    /,
    follow: bool,
    after: int | None,
    job: str | None,
    limit: int | None,
    type: str | None,
    queue: str | None,
    kinds: tuple[str, ...],
) -> None:
    """Read the journal: every change of every job, in order.

    \b
    headrace events --follow --queue mail
    """
    shown = 0
    async for entry in Lookout(desk.app, job, after, follow).entries():
        event = entry.event
        if (
            (type is None or event.type == type)
            and (queue is None or event.queue == queue)
            and (not kinds or str(event.event) in kinds)
        ):
            if desk.out.json:
                desk.out.record(shapes.event(entry))
            else:
                desk.out.line(*_event(entry))
            if follow:
                desk.out.flush()
            shown += 1
            if shown == limit:
                return


def _event(entry: Entry) -> list[Cell]:
    event = entry.event
    text = happened(event)
    return [
        f"{event.seq:>7}  ",
        Styled(rfc3339(event.at), "dim"),
        f"  {event.event:<11}  ",
        state_cell(f"{event.state}"),
        f"  {event.queue}  {event.type}  {event.job_id}",
        f"  {text}" if text else "",
    ]
