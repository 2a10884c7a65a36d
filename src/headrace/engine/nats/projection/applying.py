"""Messages of the stream as rows: what a run of them leaves of each job.

Of a job that changes several times within a run only the last standing is written. So a run is
gone through in memory first, and written with a few statements of many rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec
from msgspec import Struct

from headrace.core.states import FINAL, EventType
from headrace.engine.nats import layout as names
from headrace.engine.nats import message
from headrace.engine.nats.layout import Layout
from headrace.engine.nats.projection.database import Database, Value, seqs, texts
from headrace.engine.nats.projection.sql import STATEMENTS
from headrace.engine.nats.wire.stored import Stored

TAG, PARENT, KEY = "tag", "parent", "key"
"""Kinds of labels."""

_NO_LETTERS = frozenset({names.EDGES, names.PARENT})
_DUE = frozenset({"ready", "delayed"})


class _Stand(Struct, gc=False, rename=message.SHORT):
    """What jobs are looked for by."""

    run_at: int = 0
    stage: str = ""
    expires_at: int | None = None
    worker: str | None = None
    lease_until: int | None = None
    finished_at: int | None = None
    spec: _Spec | None = None


class _Key(Struct, gc=False):
    name: str
    hash: str


class _Spec(Struct, gc=False):
    created_at: int
    key: _Key | None = None
    depends_on: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()


class _Body(Struct, gc=False, rename="camel"):
    event_type: str
    state: str | None = None
    queue: str = ""
    job_type: str = ""
    timestamp: str = ""
    headrace: _Stand | None = None


_body = msgspec.json.Decoder(_Body).decode
_NOWHERE = _Stand()


class _Letter(Struct, gc=False):
    seq: int
    service: str
    type: str
    job_id: str
    read: _Body
    body: bytes
    at: int | None
    """When what it tells happened; None where the journal tells nothing of it."""

    @property
    def stand(self) -> _Stand | None:
        """None where the job is gone."""
        return None if self.read.state is None else self.read.headrace or _NOWHERE

    def spec(self) -> _Spec | None:
        """What was enqueued, where this tells it."""
        if self.read.event_type != EventType.CREATED:
            return None
        stand = self.read.headrace
        return stand.spec if stand and stand.spec else _Spec(self.at or 0)


class _Known(Struct, gc=False, array_like=True):
    """A job as it is stored."""

    id: str
    seq: int
    entry: int
    newest: int
    service: str
    queue: str
    state: str


class _Grave(Struct, gc=False, array_like=True):
    """A removed job as it is stored."""

    id: str
    service: str
    type: str
    last: int
    entry: int | None


_KNOWN = msgspec.json.Decoder(list[_Known])
_GRAVES = msgspec.json.Decoder(list[_Grave])


class _Job(Struct, gc=False):
    """A job in the course of a run. `seq` is 0 while there is none of its id."""

    known: _Known | None = None
    grave: _Grave | None = None
    seq: int = 0
    entry: int | None = None
    newest: int = 0
    created: _Letter | None = None
    letter: _Letter | None = None
    stand: _Stand | None = None
    spec: _Spec | None = None


class Run:
    """A run of messages, in order, to be applied within one transaction."""

    def __init__(self, database: Database, layout: Layout, floor: int) -> None:
        self._database, self._floor = database, floor
        self._prefix = len(layout.jobs) - 1
        self._jobs: dict[str, _Job] = {}
        self._counts: Counter[tuple[str, str, str]] = Counter()
        self._messages: list[Value] = []
        self._superseded: list[int] = []
        self._removed: list[int] = []

    def apply(self, messages: Iterable[Stored]) -> None:
        """Writes what the messages leave."""
        letters, trailing = self._read(messages)
        self._load({letter.job_id for letter in letters} | trailing.keys())
        for letter in letters:
            self._follow(letter)
        self._write(trailing)

    def _read(self, messages: Iterable[Stored]) -> tuple[list[_Letter], dict[str, int]]:
        """The messages that say how jobs stand, and the last one of each job that does not.
        What nobody of us can have written is passed over."""
        letters: list[_Letter] = []
        trailing: dict[str, int] = {}
        cut = self._prefix
        for seq, subject, _, payload, _ in messages:
            tokens = subject[cut:].decode().split(".", 4)
            if len(tokens) < 4:
                continue
            service, type, job_id, event = tokens[:4]
            if event in _NO_LETTERS:
                trailing[job_id] = seq
                continue
            try:
                read = _body(payload)
                at = (
                    message.milliseconds(read.timestamp) if message.tells(read.event_type) else None
                )
            except (msgspec.DecodeError, ValueError):
                continue
            letters.append(_Letter(seq, service, type, job_id, read, payload, at))
        return letters, trailing

    def _load(self, ids: set[str]) -> None:
        """What is stored of these jobs."""
        database, jobs = self._database, self._jobs
        for known in database.decoded(_KNOWN, STATEMENTS["known"], [texts(ids)]):
            jobs[known.id] = _Job(known, None, known.seq, known.entry, known.newest)
        others = ids - jobs.keys()
        if others:
            jobs.update((job_id, _Job()) for job_id in others)
            for grave in database.decoded(_GRAVES, STATEMENTS["graves"], [texts(others)]):
                jobs[grave.id] = _Job(None, grave, entry=grave.entry)

    def _follow(self, letter: _Letter) -> None:
        job = self._jobs[letter.job_id]
        seq, stand = letter.seq, letter.stand
        spec = letter.spec()
        if spec is not None and stand is not None:
            job.seq, job.spec, job.created = seq, spec, letter
        if letter.at is not None:
            if seq > self._floor:
                self._messages += (seq, job.seq, job.entry, letter.at, letter.body)
            job.entry = seq
        if stand is None:
            job.seq = 0
            job.spec = job.created = job.stand = None
        else:
            job.stand = stand
        job.letter, job.newest = letter, seq

    # Writing

    def _write(self, trailing: dict[str, int]) -> None:
        inserted: list[Value] = []
        updated: list[Value] = []
        labels: list[Value] = []
        graves: list[Value] = []
        revived: list[str] = []
        for job_id, job in self._jobs.items():
            letter, stand, known = job.letter, job.stand, job.known
            if letter is None:  # nothing but trailing messages
                if job.grave:
                    grave = job.grave
                    graves += (job_id, grave.service, grave.type, trailing[job_id], grave.entry)
                continue
            if job.seq == 0 or stand is None:
                if letter.stand is None or job.grave:
                    last = max(job.newest, trailing.get(job_id, 0))
                    graves += (job_id, letter.service, letter.type, last, job.entry)
            else:
                standing = _standing(letter.read, stand, job)
                if job.spec is not None:
                    inserted += (
                        job.seq,
                        job_id,
                        letter.service,
                        job.spec.created_at,
                        *standing,
                    )
                    _add_labels(labels, job.seq, job.spec)
                else:
                    updated += (job.seq, *standing)
                self._keep(job)
                self._counts[letter.service, letter.read.queue, letter.read.state or ""] += 1
                if job.grave:
                    revived.append(job_id)
            if known:
                self._supersede(job, known)
        self._execute(inserted, updated, labels, graves, revived)

    def _keep(self, job: _Job) -> None:
        """The messages that a job is read from are kept, also where the journal needs them not."""
        newest, created = job.letter, job.created
        assert newest
        if not self._is_entry(newest):
            self._messages += (newest.seq, job.seq, None, None, newest.body)
        if created is not None and created is not newest and not self._is_entry(created):
            self._messages += (created.seq, job.seq, None, None, created.body)

    def _is_entry(self, letter: _Letter) -> bool:
        return letter.at is not None and letter.seq > self._floor

    def _supersede(self, job: _Job, known: _Known) -> None:
        """Lets go of what was stored of a job and no longer counts."""
        self._counts[known.service, known.queue, known.state] -= 1
        gone = job.seq != known.seq
        if gone:
            self._removed.append(known.seq)
            if known.seq <= self._floor:
                self._superseded.append(known.seq)
        if known.newest != known.seq and (
            known.newest != known.entry or known.newest <= self._floor
        ):
            self._superseded.append(known.newest)

    def _execute(
        self,
        inserted: Sequence[Value],
        updated: Sequence[Value],
        labels: Sequence[Value],
        graves: Sequence[Value],
        revived: Sequence[str],
    ) -> None:
        database = self._database
        if self._removed:
            database.execute(STATEMENTS["delete_jobs"], [seqs(self._removed)])
            database.execute(STATEMENTS["delete_labels"], [seqs(self._removed)])
        if self._superseded:
            database.execute(STATEMENTS["delete_messages"], [seqs(self._superseded)])
        if revived:
            database.execute(STATEMENTS["delete_graves"], [texts(revived)])
        database.write_rows("insert_messages", self._messages)
        database.write_rows("insert_jobs", inserted)
        database.write_rows("update_jobs", updated)
        database.write_rows("insert_labels", labels)
        database.write_rows("insert_graves", graves)
        write_counts(database, self._counts)


def write_counts(database: Database, changes: Counter[tuple[str, str, str]]) -> None:
    """Adds to what is counted."""
    rows: list[Value] = []
    for place, change in changes.items():
        if change:
            rows += (*place, change)
    database.write_rows("add_counts", rows)


def _standing(read: _Body, stand: _Stand, job: _Job) -> tuple[Value, ...]:
    """The columns of a job that change."""
    return (
        read.queue,
        read.job_type,
        read.state,
        stand.worker,
        stand.lease_until,
        stand.expires_at,
        stand.run_at if stand.stage in _DUE else None,
        (stand.finished_at or 0) if read.state in FINAL else None,
        job.entry or 0,
        job.newest,
    )


def _add_labels(labels: list[Value], seq: int, spec: _Spec) -> None:
    for tag in spec.tags:
        labels += (TAG, tag, seq)
    for parent in spec.depends_on:
        labels += (PARENT, parent, seq)
    if spec.key:
        labels += (KEY, spec.key.name, seq)
        labels += (KEY, spec.key.hash, seq)
