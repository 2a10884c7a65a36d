"""The projection: a copy of the stream that can be searched."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Generator, Sequence
from typing import NamedTuple, cast

import msgspec

from headrace.core.errors import StoreBusy, StoreReadOnly
from headrace.core.model import Counted, Filter, Job, Page
from headrace.core.retention import Cutoff
from headrace.core.states import WAITING
from headrace.engine.nats.layout import Layout
from headrace.engine.nats.projection import finding, journal
from headrace.engine.nats.projection.database import Damaged, Database, texts
from headrace.engine.nats.projection.following import Follower, Place, set_floor
from headrace.engine.nats.projection.sql import STATEMENTS
from headrace.engine.nats.wire.jetstream import JetStream
from headrace.engine.protocol import Entry, OldestDue

_log = logging.getLogger("headrace")

_ATTEMPTS = 3
"""A projection that is found damaged is built anew; not for ever."""

_PAIRS = msgspec.json.Decoder(list[tuple[int, int]])
_OLDEST = msgspec.json.Decoder(list[OldestDue])


class Gone(NamedTuple):
    """A removed job of which the journal tells nothing any more; `last` is its newest message."""

    id: str
    service: str
    type: str
    last: int


class OldEntries(NamedTuple):
    """The oldest entries of the journal: how many, and the sequence of the last of them."""

    entries: int
    last: int


_GONE = msgspec.json.Decoder(list[Gone])


class Projection:
    """Jobs and journal of one namespace, as far as `catch_up` has read the stream.

    A file shared by the processes of a machine, or memory of its own where `path` is None. It may
    be deleted at any time, also while it is open. Used by one thread at a time; whatever reads it
    may raise `Damaged`, after which `catch_up` builds it anew.
    """

    def __init__(self, path: str | None, layout: Layout) -> None:
        self._database = Database(path)
        self._layout = layout
        self._identity = ""
        self._reached = -1
        self._catching_up = asyncio.Lock()

    def open(self, identity: str) -> None:
        """Opens the projection of the stream that has this identity: its name and when it was
        created. That of another one is thrown away."""
        self._identity = identity
        self._reached = -1
        try:
            self._database.open(identity)
        except (StoreReadOnly, StoreBusy) as error:
            _log.warning("%s; searching in memory instead, which each process reads anew", error)
            self._database = Database(None)
            self._database.open(identity)

    def close(self) -> None:
        self._database.close()

    async def catch_up(self, js: JetStream, stream: str, upto: int) -> None:
        """Follows the stream at least to the sequence `upto`, as far as there is something."""
        async with self._catching_up:
            for attempt in range(1, _ATTEMPTS + 1):
                if self._database.lost or not self._database.is_open:
                    self.open(self._identity)
                if upto <= self._reached:
                    return
                try:
                    with self._database.guarded():
                        await Follower(self._database, self._layout, js, stream).follow(upto)
                    self._reached = upto
                    return
                except Damaged:
                    self.discard()
                    if attempt == _ATTEMPTS:
                        raise

    def discard(self) -> None:
        """Throws everything away; `catch_up` builds it anew."""
        self._reached = -1
        with contextlib.suppress(StoreBusy):  # nor will it be opened: memory takes its place
            self._database.discard()

    @contextlib.contextmanager
    def _moment(self) -> Generator[Database]:
        """The database as it is at one moment."""
        try:
            with self._database.snapshot():
                yield self._database
        except Damaged:
            self.discard()
            raise

    @contextlib.contextmanager
    def _writing(self) -> Generator[Database]:
        try:
            with self._database.guarded(), self._database.transaction():
                yield self._database
        except Damaged:
            self.discard()
            raise

    # Jobs

    def find(self, filter: Filter, before: int | None = None, limit: int = 100) -> Page:
        """One page of jobs, newest first."""
        with self._moment() as database:
            return finding.find(database, filter, before, limit)

    def count(self, service: str | None = None) -> list[Counted]:
        """Jobs by queue and state; only what is there."""
        with self._moment() as database:
            return finding.count(database, service)

    def waiting(self, service: str, queue: str, limit: int) -> list[str]:
        """The waiting jobs of a queue that came first, in order."""
        places = [(service, queue, str(state), limit) for state in WAITING]
        with self._moment() as database:
            found = [
                cast("tuple[int, str]", row)
                for place in places
                for row in database.fetch_all(STATEMENTS["oldest_of_place"], place)
            ]
        return [job_id for _, job_id in sorted(found)[:limit]]

    def oldest_due(self, now: int) -> list[OldestDue]:
        """Since when the job that waits longest in each queue could have started."""
        with self._moment() as database:
            return database.decoded(_OLDEST, STATEMENTS["oldest_due"], [now])

    # Journal

    def journal(self, after: int, limit: int = 1000, job_id: str | None = None) -> list[Entry]:
        """Entries with a sequence above `after`, in order, with what their jobs still hold."""
        with self._moment() as database:
            return journal.entries(database, max(after, Place.read(database).floor), limit, job_id)

    def old_entries(self, journal_before: int, limit: int) -> OldEntries:
        """The oldest entries that are not younger than `journal_before`, up to the first that is;
        never the last entry of all."""
        with self._moment() as database:
            floor = Place.read(database).floor
            rows = database.decoded(_PAIRS, STATEMENTS["oldest_entries"], [floor, limit + 1])
        old = 0
        for _, at in rows[:-1][:limit]:
            if at > journal_before:
                break
            old += 1
        return OldEntries(old, rows[old - 1][0] if old else floor)

    def drop_entries(self, floor: int) -> None:
        """Drops the entries up to a floor that was put into the stream."""
        with self._writing() as database:
            set_floor(database, Place.read(database), floor)

    # Pruning

    def ended(self, cutoff: Cutoff, limit: int) -> list[Job]:
        """The jobs that may go by a cut-off, those that ended first before others."""
        of = (cutoff.service, cutoff.queue, str(cutoff.state))
        with self._moment() as database:
            counted = database.fetch(STATEMENTS["counted"], of)
            total = cast(int, counted[0]) if counted else 0
            rows = database.decoded(_PAIRS, STATEMENTS["ended"], [*of, limit])
            old = [
                seq
                for place, (seq, ended_at) in enumerate(rows, 1)
                if cutoff.lets_go(ended_at, total - place)
            ]
            jobs = finding.fetch_jobs(database, old)
        return [jobs[seq] for seq in old if seq in jobs]

    def gone(self, limit: int) -> list[Gone]:
        """Removed jobs all of whose messages are at or below the floor."""
        with self._moment() as database:
            return database.decoded(_GONE, STATEMENTS["gone"], [limit])

    def forget(self, ids: Sequence[str]) -> None:
        """Removed jobs whose messages were purged from the stream."""
        with self._writing() as database:
            database.execute(STATEMENTS["delete_graves"], [texts(ids)])

    # For the doctor

    @property
    def path(self) -> str | None:
        """Its file; None where it is in memory."""
        return self._database.path

    @property
    def position(self) -> int:
        """The sequence of the last message that was applied."""
        with self._moment() as database:
            return Place.read(database).position

    @property
    def floor(self) -> int:
        """Up to where the journal is pruned."""
        with self._moment() as database:
            return Place.read(database).floor

    @property
    def size(self) -> int:
        """Bytes."""
        with self._moment() as database:
            row = database.fetch(STATEMENTS["size"])
        assert row
        return cast(int, row[0])
