"""`headrace dead`: the dead letters, to be replayed or dismissed one by one or in bulk."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Unpack

import click

from headrace.app import bulk
from headrace.app.jobref import JobRef
from headrace.cli.command import Desk, Group, confirm, on_app
from headrace.cli.job_actions import each
from headrace.cli.jobs import show
from headrace.cli.output import Cell, Column, Styled
from headrace.cli.search import Paging, Search, Wanted, by_queue, by_text, by_type, options, paging
from headrace.cli.text import ago, one_line, plural
from headrace.cli.values import Name
from headrace.core import actions
from headrace.core.change import Change
from headrace.core.model import Job
from headrace.core.states import State

dead = Group("dead", help="Jobs that ran out of tries: look at them, replay or dismiss them.")

COLUMNS = (
    Column("ID"),
    Column("QUEUE"),
    Column("TYPE"),
    Column("TRIES", right=True),
    Column("DIED"),
    Column("ERROR", whole=False),
)


def _row(job: Job, _: str, now: int) -> list[Cell]:
    error = f"{job.error.type}: {job.error.message}" if job.error else ""
    died = ago(job.finished_at, now) if job.finished_at else ""
    return [job.id, job.queue, job.type, str(job.tries), died, Styled(one_line(error, 100), "red")]


@dead.command("list")
@options(by_queue, by_type, by_text)
@paging
@on_app()
async def list_dead(
    desk: Desk, /, limit: int, everything: bool, cursor: str | None, **wanted: Unpack[Wanted]
) -> None:
    """List the dead letters, newest job first."""
    search = Search(desk.app, {**wanted, "states": (State.DEAD,)}, ())
    asked = Paging(limit=limit, everything=everything, cursor=cursor)
    await show(desk, search, asked, _row, COLUMNS)


bulk_options = options(
    click.argument("ids", metavar="[ID]...", type=Name("id"), nargs=-1),
    click.option("--all", "everything", is_flag=True, help="All dead letters of the service."),
    by_queue,
    by_type,
    by_text,
    click.option("--yes", is_flag=True, help="Do not ask."),
)


@dead.command("replay")
@bulk_options
@on_app()
async def replay(
    desk: Desk, /, ids: tuple[str, ...], everything: bool, yes: bool, **wanted: Unpack[Wanted]
) -> None:
    """Bring dead jobs back: by ID, by --queue, --type or --text, or --all."""

    async def action(ref: JobRef[Any]) -> str:
        await ref.replay()
        return "replayed"

    if _by_ids(ids, everything, wanted):
        await each(desk, ids, action)
    else:
        await _all(desk, wanted, actions.replay, ("Replay", "replayed"), yes)


@dead.command("dismiss")
@bulk_options
@click.option("--reason", help="Kept with the job.")
@on_app()
async def dismiss(
    desk: Desk,
    /,
    ids: tuple[str, ...],
    everything: bool,
    yes: bool,
    reason: str | None,
    **wanted: Unpack[Wanted],
) -> None:
    """Take dead jobs out of the list for good: by ID, by --queue, --type or --text, or --all."""

    async def action(ref: JobRef[Any]) -> str:
        await ref.dismiss(reason)
        return "dismissed"

    if _by_ids(ids, everything, wanted):
        await each(desk, ids, action)
    else:
        decide = partial(actions.dismiss, reason=reason)
        await _all(desk, wanted, decide, ("Dismiss", "dismissed"), yes)


def _by_ids(ids: tuple[str, ...], everything: bool, wanted: Wanted) -> bool:
    filtered = any(wanted.values())
    if sum(map(bool, (ids, everything, filtered))) != 1:
        raise click.UsageError("say which: job ids, a filter (--queue, --type, --text), or --all")
    return bool(ids)


async def _all(
    desk: Desk,
    wanted: Wanted,
    decide: Callable[[Job, int], Change],
    words: tuple[str, str],
    yes: bool,
) -> None:
    search = Search(desk.app, {**wanted, "states": (State.DEAD,)}, ())
    found = await bulk.count(desk.app, search.filter)
    if found:
        confirm(f"{words[0]} {plural(found, 'dead job')}?", yes)
    with desk.out.bar(words[1], found) as step:
        tally = await bulk.act(desk.app, search.filter, decide, step)
    if desk.out.json:
        desk.out.value({words[1]: tally.changed, "refused": tally.refused})
        return
    desk.out.line(f"{words[1]} {plural(tally.changed, 'job')}")
    if tally.refused:
        desk.out.note(f"{plural(tally.refused, 'job')} had left the dead letters meanwhile.")
