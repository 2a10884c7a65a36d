"""`headrace job add` and `job list`."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, TypedDict, Unpack, cast

import click

from headrace.app.looking import paused_queues
from headrace.app.options import Debounce, JobOptions, KeepLast, Throttle, Unique
from headrace.app.task import Prepared
from headrace.cli import shapes
from headrace.cli.command import Desk, Group, on_app
from headrace.cli.output import Cell, Column, state_cell
from headrace.cli.search import Paging, Search, Wanted, narrowing, options, paging
from headrace.cli.text import ago, one_line, progress_line
from headrace.cli.values import (
    COUNT,
    MOST,
    Duration,
    Moment,
    Name,
    Pair,
    Retry,
    one_of,
    read_payload,
)
from headrace.core.errors import UndecodablePayload
from headrace.core.model import Job, OnLost, OnParentFailure, WhenFull
from headrace.core.retry import RetryPolicy

job = Group("job", help="Add jobs, look at them, and act on them.")


class Added(TypedDict):
    """The options of `job add`; None or empty where they were not given."""

    queue: str | None
    priority: int | None
    delay: float | None
    run_at: datetime | None
    deadline: datetime | None
    ttl: float | None
    timeout: float | None
    max_tries: int | None
    lifo: bool
    retry: RetryPolicy | None
    id: str | None
    depends_on: tuple[str, ...]
    on_parent_failure: str | None
    unique: str | None
    throttle: float | None
    extend: bool
    debounce: float | None
    keep_last: bool
    key: tuple[str, ...]
    max_active: int | None
    max_queued: int | None
    when_full: str | None
    on_lost: str | None
    tags: tuple[str, ...]
    metadata: tuple[tuple[str, str], ...]
    request_id: str | None
    traceparent: str | None
    tracestate: str | None


job_options = options(
    click.option("--queue", type=Name("queue"), help="The queue; default."),
    click.option("--priority", type=click.IntRange(0, 9), help="0 to 9, lower first; 5."),
    click.option("--lifo", is_flag=True, help="Before the older jobs of its priority."),
    click.option("--delay", type=Duration(), help="Run it after so long: 90s, 5m, 2h."),
    click.option("--run-at", type=Moment(), help="Run it then: 2030-01-31T12:00:00Z."),
    click.option(
        "--deadline", type=Moment(ahead=True), help="By when it must be done: a time, or 2h."
    ),
    click.option("--ttl", type=Duration(), help="Within what time it must be started."),
    click.option("--timeout", type=Duration(), help="How long one try may take."),
    click.option("--max-tries", type=COUNT, help="How often it is tried; 10."),
    click.option("--retry", type=Retry(), help="1m, steps, …, or delays like 5s,1m,10m."),
    click.option("--id", type=Name("id"), help="Its id; a new one is made."),
    click.option(
        "--depends-on", type=Name("id"), multiple=True, help="A job that must complete first."
    ),
    click.option(
        "--on-parent-failure",
        type=one_of(OnParentFailure),
        help="What becomes of it when one of those fails; unreachable.",
    ),
    click.option("--unique", metavar="KEY", help="Refuse it while a job with this key lives."),
    click.option("--throttle", type=Duration(), help="One per so long of the key or arguments."),
    click.option("--extend", is_flag=True, help="Each attempt restarts the time of --throttle."),
    click.option("--debounce", type=Duration(), help="Replace one that waits, and wait so long."),
    click.option("--keep-last", is_flag=True, help="One running and one waiting; newest wins."),
    click.option(
        "--key",
        multiple=True,
        metavar="SEGMENT",
        help="Concurrency key: a constant, or /pointer into the payload; again for more.",
    ),
    click.option("--max-active", type=COUNT, help="Jobs of the key at a time; 1."),
    click.option(
        "--max-queued", type=click.IntRange(0, MOST), help="How many of the key may wait."
    ),
    click.option("--when-full", type=one_of(WhenFull), help="What then becomes of it; reject."),
    click.option(
        "--on-lost", type=one_of(OnLost), help="If the worker of a keyed job is gone; retry."
    ),
    click.option("--tag", "tags", type=Name("tag"), multiple=True, help="A tag to find it by."),
    click.option("--metadata", type=Pair(), multiple=True, help="A note kept with the job."),
    click.option("--request-id", help="Whose request it is part of; its own id."),
    click.option("--traceparent", help="Its W3C trace context; a new trace."),
    click.option("--tracestate", help="What goes with the traceparent."),
)


@job.command("add")
@click.argument("type", type=Name("type"))
@click.argument("payload", required=False)
@job_options
@on_app(creates=True)
async def add(desk: Desk, /, type: str, payload: str | None = None, **given: Unpack[Added]) -> None:
    """Enqueue a job of TYPE with PAYLOAD, a JSON object of the arguments by name; - reads stdin.

    \b
    headrace job add mail:send '{"to": "ada@example.org"}' --queue mail --delay 5m

    With --app, the task's own options hold where none is given here.
    """
    prepared = _prepared(desk, type, payload, _chosen(given))
    (submission,) = await desk.app.enqueue_many([prepared])
    if submission.error is not None:
        raise submission.error
    assert submission.ref
    found = await submission.ref.get()
    if desk.out.json:
        desk.out.value(shapes.job(found, desk.now(), found.queue in await paused_queues(desk.app)))
    else:
        desk.out.line(submission.ref.id)


_UNIQUE = ("unique", "throttle", "extend", "debounce", "keep_last")


def _unique(given: Added) -> Unique | None:
    """The rule of the dedup key, which is --unique or, without it, the type and arguments."""
    key, throttle, debounce = given["unique"], given["throttle"], given["debounce"]
    if (throttle is not None) + (debounce is not None) + given["keep_last"] > 1:
        raise click.UsageError("give one of --throttle, --debounce and --keep-last")
    if given["extend"] and throttle is None:
        raise click.UsageError("--extend is about --throttle; give both")
    if throttle is not None:
        return Throttle(throttle, key, given["extend"])
    if debounce is not None:
        return Debounce(debounce, key)
    return KeepLast(key) if given["keep_last"] else key


def _chosen(given: Added) -> JobOptions:
    chosen: dict[str, Any] = {
        name: value
        for name, value in given.items()
        if value is not None and value is not False and value != () and name not in _UNIQUE
    }
    rule = _unique(given)
    if rule is not None:
        chosen["unique"] = rule
    if "metadata" in chosen:
        chosen["metadata"] = dict(given["metadata"])
    if "run_at" in chosen and "delay" in chosen:
        raise click.UsageError("give --run-at or --delay, not both")
    return cast(JobOptions, chosen)


def _prepared(desk: Desk, type: str, text: str | None, chosen: JobOptions) -> Prepared[Any]:
    payload = read_payload(text)
    task = desk.app.registered(type)
    if task is None:
        return desk.app.prepare(type, payload, **chosen)
    try:
        args, kwargs = task.handler.parameters.decode(payload)
    except UndecodablePayload as error:
        raise UndecodablePayload(f"the payload does not fit {type}: {error}") from None
    return task.options(**chosen).prepare(*args, **kwargs)


COLUMNS = (
    Column("ID"),
    Column("STATE"),
    Column("QUEUE"),
    Column("TYPE"),
    Column("TRIES", right=True),
    Column("CREATED"),
    Column("NOTE", whole=False),
)


@job.command("list")
@narrowing
@paging
@on_app()
async def list_jobs(
    desk: Desk, /, limit: int, everything: bool, cursor: str | None, **wanted: Unpack[Wanted]
) -> None:
    """List jobs, newest first.

    \b
    headrace job list --state dead --queue mail --since 2h
    """
    search = Search(desk.app, wanted, await paused_queues(desk.app))
    asked = Paging(limit=limit, everything=everything, cursor=cursor)
    await show(desk, search, asked)


def row(found: Job, shown: str, now: int) -> list[Cell]:
    """A job in the list."""
    return [
        found.id,
        state_cell(shown),
        found.queue,
        found.type,
        f"{found.tries}/{found.max_tries}",
        ago(found.spec.created_at, now),
        note(found, shown, now),
    ]


def note(found: Job, shown: str, now: int) -> str:
    """What is most worth knowing about a job besides its state."""
    if shown in ("scheduled", "retry") and found.run_at > now:
        due = f"due {ago(found.run_at, now)}"
        return f"{due}; {_error(found)}" if found.error else due
    if shown == "parked" and found.key:
        return f"key {found.key.name}"
    if found.error and not (found.error.number < found.tries and shown == "active"):
        return _error(found)
    if shown == "active" and found.progress:
        return one_line(progress_line(found.progress), 80)
    return ""


def _error(found: Job) -> str:
    assert found.error
    return one_line(f"{found.error.type}: {found.error.message}", 80)


MakeRow = Callable[[Job, str, int], list[Cell]]
"""The cells of a job, from the job, its shown state and the time."""

_PART = 500
"""A long table is written in parts, so that it need not fit into memory."""


async def show(
    desk: Desk,
    search: Search,
    asked: Paging,
    make_row: MakeRow = row,
    columns: tuple[Column, ...] = COLUMNS,
) -> None:
    """The jobs that a search finds, as a table or as a JSON array."""
    now, last, count = desk.now(), None, 0
    more = False
    with desk.out.array() if desk.out.json else desk.out.parts(columns, _PART) as add:
        async for found in search.jobs(asked):
            if not asked["everything"] and count == asked["limit"]:
                more = True
                break
            count, last = count + 1, found
            if desk.out.json:
                add(search.shape(found))
            else:
                add(make_row(found, search.shown(found), now))
    if not count:
        desk.out.note("No jobs.")
    if more and last is not None:
        desk.out.note(f"More follow: --cursor {last.seq}, or --all.")
