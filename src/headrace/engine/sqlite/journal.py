"""The journal as rows: written lean, spelled out when it is read.

A row holds what changed. Who the job is (its id, service and context) is with the job, or in
`graves` once it is deleted. The entries of one job are a chain: each names the one before it, and
the job names the newest; so no index grows with every event.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import UNSET, Struct

from headrace.core.event import Event, Policy, Slot
from headrace.core.model import Context, Job, LogEntry, Progress
from headrace.core.states import CLAIMABLE, EventType, State
from headrace.engine.records import Happening
from headrace.engine.sqlite.rows import encode
from headrace.engine.sqlite.sql import statement
from headrace.engine.sqlite.store import Store, Value, seqs


class _Rest(Struct, frozen=True, omit_defaults=True):
    """The fields of an event that most entries do not have."""

    error: str | None = None
    reason: str | None = None
    progress: Progress | None = None
    logs: tuple[LogEntry, ...] = ()
    deadline: int | None = None
    run_at: int | None = None
    slot: Slot | None = None
    policy: Policy | None = None


_NOTHING_MORE = _Rest()


class _Head(Struct, frozen=True):
    """Who the job of an entry is."""

    job: int
    id: str
    service: str
    max_tries: int
    context: Context


class _Row(Struct, frozen=True, array_like=True):
    seq: int
    job: int
    at: int
    event: EventType
    state: State
    previous: State | None
    queue: str
    type: str
    tries: int
    worker: str | None
    rest: _Rest | None


_ROWS = msgspec.json.Decoder(list[_Row])
_HEADS = msgspec.json.Decoder(list[_Head])


def entry_row(entry: Happening) -> tuple[Value, ...]:
    """The row of `insert_journal`."""
    old, new, write, _, _ = entry
    return (
        new.version,
        new.seq,
        old.version if old is not None else None,
        new.updated_at,
        write.event if write is not None else EventType.CREATED,
        new.state,
        old.state if old is not None else None,
        new.queue,
        new.type,
        new.tries,
        new.worker or (old.worker if old is not None else None),
        None if _plain(entry) else encode(_rest(entry)),
    )


def _plain(entry: Happening) -> bool:
    old, new, write, policy, _ = entry
    return (
        policy is None
        and new.spec.key is None
        and new.deadline is None
        and (new.run_at <= new.updated_at or new.state not in CLAIMABLE)
        and (
            write is None
            or (
                write.reason is None
                and not write.logs
                and (write.error is None or write.error is UNSET)
                and (write.progress is None or write.progress is UNSET)
                and (old is None or old.cancelling is None)
            )
        )
    )


def _rest(entry: Happening) -> _Rest:
    event = entry.event()
    return _Rest(*(getattr(event, name) for name in _Rest.__struct_fields__))


def grave_row(job: Job) -> tuple[Value, ...]:
    """The row of `insert_graves`: what the journal needs of a deleted job."""
    head = _Head(job.seq, job.id, job.service, job.max_tries, job.spec.context)
    return (job.seq, job.id, job.version, encode(head))


def events(store: Store, sql: str, values: Sequence[Value]) -> list[Event]:
    """The entries of a `journal_rows` query, spelled out."""
    rows = _ROWS.decode(store.text(sql, values))
    wanted = {row.job for row in rows}
    heads: dict[int, _Head] = {}
    if wanted:
        for name in ("heads_of_jobs", "heads_of_graves"):
            found = _HEADS.decode(store.text(statement(name), (seqs(wanted),)))
            heads.update((head.job, head) for head in found)
    return [_event(row, heads[row.job]) for row in rows]


def _event(row: _Row, head: _Head) -> Event:
    return Event(
        seq=row.seq,
        at=row.at,
        job_id=head.id,
        service=head.service,
        queue=row.queue,
        type=row.type,
        event=row.event,
        state=row.state,
        previous=row.previous,
        tries=row.tries,
        max_tries=head.max_tries,
        context=head.context,
        worker=row.worker,
        **msgspec.structs.asdict(row.rest or _NOTHING_MORE),
    )
