"""The reader: a connection of its own, so that reads never wait for a commit, and a thread for what
takes a while."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import cast

import apsw
import msgspec

from headrace.core.errors import EngineError, HeadraceError, StoreTooNew
from headrace.core.model import (
    MAX_LOGS,
    Counted,
    Document,
    Job,
    KeyStatus,
    LogEntry,
    Parent,
    Stage,
    TryError,
)
from headrace.core.states import EventType, State
from headrace.engine.protocol import Details, Entry
from headrace.engine.sqlite.errors import breaks_connection, translate
from headrace.engine.sqlite.journal import events
from headrace.engine.sqlite.lane import Answered, Ask, Lane, send
from headrace.engine.sqlite.location import Location
from headrace.engine.sqlite.pace import Pace
from headrace.engine.sqlite.rows import fetch_edges, fetch_jobs
from headrace.engine.sqlite.schema import check, connect
from headrace.engine.sqlite.sql import statement
from headrace.engine.sqlite.store import Store, seqs, texts
from headrace.engine.statements import LARGEST

_ERRORS = msgspec.json.Decoder(list[tuple[int, TryError]])
_LOGS = msgspec.json.Decoder(list[tuple[int, LogEntry]])
_COUNTS = msgspec.json.Decoder(list[tuple[str, str, State, int]])
_DOCUMENTS = msgspec.json.Decoder(list[tuple[str, msgspec.Raw, int, int | None]])
_KEY = msgspec.json.Decoder(list[tuple[str, str, int, int, int]])

_FEW = 10
"""So many jobs are read in the event loop itself."""

_NEXT = 10
"""So many waiting jobs are shown of a key."""


class Reader:
    """Answers what it is asked; everything asked at once sees the same state of the store."""

    def __init__(self, location: Location) -> None:
        self._location = location
        self._store: Store | None = None
        self._pace = Pace()
        here = self._serve_here if location.direct else None
        self._lane = Lane[Store]("headrace-reader", self._serve, here)
        self.ask = self._lane.ask

    def stop(self) -> None:
        self._lane.stop()
        self._disconnect()

    def _disconnect(self) -> None:
        store, self._store = self._store, None
        if store is not None:
            store.close()

    def _connect(self) -> Store:
        if self._store is None:
            store = connect(self._location)
            store.execute("PRAGMA query_only = 1")
            self._store = store
        return self._store

    def _serve_here(self, asks: list[Ask[Store]]) -> bool:
        """In the event loop's own thread, where it is about a few jobs and the disk is quick."""
        if not self._pace.quick or self._store is None or sum(ask.size for ask in asks) > _FEW:
            return False
        start = time.perf_counter()
        self._serve(asks)
        self._pace.took(time.perf_counter() - start)
        return True

    def _serve(self, asks: list[Ask[Store]]) -> None:
        answers: list[Answered[Store]] = []
        try:
            store = self._connect()
            store.execute("BEGIN")
            try:
                for ask in asks:
                    try:
                        answers.append((ask, ask.work(store), None))
                    except Exception as error:
                        answers.append((ask, None, self._explained(error)))
            finally:
                if store.in_transaction:
                    store.execute("COMMIT")
        except Exception as error:
            # An ask that has its answer keeps it: the first answer counts.
            explained = self._explained(error)
            answers += [(ask, None, explained) for ask in asks]
        send(answers)

    def _explained(self, error: Exception) -> Exception:
        if breaks_connection(error):
            self._disconnect()
        if isinstance(error, apsw.Error) and (known := translate(error, self._location.path)):
            return known
        return error if isinstance(error, HeadraceError) else self._too_new() or error

    def _too_new(self) -> StoreTooNew | None:
        """Why something cannot be read that a newer Headrace may have written meanwhile."""
        try:
            if self._store is not None:
                check(self._store, self._location.path)
        except StoreTooNew as error:
            return error
        except (apsw.Error, EngineError):
            pass
        return None


