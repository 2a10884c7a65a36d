"""The projection: a copy of the stream that can be searched."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple, cast

import msgspec

from headrace.core.event import Event
from headrace.core.model import Counted, Filter, Job, Page
from headrace.core.retention import Cutoff
from headrace.core.states import WAITING, EventType
from headrace.engine.nats import message
from headrace.engine.nats.layout import Layout
from headrace.engine.nats.message import Letter
from headrace.engine.nats.projection import finding
from headrace.engine.nats.projection.database import Damaged, Database, Value, texts
from headrace.engine.nats.projection.following import Follower, Place, Replaced, set_floor
from headrace.engine.nats.projection.sql import STATEMENTS
from headrace.engine.nats.wire.jetstream import JetStream
from headrace.engine.protocol import Entry, OldestDue

_ATTEMPTS = 3
"""A projection that is found damaged is built anew; not for ever."""

_PAIRS = msgspec.json.Decoder(list[tuple[int, int]])
_SEQS = msgspec.json.Decoder(list[tuple[str, int, int]])
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
                except (Damaged, Replaced):
                    self.discard()
                    if attempt == _ATTEMPTS:
                        raise

    def discard(self) -> None:
        """Throws everything away; `catch_up` builds it anew."""
        self._reached = -1
        self._database.discard()

    # Jobs

    def find(self, filter: Filter, before: int | None = None, limit: int = 100) -> Page:
        """One page of jobs, newest first."""
        with self._database.snapshot():
            return finding.find(self._database, filter, before, limit)

    def count(self, service: str | None = None) -> list[Counted]:
        """Jobs by queue and state; only what is there."""
        with self._database.guarded():
            return finding.count(self._database, service)

    def oldest_waiting(self, service: str, queue: str) -> str | None:
        """The waiting job of a queue that came first."""
        with self._database.snapshot():
            places = [(service, queue, str(state)) for state in WAITING]
            found = [self._database.fetch(STATEMENTS["oldest_of_place"], row) for row in places]
        oldest = min((cast("tuple[int, str]", row) for row in found if row), default=None)
        return oldest[1] if oldest else None

    def oldest_due(self, now: int) -> list[OldestDue]:
        """Since when the job that waits longest in each queue could have started."""
        with self._database.guarded():
            return self._database.decoded(_OLDEST, STATEMENTS["oldest_due"], [now])

    # Journal

    def journal(self, after: int, limit: int = 1000, job_id: str | None = None) -> list[Entry]:
        """Entries with a sequence above `after`, in order, with what their jobs still hold."""
        with self._database.snapshot():
            after = max(after, self._place().floor)
            if job_id is None:
                rows = self._database.fetch_all(STATEMENTS["journal"], [after, limit])
            else:
                rows = self._database.fetch_all(STATEMENTS["journal_of"], [job_id, after, limit])
            letters = [message.read(*cast("tuple[int, bytes]", row)) for row in rows]
            return self._entries(letters)

    def _entries(self, letters: Sequence[Letter]) -> list[Entry]:
        events = [event for letter in letters if (event := letter.event())]
        jobs = self._holding([event for event in events if event.event in _HOLDING])
        return [Entry.of(event, jobs.get(event.job_id)) for event in events]

    def _holding(self, events: Sequence[Event]) -> dict[str, Job]:
        """The jobs of these events that are still there."""
        if not events:
            return {}
        ids = {event.job_id for event in events}
        seqs = self._database.decoded(_SEQS, STATEMENTS["seqs"], [texts(ids)])
        jobs = finding.fetch_jobs(self._database, [seq for _, seq, _ in seqs])
        return {job.id: job for job in jobs.values()}

    def old_entries(self, journal_before: int, limit: int) -> OldEntries:
        """The oldest entries that are not younger than `journal_before`, up to the first that is;
        never the last entry of all."""
        with self._database.snapshot():
            floor = self._place().floor
            values: list[Value] = [floor, limit + 1]
            rows = self._database.decoded(_PAIRS, STATEMENTS["oldest_entries"], values)
        old = 0
        for _, at in rows[:-1][:limit]:
            if at > journal_before:
                break
            old += 1
        return OldEntries(old, rows[old - 1][0] if old else floor)

    def drop_entries(self, floor: int) -> None:
        """Drops the entries up to a floor that was put into the stream."""
        with self._database.guarded(), self._database.transaction():
            set_floor(self._database, self._place(), floor)

    # Pruning

    def ended(self, cutoff: Cutoff, limit: int) -> list[Job]:
        """The jobs that may go by a cut-off, those that ended first before others."""
        place = (cutoff.service, cutoff.queue, str(cutoff.state))
        with self._database.snapshot():
            counted = self._database.fetch(STATEMENTS["counted"], place)
            total = cast(int, counted[0]) if counted else 0
            excess = 0 if cutoff.keep is None else max(0, total - cutoff.keep)
            rows = self._database.decoded(_PAIRS, STATEMENTS["ended"], [*place, limit])
            before = cutoff.ended_before
            old = [
                seq
                for index, (seq, ended_at) in enumerate(rows)
                if index < excess or (before is not None and ended_at <= before)
            ]
            jobs = finding.fetch_jobs(self._database, old)
        return [jobs[seq] for seq in old if seq in jobs]

    def gone(self, limit: int) -> list[Gone]:
        """Removed jobs all of whose messages are at or below the floor."""
        with self._database.guarded():
            return self._database.decoded(_GONE, STATEMENTS["gone"], [limit])

    def forget(self, ids: Sequence[str]) -> None:
        """Removed jobs whose messages were purged from the stream."""
        with self._database.guarded(), self._database.transaction():
            self._database.execute(STATEMENTS["delete_graves"], [texts(ids)])

    # For the doctor

    @property
    def path(self) -> str | None:
        return self._database.path

    @property
    def position(self) -> int:
        """The sequence of the last message that was applied."""
        return self._guarded_place().position

    @property
    def floor(self) -> int:
        """Up to where the journal is pruned."""
        return self._guarded_place().floor

    @property
    def size(self) -> int:
        """Bytes."""
        with self._database.guarded():
            row = self._database.fetch(STATEMENTS["size"])
        assert row
        return cast(int, row[0])

    def _guarded_place(self) -> Place:
        with self._database.guarded():
            return self._place()

    def _place(self) -> Place:
        return Place.read(self._database)


_HOLDING = frozenset({EventType.CREATED, EventType.COMPLETED})
"""Events whose entries come with something that the job holds."""
