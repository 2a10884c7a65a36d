"""The journal as the projection holds it: entries, with what their jobs still hold."""

from __future__ import annotations

from typing import cast

import msgspec

from headrace.core.event import Event
from headrace.core.model import Job
from headrace.core.states import EventType
from headrace.engine.nats import message
from headrace.engine.nats.message import Letter
from headrace.engine.nats.projection.database import Database, texts
from headrace.engine.nats.projection.finding import fetch_jobs
from headrace.engine.nats.projection.sql import STATEMENTS
from headrace.engine.protocol import Entry

_HOLDING = frozenset({EventType.CREATED, EventType.COMPLETED})
"""Events whose entries come with something that the job holds."""

_SEQS = msgspec.json.Decoder(list[int])


def entries(database: Database, after: int, limit: int, job_id: str | None) -> list[Entry]:
    """The entries above a sequence, in order; of one id where it is named."""
    if job_id is None:
        rows = database.fetch_all(STATEMENTS["journal"], [after, limit])
    else:
        rows = database.fetch_all(STATEMENTS["journal_of"], [job_id, after, limit])
    letters = [_read(*cast("tuple[int, bytes]", row)) for row in rows]
    events = [event for letter in letters if letter and (event := letter.event())]
    jobs = _jobs(database, [event for event in events if event.event in _HOLDING])
    return [Entry.of(event, jobs.get(event.job_id)) for event in events]


def _read(seq: int, body: bytes) -> Letter | None:
    """The message; None where somebody else wrote it."""
    try:
        return message.read(seq, body)
    except msgspec.DecodeError:
        return None


def _jobs(database: Database, events: list[Event]) -> dict[str, Job]:
    """The jobs of these events that are still there."""
    if not events:
        return {}
    ids = {event.job_id for event in events}
    seqs = database.decoded(_SEQS, STATEMENTS["seqs"], [texts(ids)])
    return {job.id: job for job in fetch_jobs(database, seqs).values()}
