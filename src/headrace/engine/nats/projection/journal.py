"""The journal as the projection holds it: entries, with what their jobs still hold."""

from __future__ import annotations

from typing import cast

import msgspec
from msgspec import Struct

from headrace.core.event import Event
from headrace.core.states import EventType
from headrace.engine.nats import message
from headrace.engine.nats.message import Letter
from headrace.engine.nats.projection.database import Database, texts
from headrace.engine.nats.projection.finding import fetch_jobs
from headrace.engine.nats.projection.sql import STATEMENTS
from headrace.engine.protocol import Entry

_HOLDING = frozenset({EventType.CREATED, EventType.COMPLETED})
"""Events whose entries come with something that the job holds."""


class _Head(Struct, gc=False, array_like=True):
    id: str
    seq: int
    newest: int


_HEADS = msgspec.json.Decoder(list[_Head])


def entries(database: Database, after: int, limit: int, job_id: str | None) -> list[Entry]:
    """The entries above a sequence, in order; of one id where it is named."""
    if job_id is None:
        rows = database.fetch_all(STATEMENTS["journal"], [after, limit])
    else:
        rows = database.fetch_all(STATEMENTS["journal_of"], [job_id, after, limit])
    letters = [_read(*cast("tuple[int, bytes]", row)) for row in rows]
    told = [(letter, event) for letter in letters if letter and (event := letter.event())]
    heads = _heads(database, {e.job_id for _, e in told if e.event in _HOLDING})
    others = {id for letter, e in told if (id := _elsewhere(letter, e, heads.get(e.job_id)))}
    jobs = fetch_jobs(database, [heads[job_id].seq for job_id in others])
    holders = {job.id: job for job in jobs.values()}
    return [
        _plain(letter, event)
        if event.job_id in heads and event.job_id not in others
        else Entry.of(event, holders.get(event.job_id))
        for letter, event in told
    ]


def _read(seq: int, body: bytes) -> Letter | None:
    """The message; None where somebody else wrote it."""
    try:
        return message.read(seq, body)
    except msgspec.DecodeError:
        return None


def _heads(database: Database, ids: set[str]) -> dict[str, _Head]:
    """Where the jobs with these ids have what they hold, of those that are still there."""
    if not ids:
        return {}
    return {head.id: head for head in database.decoded(_HEADS, STATEMENTS["heads"], [texts(ids)])}


def _elsewhere(letter: Letter, event: Event, head: _Head | None) -> str | None:
    """The job's id, where it no longer holds what this message brought."""
    if head is None:
        return None
    if event.event is EventType.CREATED:
        return event.job_id if head.seq != letter.seq else None
    if event.event is EventType.COMPLETED:
        return event.job_id if head.newest != letter.seq else None
    return None


def _plain(letter: Letter, event: Event) -> Entry:
    """The entry of a message whose job still holds what it brought."""
    payload = letter.payload() if event.event is EventType.CREATED else None
    result = letter.result() if event.event is EventType.COMPLETED else None
    return Entry(event, payload, result)
