"""A memory engine whose jobs are written to a stream too, message by message.

So what a projection makes of the stream can be compared with what the reference holds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from uuid import uuid4

import msgspec

from headrace.core.event import Event
from headrace.core.model import Counted, Filter, Job, Page
from headrace.core.search import parse_cursor
from headrace.engine.memory import MemoryEngine, MemoryRecords
from headrace.engine.nats import layout as names
from headrace.engine.nats import message
from headrace.engine.nats.layout import Layout
from headrace.engine.nats.message import PROVISIONAL
from headrace.engine.nats.projection import Projection
from headrace.engine.nats.wire.connection import Connection
from headrace.engine.nats.wire.jetstream import JetStream, Pending
from headrace.engine.nats.wire.options import Options
from headrace.engine.protocol import Checkup, Entry, Prune
from headrace.engine.records import Happening

replace = msgspec.structs.replace
_NULL = msgspec.Raw(b"null")


class Draft(msgspec.Struct):
    """A message that is not written yet."""

    job_id: str
    job: Job | None
    event: Event | None = None


class RecordingRecords(MemoryRecords):
    """Gathers what is written as drafts of messages."""

    def __init__(self) -> None:
        super().__init__()
        self.drafts: list[Draft] = []

    def record(self, entry: Happening) -> None:
        super().record(entry)
        job_id = entry.new.id
        self.drafts.append(Draft(job_id, self.jobs.get(job_id), entry.event()))

    def save(self, old: Job | None, new: Job) -> None:
        super().save(old, new)
        if self.drafts and self.drafts[-1].job_id == new.id and self.drafts[-1].event:
            self.drafts[-1].job = new
        else:
            self.drafts.append(Draft(new.id, new))

    def remove(self, job: Job) -> None:
        if job.id in self.jobs:
            self.drafts.append(Draft(job.id, None))
        super().remove(job)

    def undoable(self) -> Callable[[], None]:
        back, before = super().undoable(), list(self.drafts)

        def undo() -> None:
            back()
            self.drafts = before

        return undo


class RecordingEngine(MemoryEngine):
    """A memory engine with its stream."""

    def __init__(self, layout: Layout) -> None:
        super().__init__()
        self._records = self.records = RecordingRecords()
        self.layout = layout
        self.seqs: dict[int, int] = {0: 0}
        """The stream's sequence of each of the memory engine's."""
        self._prefixes: dict[str, bytes] = {}

    async def create(self, js: JetStream) -> str:
        """Creates the stream; its identity."""
        name = self.layout.stream
        info = await js.api(
            f"STREAM.CREATE.{name}",
            {
                "name": name,
                "subjects": self.layout.subjects,
                "allow_direct": True,
                "allow_atomic": True,
                "storage": "memory",
            },
        )
        return f"{name} {info['created']}"

    async def flush(self, js: JetStream) -> int:
        """Writes what has happened; the sequence of the last message."""
        drafts, self.records.drafts = self.records.drafts, []
        last = 0
        for start in range(0, len(drafts), 500):
            last = await self._store(js, drafts[start : start + 500])
        return last

    async def _store(self, js: JetStream, drafts: Sequence[Draft]) -> int:
        for place, draft in enumerate(drafts):
            if draft.event:
                self.seqs[draft.event.seq] = PROVISIONAL + place
        batch = [self._pending(place, draft) for place, draft in enumerate(drafts)]
        last = await js.store_batch(batch)
        first = last - len(drafts) + 1
        for place, draft in enumerate(drafts):
            if draft.event:
                self.seqs[draft.event.seq] = first + place
        return last

    def _pending(self, place: int, draft: Draft) -> Pending:
        job, event = self.told(draft.job), self.told(draft.event)
        kind = str(event.event) if event else names.PLACED if job else names.REMOVED
        if job:
            subject = self.layout.happening(job, kind)
            self._prefixes[job.id] = self.layout.prefix(job.spec)
        else:
            subject = self._prefixes[draft.job_id] + kind.encode()

        def distance(seq: int) -> int:
            return seq - PROVISIONAL - place - 1 if seq >= PROVISIONAL else seq

        body = (
            message.written(job, distance, event=event, kind=kind)
            if job
            else message.removed(draft.job_id)
        )
        return Pending(subject, body)

    async def set_floor(self, js: JetStream, floor: int) -> int:
        return await js.store_batch([Pending(self.layout.floor(), b"%d" % floor)])

    def told(self, value: Any) -> Any:
        """What the memory engine answers, with the stream's sequences."""
        seqs = self.seqs
        match value:
            case Job(seq=seq, version=version, token=token):
                return replace(value, seq=seqs[seq], version=seqs[version], token=seqs[token])
            case Event(slot=slot):
                if slot and slot.token:
                    slot = replace(slot, token=seqs[slot.token])
                return replace(value, seq=seqs[value.seq], slot=slot)
            case Entry():
                return replace(value, event=self.told(value.event))
            case list() | tuple():
                return [self.told(item) for item in value]
            case _:
                return value


