"""A memory engine whose jobs are written to a stream too, message by message.

So what a projection makes of the stream can be compared with what the reference holds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from headrace.core.event import Event
from headrace.core.model import Job
from headrace.engine.memory import MemoryEngine, MemoryRecords
from headrace.engine.nats import layout as names
from headrace.engine.nats import message
from headrace.engine.nats.layout import Layout
from headrace.engine.nats.message import PROVISIONAL
from headrace.engine.nats.wire.jetstream import JetStream, Pending
from headrace.engine.protocol import Entry
from headrace.engine.records import Happening

replace = msgspec.structs.replace


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
        self.drafts.append(Draft(entry.new.id, entry.new, entry.event()))

    def save(self, old: Job | None, new: Job) -> None:
        super().save(old, new)
        if self.drafts and self.drafts[-1].job_id == new.id and self.drafts[-1].job:
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
        body = message.written(place, job, event=event, kind=kind, job_id=draft.job_id)
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
