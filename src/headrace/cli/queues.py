"""`headrace queue`: look at queues, set them, stop and empty them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable

import click

from headrace.app.queues import Queue, QueueInfo
from headrace.cli import settings as written
from headrace.cli import shapes
from headrace.cli.command import Desk, Group, confirm, on_app
from headrace.cli.output import Cell, Column, Styled
from headrace.cli.text import plural
from headrace.cli.values import Name, Pair
from headrace.core.errors import HeadraceError, InvalidValue, MigrationNeeded, Refused
from headrace.core.queue import DEFAULTS, Kind, QueueSettings
from headrace.core.states import FINAL, WAITING, State

queue = Group("queue", help="Look at queues, set them, stop and empty them.")

name_argument = click.argument("name", type=Name("queue"))
yes_option = click.option("--yes", is_flag=True, help="Do not ask.")

_SHOWN = (State.PENDING, State.ACTIVE, State.RETRY, State.BLOCKED, State.COMPLETED, State.DEAD)


async def served(desk: Desk) -> Counter[str]:
    """How many workers serve each queue of the service."""
    return Counter(
        name
        for worker in await desk.app.workers()
        if worker.service == desk.app.service and not worker.stopping
        for name in worker.queues
    )


def mood(settings: QueueSettings) -> Cell:
    """Whether the queue runs."""
    if settings.paused:
        return Styled("paused", "yellow")
    return Styled("draining", "yellow") if settings.draining else "running"


@queue.command("list")
@on_app()
async def list_queues(desk: Desk, /) -> None:
    """List the queues that have jobs or settings."""
    queues, workers = await desk.app.queues(), await served(desk)
    if desk.out.json:
        desk.out.value(
            [shapes.queue(info, desk.app.service, workers[info.name]) for info in queues]
        )
        return
    if not queues:
        desk.out.note("No queues yet; the first job makes one.")
        return
    columns = [Column("QUEUE"), Column("STATUS"), Column("WORKERS", right=True)]
    columns += [Column(state.upper(), right=True) for state in _SHOWN]
    columns.append(Column("OTHER", right=True))
    desk.out.table(columns, [_row(info, workers[info.name]) for info in queues])


def _row(info: QueueInfo, workers: int) -> list[Cell]:
    other = sum(count for state, count in info.counts.items() if state not in _SHOWN)
    counts = [str(info.counts.get(state, 0)) for state in _SHOWN]
    return [info.name, mood(info.settings), str(workers), *counts, str(other)]


async def _known(desk: Desk, name: str) -> QueueInfo:
    queues = await desk.app.queues()
    for info in queues:
        if info.name == name:
            return info
    names = ", ".join(info.name for info in queues)
    known = f"queues are {names}" if names else "there are no queues yet"
    raise HeadraceError(f"queue {name!r} has neither jobs nor settings; {known}")


@queue.command("show")
@name_argument
@on_app()
async def show(desk: Desk, /, name: str) -> None:
    """Show a queue: its counts, and its settings as `queue set` takes them."""
    info, workers = await _known(desk, name), (await served(desk))[name]
    if desk.out.json:
        desk.out.value(shapes.queue(info, desk.app.service, workers))
        return
    desk.out.line(Styled(f"queue {name}", "bold"), f" of service {desk.app.service}")
    desk.out.fields([("status", mood(info.settings)), ("workers", str(workers))])
    desk.out.title("Jobs")
    counts = [(str(state), str(info.counts[state])) for state in State if info.counts.get(state)]
    desk.out.fields(counts or [("none", "")])
    desk.out.title("Settings")
    usual = written.shown(DEFAULTS)
    desk.out.fields(
        [
            (field, value if usual.get(field) == value else Styled(f"{value}  (set)", "bold"))
            for field, value in written.shown(info.settings).items()
        ]
    )


@queue.command("set")
@name_argument
@click.argument("pairs", metavar="KEY=VALUE...", type=Pair(), nargs=-1, required=True)
@click.option("--force", is_flag=True, help="Even if it may hurt work that was fine before.")
@on_app(creates=True)
async def set_(desk: Desk, /, name: str, pairs: tuple[tuple[str, str], ...], force: bool) -> None:
    """Change settings; workers follow within a second.

    \b
    headrace queue set mail max_active=5 rate=100/s retry=5s,1m,10m
    headrace queue set mail max_runtime=10m retention.completed=7d rate=none

    \b
    max_active     jobs at a time, over all workers
    max_runtime    how long a try may take: 90s, 5m, 2h, 1d
    max_tries      how often a job is tried
    retry          1m, 10m, 1h, steps, exponential, at_once, or delays: 5s,1m,10m
    weight         its share beside other queues
    max_age        how long a job may wait
    max_entries    how many jobs may wait
    discard        new or old: which job goes when max_entries wait
    rate           starts over all workers: 100/s, 10/5s, 1000/h+50 with a burst of 50
    dead_letters   on or off
    retention.STATE, retention.STATE.count
                   how long, and how many, jobs that ended so are kept: 7d, forever

    `none` goes back to the default.
    """
    target = desk.app.queue(name)
    old = await target.settings()
    try:
        kind = await target.set(force=force, **written.changes(old, pairs))
    except InvalidValue as error:
        raise click.UsageError(str(error)) from None
    except MigrationNeeded as error:
        text = str(error).replace("with force if you mean it", "with --force if you mean it")
        raise MigrationNeeded(text) from None
    new = await target.settings()
    if desk.out.json:
        desk.out.value({"queue": name, "change": str(kind), "settings": shapes.settings(new)})
        return
    if kind is Kind.NOTHING:
        desk.out.line(f"queue {name}: nothing to change")
    before = written.shown(old)
    for field, value in written.shown(new).items():
        if before.get(field) != value:
            desk.out.line(f"queue {name}: {field} is {value}, was {before.get(field, 'none')}")


async def _switch(
    desk: Desk, name: str, act: Callable[[Queue], Awaitable[None]], done: str
) -> None:
    target = desk.app.queue(name)
    await act(target)
    info = await target.info()
    if desk.out.json:
        desk.out.value(shapes.queue(info, desk.app.service, (await served(desk))[name]))
        return
    waiting = sum(info.counts.get(state, 0) for state in WAITING)
    active = info.counts.get(State.ACTIVE, 0)
    desk.out.line(f"queue {name} {done}: {waiting:,} waiting, {active:,} running")


@queue.command("pause")
@name_argument
@on_app(creates=True)
async def pause(desk: Desk, /, name: str) -> None:
    """Start no more jobs; running ones finish."""
    await _switch(desk, name, Queue.pause, "is paused")


@queue.command("resume")
@name_argument
@on_app(creates=True)
async def resume(desk: Desk, /, name: str) -> None:
    """Go on after pause or drain."""
    await _switch(desk, name, Queue.resume, "runs")


@queue.command("drain")
@name_argument
@on_app(creates=True)
async def drain(desk: Desk, /, name: str) -> None:
    """Take no new jobs, but run those that are there."""
    await _switch(desk, name, Queue.drain, "is draining")


@queue.command("purge")
@name_argument
@click.option("--ended", is_flag=True, help="Also the jobs that have ended.")
@yes_option
@on_app()
async def purge(desk: Desk, /, name: str, ended: bool, yes: bool) -> None:
    """Delete the waiting jobs of a queue."""
    info = await _known(desk, name)
    states = WAITING | FINAL if ended else WAITING
    jobs = sum(info.counts.get(state, 0) for state in states)
    kind = "waiting and ended job" if ended else "waiting job"
    if jobs:
        confirm(f"Delete {plural(jobs, kind)} of queue {name}?", yes)
    with desk.out.bar("deleting", jobs) as step:
        deleted = await desk.app.queue(name).purge(ended=ended, progress=step)
    _deleted(desk, name, deleted)


@queue.command("delete")
@name_argument
@click.option("--force", is_flag=True, help="Also delete the jobs that wait.")
@yes_option
@on_app()
async def delete(desk: Desk, /, name: str, force: bool, yes: bool) -> None:
    """Delete a queue with its settings and ended jobs."""
    info = await _known(desk, name)
    waiting = sum(info.counts.get(state, 0) for state in WAITING)
    if waiting and not force and not info.counts.get(State.ACTIVE):
        raise Refused(
            f"queue {name!r} holds {plural(waiting, 'waiting job')}; purge it, or repeat it with"
            " --force"
        )
    jobs = sum(info.counts.values())
    confirm(f"Delete queue {name} with its settings and {plural(jobs, 'job')}?", yes)
    _deleted(desk, name, await desk.app.queue(name).delete(force=force), "; the queue is gone")


def _deleted(desk: Desk, name: str, deleted: int, more: str = "") -> None:
    if desk.out.json:
        desk.out.value({"queue": name, "deleted": deleted})
    else:
        desk.out.line(f"deleted {plural(deleted, 'job')} of queue {name}{more}")
