"""Reading the parts of a transaction from the stream."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from headrace.core.admission import Holder
from headrace.core.model import MAX_LOGS, LogEntry, NewJob, Parent, TryError
from headrace.engine.nats import edges, message
from headrace.engine.nats import layout as names
from headrace.engine.nats.layout import Layout
from headrace.engine.nats.message import Letter
from headrace.engine.nats.parts import (
    MEMBERS,
    Domain,
    KeyRecord,
    Known,
    Note,
    Part,
    Tally,
    job_part,
)
from headrace.engine.nats.transaction import Transaction, replace
from headrace.engine.nats.wire.errors import TooMany
from headrace.engine.nats.wire.jetstream import JetStream
from headrace.engine.nats.wire.stored import Stored
from headrace.engine.protocol import QUEUE_KIND, Details, queue_document
from headrace.engine.records import Edge

AT_ONCE = 120
"""Jobs asked for at a time: the server answers with at most 1024 messages."""

FAMILY = 2000
"""With a job come those that depend on it, at most so many at a time."""

PRIORITIES = range(10)

_HOLDER = msgspec.json.Decoder(Holder | None)
_KEY = msgspec.json.Decoder(KeyRecord)
_TALLY = msgspec.json.Decoder(Tally)
_IDS = msgspec.json.Decoder(tuple[str, ...])


class Loader:
    """Reads parts of one namespace."""

    def __init__(self, js: JetStream, layout: Layout) -> None:
        self._js, self._layout = js, layout

    def subject(self, part: Part) -> bytes:
        """What guards a part: a job's domain, or the subject of a record."""
        match part.kind:
            case "job":
                return self._layout.domain(part.name)
            case "key":
                return self._layout.key(part.of, part.name)
            case "dedup":
                return self._layout.dedup(part.of, part.name)
            case "floor":
                return self._layout.floor()
            case "settings":
                return self._layout.document(QUEUE_KIND, queue_document(part.of, part.name))
            case _:
                return self._layout.tally(part.of, part.name)

    async def load(self, transaction: Transaction, parts: Iterable[Part]) -> None:
        """Tells the transaction what is stored of these parts."""
        wanted = [part for part in parts if part not in transaction.known]
        jobs = [part.name for part in wanted if part.kind == "job"]
        records = [part for part in wanted if part.kind != "job"]
        fetched = 0
        while jobs:
            domains = await self.domains(jobs)
            fetched += len(domains)
            for job_id, domain in domains.items():
                transaction.know(job_part(job_id), domain, domain.last)
            kin = {child for domain in domains.values() for child in domain.children}
            jobs = [id for id in kin if not transaction.believe(job_part(id))]
            if fetched + len(jobs) > FAMILY:
                break
        if records:
            await self._load_records(transaction, records)

    async def _load_records(self, transaction: Transaction, parts: Sequence[Part]) -> None:
        by_subject = {self.subject(part): part for part in parts}
        found = await self._js.last(self._layout.stream, list(by_subject))
        stored = {one.subject: one for one in found}
        for subject, part in by_subject.items():
            one = stored.get(subject)
            transaction.know(part, _record(part, one), one.seq if one else 0)

    async def notes(self, service: str, hash: str, taken: Mapping[int, int]) -> list[Note]:
        """The first jobs of a key that are not in its record, the best priority first."""
        stream, found = self._layout.stream, list[Note]()
        for priority in PRIORITIES:
            filter = self._layout.note(service, hash, priority, "*")
            page = await self._js.read(stream, taken.get(priority, 0), filter, MEMBERS // 2)
            found += [
                Note(one.seq, priority, one.subject.rsplit(b".", 1)[1].decode()) for one in page
            ]
            if len(found) >= MEMBERS // 2:
                break
        return found

    async def drop_notes(self, service: str, hash: str, taken: Mapping[int, int]) -> None:
        """Those that were read are of no more use."""
        for priority, seq in taken.items():
            filter = self._layout.note(service, hash, priority, "*")
            await self._js.purge(self._layout.stream, filter, upto_seq=seq + 1)

    async def tally(self, service: str, queue: str) -> Known:
        """What is counted of a queue."""
        found = await self._js.last(self._layout.stream, [self._layout.tally(service, queue)])
        one = found[0] if found else None
        return Known(_record(Part("tally", queue, service), one), one.seq if one else 0)

    async def domains(self, ids: Sequence[str]) -> dict[str, Domain]:
        """Jobs with what is kept under their prefixes."""
        messages: defaultdict[str, list[Stored]] = defaultdict(list)
        for start in range(0, len(ids), AT_ONCE):
            for one in await self._newest(ids[start : start + AT_ONCE]):
                messages[one.subject.split(b".", 5)[4].decode()].append(one)
        return {job_id: domain_of(messages[job_id]) for job_id in ids}

    async def _newest(self, ids: Sequence[str]) -> list[Stored]:
        try:
            filters = [self._layout.domain(job_id) for job_id in ids]
            return await self._js.last(self._layout.stream, filters)
        except TooMany:
            if len(ids) == 1:
                return await self.all_of(ids[0])
            half = len(ids) // 2
            return await self._newest(ids[:half]) + await self._newest(ids[half:])

    async def all_of(self, job_id: str) -> list[Stored]:
        """Every message of a job, in order."""
        return await self._js.read_all(self._layout.stream, self._layout.domain(job_id))

    async def details(self, ids: Sequence[str]) -> list[Details | None]:
        """Jobs with their history and parents."""
        domains = await self.domains(list(dict.fromkeys(ids)))
        found: dict[str, Details | None] = {}
        for job_id, domain in domains.items():
            found[job_id] = await self._detailed(job_id, domain)
        return [found[job_id] for job_id in ids]

    async def _detailed(self, job_id: str, domain: Domain) -> Details | None:
        job = domain.job
        if job is None:
            return None
        errors: tuple[TryError, ...] = ()
        logs: tuple[LogEntry, ...] = ()
        if domain.told:
            errors, logs = history(letters_of(await self.all_of(job_id)))
        known = domain.parents
        parents = tuple(
            Parent(edge.parent_id, edge.parent_state, edge.result)
            for parent_id in job.spec.depends_on
            if (edge := known.get(parent_id))
        )
        return Details(job, errors, logs, parents)


def _record(part: Part, stored: Stored | None) -> Any:
    match part.kind:
        case "key":
            return _key_record(stored) if stored else KeyRecord()
        case "dedup":
            return _HOLDER.decode(stored.payload) if stored else None
        case "floor":
            return int(stored.payload) if stored else 0
        case _:
            return _TALLY.decode(stored.payload) if stored else Tally()


def _key_record(stored: Stored) -> KeyRecord:
    """Sequences of members that came with the record itself are distances from it."""
    record = _KEY.decode(stored.payload)
    members = {
        job_id: replace(member, seq=stored.seq + member.seq + 1) if member.seq < 0 else member
        for job_id, member in record.members.items()
    }
    return replace(record, members=members)


def letters_of(messages: Iterable[Stored]) -> list[Letter]:
    """The messages that say how a job stands."""
    found: list[Letter] = []
    for one in messages:
        kind = one.subject.split(b".", 6)[5]
        if kind not in _NOT_LETTERS:
            found.append(message.read(one.seq, one.payload))
    return sorted(found, key=lambda letter: letter.seq)


_NOT_LETTERS = (names.EDGES.encode(), names.PARENT.encode())


def domain_of(messages: Sequence[Stored]) -> Domain:
    """What the newest messages of each subject of a job amount to."""
    if not messages:
        return Domain()
    last = max(one.seq for one in messages)
    children = _children(messages)
    letters = letters_of(messages)
    if not letters or letters[-1].removes:
        return Domain(last=last, children=children)
    created = [letter for letter in letters if letter.creates][-1]
    spec: NewJob = created.spec()
    newest = letters[-1]
    return Domain(
        last=last,
        newest=newest.seq,
        job=newest.job(spec),
        told=newest.private.told,
        parents=_parents(messages, created.seq),
        children=children,
    )


def _children(messages: Sequence[Stored]) -> tuple[str, ...]:
    chunks: dict[int, tuple[str, ...]] = {}
    for one in sorted(messages, key=lambda one: one.seq):
        tokens = one.subject.split(b".")
        if tokens[5] == b"edges":
            chunks[int(tokens[6])] = _IDS.decode(one.payload)
    return tuple(child for number in sorted(chunks) for child in chunks[number])


def _parents(messages: Sequence[Stored], since: int) -> dict[str, Edge]:
    """Edges of a job that was removed and came again are not its own."""
    found: dict[str, Edge] = {}
    for one in sorted(messages, key=lambda one: one.seq):
        if one.seq > since and one.subject.split(b".", 6)[5] == b"parent":
            edge = edges.read(one.payload)
            found[edge.parent_id] = edge
    return found


def history(letters: Sequence[Letter]) -> tuple[tuple[TryError, ...], tuple[LogEntry, ...]]:
    """The errors and logs that a job still has."""
    errors: list[TryError] = []
    logs: list[LogEntry] = []
    for letter in letters:
        private = letter.private
        if letter.creates or private.clears or letter.removes:
            errors, logs = [], []
        if private.failed:
            errors.append(private.failed)
        logs.extend(letter.logs())
    return tuple(errors), tuple(logs[-MAX_LOGS:])
