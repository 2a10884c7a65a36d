"""`headrace job cancel`, `retry`, `set-priority`, `run-now`, `free-unique`, `delete`, `watch`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import click
from click.exceptions import Exit

from headrace.app.jobref import JobRef, Snapshot
from headrace.cli import shapes
from headrace.cli.command import Desk, confirm, on_app
from headrace.cli.jobs import job
from headrace.cli.output import Cell, Styled, say, state_cell
from headrace.cli.text import one_line, plural, progress_line
from headrace.cli.values import Name
from headrace.core.errors import EngineError, HeadraceError, Refused
from headrace.core.event import rfc3339
from headrace.core.states import State

Action = Callable[[JobRef[Any]], Awaitable[str]]
"""Acts on one job and says what was done."""

ids_argument = click.argument("ids", metavar="ID...", type=Name("id"), nargs=-1, required=True)
id_argument = click.argument("job_id", metavar="ID", type=Name("id"))


async def each(desk: Desk, ids: Sequence[str], action: Action) -> None:
    """Acts on job after job; one that is refused does not keep the others from it."""
    answers: list[dict[str, Any]] = []
    for job_id in dict.fromkeys(ids):
        try:
            done = await action(desk.app.job(job_id))
        except EngineError:
            raise
        except HeadraceError as error:
            answers.append({"id": job_id, "ok": False, "done": None, "error": str(error)})
            if not desk.out.json:
                say(f"Error: {error}")
        else:
            answers.append({"id": job_id, "ok": True, "done": done, "error": None})
            if not desk.out.json:
                desk.out.line(job_id, "  ", done)
    if desk.out.json:
        desk.out.value(answers)
    if not all(answer["ok"] for answer in answers):
        raise Exit(1)


@job.command("cancel")
@ids_argument
@click.option("--reason", default="cancelled by request", help="Kept with the job.")
@on_app()
async def cancel(desk: Desk, /, ids: tuple[str, ...], reason: str) -> None:
    """End waiting jobs, and ask running ones to stop."""

    async def action(ref: JobRef[Any]) -> str:
        taken = await ref.cancel(reason)
        after = await ref.get()
        if not taken:
            raise Refused(f"job {ref.id} has ended already: {after.state}")
        return "cancelled" if after.state is State.CANCELLED else "asked to stop"

    await each(desk, ids, action)


@job.command("retry")
@ids_argument
@on_app()
async def retry(desk: Desk, /, ids: tuple[str, ...]) -> None:
    """Bring ended jobs back: same id, tries from 0."""

    async def action(ref: JobRef[Any]) -> str:
        return f"retried, {(await ref.retry()).state}"

    await each(desk, ids, action)


@job.command("set-priority")
@click.argument("priority", type=click.IntRange(0, 9))
@ids_argument
@on_app()
async def set_priority(desk: Desk, /, priority: int, ids: tuple[str, ...]) -> None:
    """Give waiting jobs another PRIORITY: 0 to 9, lower first."""

    async def action(ref: JobRef[Any]) -> str:
        return f"priority {(await ref.set_priority(priority)).priority}"

    await each(desk, ids, action)


@job.command("run-now")
@ids_argument
@on_app()
async def run_now(desk: Desk, /, ids: tuple[str, ...]) -> None:
    """Make delayed jobs due."""

    async def action(ref: JobRef[Any]) -> str:
        return f"due now, {(await ref.run_now()).state}"

    await each(desk, ids, action)


@job.command("free-unique")
@ids_argument
@on_app()
async def free_unique(desk: Desk, /, ids: tuple[str, ...]) -> None:
    """Give the dedup keys of waiting jobs back, so that others may take them."""

    async def action(ref: JobRef[Any]) -> str:
        await ref.free_unique()
        return "dedup key freed"

    await each(desk, ids, action)


@job.command("delete")
@ids_argument
@click.option("--yes", is_flag=True, help="Do not ask.")
@on_app()
async def delete(desk: Desk, /, ids: tuple[str, ...], yes: bool) -> None:
    """Delete jobs that wait or have ended."""
    confirm(f"Delete {plural(len(set(ids)), 'job')}?", yes)

    async def action(ref: JobRef[Any]) -> str:
        await ref.delete()
        return "deleted"

    await each(desk, ids, action)


@job.command("watch")
@id_argument
@on_app()
async def watch(desk: Desk, /, job_id: str) -> None:
    """Follow a job until it has ended. Exit code 0 if it completed, 1 otherwise."""
    last: Snapshot | None = None
    async for snapshot in desk.app.job(job_id).watch():
        if desk.out.json:
            desk.out.record(shapes.snapshot(snapshot))
        else:
            desk.out.line(*_line(snapshot, first=last is None))
        desk.out.flush()
        last = snapshot
    if last is None or last.state is not State.COMPLETED:
        raise Exit(1)


def _line(snapshot: Snapshot, first: bool) -> list[Cell]:
    text = ""
    if snapshot.event == "progress" and snapshot.progress:
        text = progress_line(snapshot.progress)
    elif snapshot.error and snapshot.state is not State.ACTIVE:
        text = one_line(snapshot.error)
    elif snapshot.event == "started":
        text = f"try {snapshot.tries}"
    elif first and snapshot.progress:
        text = progress_line(snapshot.progress)
    return [
        Styled(rfc3339(snapshot.at), "dim"),
        f"  {snapshot.event:<12}  ",
        state_cell(str(snapshot.state)),
        f"  {text}" if text else "",
    ]