class ProjectedEngine(RecordingEngine):
    """A memory engine that answers what a projection can from a projection of its stream.

    What the projection answers must be what the memory engine holds, number by number.
    """

    def __init__(self, url: str, path: str | None = None) -> None:
        super().__init__(Layout(f"p{uuid4().hex}"))
        self._url = url
        self._connection: Connection | None = None
        self.projection = Projection(path, self.layout)
        self.last = 0
        self._counted = 0

    async def open(self) -> None:
        if self._connection is not None:
            return
        self._connection = await Connection.open(Options.parse(self._url))
        self.js = JetStream(self._connection)
        self.identity = await self.create(self.js)
        self.projection.open(self.identity)

    async def close(self) -> None:
        if self._connection is None:
            return
        await self.js.api(f"STREAM.DELETE.{self.layout.stream}")
        self.projection.close()
        await self._connection.close()
        self._connection = None

    async def look(self) -> Projection:
        """The projection, up to date."""
        self.last = max(self.last, await self.flush(self.js))
        await self.projection.catch_up(self.js, self.layout.stream, self.last)
        return self.projection

    def own(self, value: Any) -> Any:
        """What the projection answers, with the memory engine's sequences."""
        seqs = {theirs: own for own, theirs in self.seqs.items()}
        match value:
            case Job(seq=seq, version=version, token=token):
                return replace(value, seq=seqs[seq], version=seqs[version], token=seqs[token])
            case Event(slot=slot):
                if slot and slot.token:
                    slot = replace(slot, token=seqs[slot.token])
                return replace(value, seq=seqs[value.seq], slot=slot)
            case Entry():
                return replace(value, event=self.own(value.event))
            case list() | tuple():
                return type(value)(self.own(item) for item in value)
            case _:
                return value

    async def find(self, filter: Filter, cursor: str | None = None, limit: int = 100) -> Page:
        projection = await self.look()
        page = projection.find(filter, parse_cursor(cursor), limit)
        jobs = self.own(page.jobs)
        assert list(jobs) == [self.records.jobs[job.id] for job in jobs]
        return Page(jobs, page.cursor)

    async def count(self, service: str | None = None) -> list[Counted]:
        self._counted += 1
        if self._counted % 8 == 0:
            await self.compare_with_fresh()
        return (await self.look()).count(service)

    async def compare_with_fresh(self) -> None:
        """The projection holds what one that is built anew holds."""
        found = await self.look()
        fresh = Projection(None, self.layout)
        fresh.open(self.identity)
        await fresh.catch_up(self.js, self.layout.stream, self.last)
        assert found.floor == fresh.floor
        assert found.count() == fresh.count()
        assert found.journal(0, 100_000) == fresh.journal(0, 100_000)
        assert found.find(Filter(), None, 100_000) == fresh.find(Filter(), None, 100_000)
        assert found.find(Filter(tag="red"), None) == fresh.find(Filter(tag="red"), None)
        assert found.gone(1000) == fresh.gone(1000)
        fresh.close()

    async def journal(
        self, after: int, limit: int = 1000, job_id: str | None = None
    ) -> list[Entry]:
        projection = await self.look()
        found: list[Entry] = self.own(projection.journal(self._above(after), limit, job_id))
        assert found == await super().journal(after, limit, job_id)
        return found

    def _above(self, after: int) -> int:
        return max(theirs for own, theirs in self.seqs.items() if own <= after)

    async def prune(self, order: Prune) -> int:
        gone = 0
        for cutoff in order.cutoffs:
            ended = self.own((await self.look()).ended(cutoff, order.limit))
            gone += len(ended)
            self._commit(lambda ledger, jobs=ended: [ledger.discard(j, order.now) for j in jobs])
        projection = await self.look()
        old = projection.old_entries(order.journal_before, order.limit)
        assert await super().prune(replace(order, cutoffs=())) == old.entries
        if old.entries:
            self.last = await self.set_floor(self.js, old.last)
            projection = await self.look()
            await self._purge()
        return gone + old.entries

    async def _purge(self) -> None:
        gone = self.projection.gone(10)
        for job in gone:
            assert job.id not in self.records.jobs
            domain = self.layout.domain(job.id)
            await self.js.purge(self.layout.stream, domain, upto_seq=job.last + 1)
        self.projection.forget([job.id for job in gone])

    async def checkup(self, now: int) -> Checkup:
        return Checkup((), tuple((await self.look()).oldest_due(now)))
