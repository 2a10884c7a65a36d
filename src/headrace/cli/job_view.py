"""`headrace job view`: everything that is known about one job."""

from __future__ import annotations

import msgspec

from headrace.app.looking import paused_queues
from headrace.cli import shapes
from headrace.cli.command import Desk, on_app
from headrace.cli.job_actions import id_argument
from headrace.cli.jobs import job
from headrace.cli.output import Cell, Output, Styled, state_cell
from headrace.cli.text import compact, moment, one_line, pretty, progress_line, span
from headrace.core.event import Event, rfc3339
from headrace.core.model import Job, KeyLimit, LogEntry, Parent, TryError
from headrace.core.states import FINAL, EventType, State
from headrace.engine.protocol import Details, Entry


@job.command("view")
@id_argument
@on_app()
async def view(desk: Desk, /, job_id: str) -> None:
    """Show a job: state, timeline, errors, logs, payload, result, and why it is not running."""
    details = await desk.app.job(job_id).details()
    entries = await _history(desk, job_id)
    why = await desk.app.why(job_id)
    now = desk.now()
    paused = details.job.queue in await paused_queues(desk.app)
    if desk.out.json:
        desk.out.value(shapes.details(details, now, paused, entries, why))
        return
    _head(desk.out, details.job, now, paused)
    if details.job.state not in FINAL and details.job.state is not State.ACTIVE:
        desk.out.title("Why it is not running")
        for reason in why:
            desk.out.line("  ", reason)
    _rest(desk.out, details, entries)


async def _history(desk: Desk, job_id: str) -> list[Entry]:
    engine = await desk.app.engine()
    entries: list[Entry] = []
    after = 0
    while page := await engine.journal(after, 1000, job_id):
        entries += page
        after = page[-1].event.seq
    return entries


def _head(out: Output, found: Job, now: int, paused: bool) -> None:
    out.line(Styled(f"{found.type} ", "bold"), found.id)
    out.fields([row for row in _facts(found, now, paused) if row[1]])


def _facts(found: Job, now: int, paused: bool) -> list[tuple[str, Cell]]:
    spec = found.spec
    return [
        ("state", state_cell(found.shown(now, paused))),
        ("queue", f"{found.queue} of service {found.service}"),
        ("priority", f"{found.priority}{', newest first' if spec.lifo else ''}"),
        ("tries", f"{found.tries} of {found.max_tries}"),
        ("created", moment(spec.created_at, now)),
        ("due", moment(found.run_at, now) if found.state not in FINAL else ""),
        ("started", moment(found.started_at, now) if found.started_at else ""),
        ("finished", moment(found.finished_at, now) if found.finished_at else ""),
        ("took", _took(found, now)),
        ("worker", found.worker or ""),
        ("lease until", moment(found.lease_until, now) if found.lease_until else ""),
        ("cancelling", Styled(found.cancelling, "yellow") if found.cancelling is not None else ""),
        ("deadline", moment(found.deadline, now) if found.deadline else ""),
        ("ttl", compact(spec.ttl) if spec.ttl else ""),
        ("timeout", compact(spec.timeout) if spec.timeout else ""),
        ("key", _key(spec.key) if spec.key else ""),
        ("unique", f"{spec.dedup.key} ({spec.dedup.mode})" if spec.dedup else ""),
        ("tags", ", ".join(spec.tags)),
        ("metadata", msgspec.json.encode(spec.metadata).decode() if spec.metadata else ""),
        ("request", spec.context.request_id),
        ("trace", spec.context.trace_id),
        ("progress", progress_line(found.progress) if found.progress else ""),
        ("error", _short(found.error) if found.error else ""),
    ]


def _took(found: Job, now: int) -> str:
    if found.started_at is None or (found.finished_at is None and found.state is not State.ACTIVE):
        return ""
    return span((found.finished_at or now) - found.started_at)


def _key(key: KeyLimit) -> str:
    return f"{key.name}, {key.max_active} at a time, hash {key.hash}"


def _short(error: TryError) -> Cell:
    return Styled(one_line(f"{error.type}: {error.message}"), "red")


def _rest(out: Output, details: Details, entries: list[Entry]) -> None:
    out.title("Payload")
    _indented(out, pretty(details.job.spec.payload))
    if details.job.result is not None:
        out.title("Result")
        _indented(out, pretty(details.job.result))
    if details.parents:
        out.title("Parents")
        for parent in details.parents:
            _parent(out, parent)
    out.title("Timeline")
    _timeline(out, [entry.event for entry in entries])
    if details.errors:
        out.title("Errors")
        for error in details.errors:
            _error(out, error)
    if details.logs:
        out.title("Logs")
        for entry in details.logs:
            _log(out, entry)


def _parent(out: Output, parent: Parent) -> None:
    state = str(parent.state) if parent.state else "not ended"
    result = one_line(bytes(parent.result).decode(), 200) if parent.result is not None else ""
    out.line("  ", parent.id, "  ", state_cell(state), f"  {result}" if result else "")


def _timeline(out: Output, events: list[Event]) -> None:
    if not events:
        out.line("  the journal no longer has it")
        return
    before = events[0].at
    for event in events:
        text = happened(event)
        out.line(
            Styled(f"  {rfc3339(event.at)}", "dim"),
            f"  {'+' + span(event.at - before):>10}  ",
            f"{event.event:<12}  " if text else str(event.event),
            text,
        )
        before = event.at


def happened(event: Event) -> str:
    """What an event says beyond its name."""
    parts: list[str] = []
    if event.event is EventType.STARTED:
        parts.append(f"try {event.tries} on {event.worker}")
    if event.event is EventType.PROGRESS and event.progress:
        parts.append(progress_line(event.progress))
    if event.error:
        parts.append(one_line(event.error, 200))
    if event.reason:
        parts.append(one_line(event.reason, 200))
    if event.event in _DUE and event.run_at is not None and event.run_at > event.at:
        parts.append(f"due in {span(event.run_at - event.at)}")
    parts += [one_line(f"{line.level}: {line.message}", 200) for line in event.logs]
    return "; ".join(parts)


_DUE = frozenset({EventType.CREATED, EventType.RETRY, EventType.SNOOZED, EventType.CHANGED})


def _error(out: Output, error: TryError) -> None:
    out.line(f"  try {error.number}  ", Styled(rfc3339(error.at), "dim"), "  ", _short(error))
    if error.traceback:
        _indented(out, error.traceback.rstrip(), "    ")


def _log(out: Output, entry: LogEntry) -> None:
    out.line(
        Styled(f"  {rfc3339(entry.at)}", "dim"), f"  {entry.level:<7}  ", one_line(entry.message)
    )


def _indented(out: Output, text: str, indent: str = "  ") -> None:
    for line in text.splitlines():
        out.line(indent, line)