def jobs_by_id(store: Store, ids: Sequence[str]) -> dict[str, Job]:
    """The jobs of these ids that exist."""
    jobs: dict[str, Job] = {}
    for start in range(0, len(ids), LARGEST):
        part = texts(ids[start : start + LARGEST])
        jobs.update((job.id, job) for job in fetch_jobs(store, statement("jobs_by_id"), (part,)))
    return jobs


def details(store: Store, ids: Sequence[str]) -> list[Details | None]:
    """The jobs with what is kept beside them."""
    jobs = jobs_by_id(store, ids)
    numbers = [job.seq for job in jobs.values()]
    errors: dict[int, list[TryError]] = {seq: [] for seq in numbers}
    logs: dict[int, list[LogEntry]] = {seq: [] for seq in numbers}
    parents: dict[str, dict[str, Parent]] = {job_id: {} for job_id in jobs}
    if jobs:
        for seq, error in _ERRORS.decode(store.text(statement("errors_of"), (seqs(numbers),))):
            errors[seq].append(error)
        for seq, line in _LOGS.decode(store.text(statement("logs_of"), (seqs(numbers),))):
            logs[seq].append(line)
        for edge in fetch_edges(store, statement("edges_from"), (texts(jobs),)):
            parent = Parent(edge.parent_id, edge.parent_state, edge.result)
            parents[edge.child_id][edge.parent_id] = parent

    def of(job: Job | None) -> Details | None:
        if job is None:
            return None
        known = parents[job.id]
        return Details(
            job,
            tuple(errors[job.seq]),
            tuple(logs[job.seq][-MAX_LOGS:]),
            tuple(known[parent] for parent in job.spec.depends_on if parent in known),
        )

    return [of(jobs.get(job_id)) for job_id in ids]


def count(store: Store, service: str | None) -> list[Counted]:
    """Jobs by place and state."""
    found = _COUNTS.decode(store.text(statement("count")))
    return [Counted(*row) for row in found if service in (None, row[0])]


def journal(store: Store, after: int, limit: int, job_id: str | None) -> list[Entry]:
    """Entries of all jobs or of one."""
    if job_id is None:
        found = events(store, statement("journal"), (after, limit))
    else:
        found = events(store, statement("journal_of"), (job_id, after, limit))
    told = {event.job_id for event in found if event.event in _TELLS}
    jobs = jobs_by_id(store, list(told))
    return [Entry.of(event, jobs.get(event.job_id)) for event in found]


_TELLS = frozenset({EventType.CREATED, EventType.COMPLETED})


def documents(store: Store, kind: str, now: int) -> list[Document]:
    """The documents of a kind that have not expired."""
    found = _DOCUMENTS.decode(store.text(statement("documents"), (kind, now)))
    return [
        Document(kind, name, body, revision, expires_at)
        for name, body, revision, expires_at in found
    ]


def key_status(store: Store, service: str, hash: str) -> KeyStatus | None:
    """One key: its owners, and those that come next."""
    active = fetch_jobs(store, statement("active_of_key"), (service, hash))
    queued: list[Job] = []
    for stage in Stage:
        queue = ""
        while True:
            row = store.fetch(statement("queue_of_key"), (service, hash, stage, queue))
            if not row or row[0] is None:
                break
            queue = cast(str, row[0])
            values = (service, hash, stage, queue, _NEXT)
            queued += fetch_jobs(store, statement("line_of_key"), values)
    if not active and not queued:
        return None
    limit = (active + queued)[0].key
    assert limit
    counted = _KEY.decode(store.text(statement("keys"), (service, texts((hash,)))))
    waiting, takeovers = (counted[0][3], counted[0][4]) if counted else (0, 0)

    def place(job: Job) -> tuple[int, int]:
        return job.priority, job.position

    return KeyStatus(
        service,
        limit.name,
        hash,
        tuple(sorted(active, key=place)),
        waiting,
        tuple(sorted(queued, key=place)[:_NEXT]),
        takeovers,
    )
