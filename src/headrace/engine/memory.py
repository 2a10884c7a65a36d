"""The memory engine: the reference. One process, nothing survives it."""

from __future__ import annotations

import heapq
import threading
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from itertools import islice
from typing import TypeVar

import msgspec

from headrace.core.admission import Holder, Verdict
from headrace.core.change import Answer, Change
from headrace.core.claims import Claimed, ClaimRequest, Lease, Renewal
from headrace.core.edges import EdgeState
from headrace.core.errors import InvalidValue
from headrace.core.event import Event
from headrace.core.model import (
    MAX_LOGS,
    Counted,
    Document,
    Filter,
    Job,
    KeyStatus,
    LogEntry,
    NewJob,
    Page,
    Parent,
    Stage,
    TryError,
)
from headrace.core.queue import DEFAULTS, QueueSettings, decode
from headrace.core.search import matches, parse_cursor
from headrace.core.states import FINAL, WAITING, State
from headrace.engine.bells import BellHub, HubBell
from headrace.engine.bystate import ByState
from headrace.engine.ledger import Ledger
from headrace.engine.protocol import (
    DOCUMENTS_TOPIC,
    QUEUE_KIND,
    Check,
    Checkup,
    Details,
    Entry,
    Health,
    OldestDue,
    Prune,
    Put,
    queue_document,
)
from headrace.engine.records import Edge, Happening, KeyRow

_K = TypeVar("_K")
_V = TypeVar("_V")

_SCAN = 10_000
"""A page of `find` looks at no more jobs than this."""


class MemoryRecords:
    """The records in dictionaries. Lines are heaps whose outdated entries are passed over."""

    def __init__(self) -> None:
        self.jobs: dict[str, Job] = {}
        self.by_state = ByState()
        self.events: list[Event] = []
        self.seq = 0
        self.errors: dict[str, list[TryError]] = {}
        self.logs: dict[str, list[LogEntry]] = {}
        self.keys: dict[tuple[str, str], KeyRow] = {}
        self.holders: dict[tuple[str, str], Holder] = {}
        self.edges_by_parent: defaultdict[str, dict[str, Edge]] = defaultdict(dict)
        self.edges_by_child: defaultdict[str, dict[str, Edge]] = defaultdict(dict)
        self.counts: Counter[tuple[str, str, State]] = Counter()
        self.arrivals: dict[tuple[str, str], int] = {}
        self.documents: dict[tuple[str, str], Document] = {}
        self.revision = 0
        self._ready: defaultdict[tuple[str, str], list[tuple[int, int, str]]] = defaultdict(list)
        self._delayed: defaultdict[tuple[str, str], list[tuple[int, int, str]]] = defaultdict(list)
        self._keyed: defaultdict[tuple[str, str], dict[str, Job]] = defaultdict(dict)
        self._undo: list[Callable[[], None]] | None = None
        self._settings: dict[tuple[str, str], QueueSettings] = {}

    # Jobs

    def next_seq(self) -> int:
        self.seq += 1
        return self.seq

    def job(self, job_id: str) -> Job | None:
        return self.jobs.get(job_id)

    def current(self, snapshot: Job) -> Job | None:
        return self.jobs.get(snapshot.id)

    def create(self, job: Job) -> None:
        self.record(Happening(None, job))
        self.save(None, job)

    def save(self, old: Job | None, new: Job) -> None:
        if self._undo is not None:
            before = self.jobs.get(new.id)
            self._undo.append(lambda: self._put_back(new, before))
        self._store(self.jobs.get(new.id), new)

    def _put_back(self, new: Job, before: Job | None) -> None:
        stored = self.jobs[new.id]
        if before is None:
            self.remove(stored)
        else:
            self._store(stored, before)

    def _store(self, before: Job | None, new: Job) -> None:
        if before is not None:
            self.counts[before.service, before.queue, before.state] -= 1
        self.counts[new.service, new.queue, new.state] += 1
        self.jobs[new.id] = new
        self.by_state.put(before, new)
        if new.key:
            line = self._keyed[new.service, new.key.hash]
            if new.state in FINAL:
                line.pop(new.id, None)
            else:
                line[new.id] = new
        if new.stage is Stage.READY:
            entry = (new.priority, new.position, new.id)
            heapq.heappush(self._ready[new.service, new.queue], entry)
        elif new.stage is Stage.DELAYED:
            entry = (new.run_at, new.seq, new.id)
            heapq.heappush(self._delayed[new.service, new.queue], entry)

    def remove(self, job: Job) -> None:
        stored = self.jobs.pop(job.id, None)
        if stored is None:
            return
        self.by_state.drop(stored)
        self.counts[job.service, job.queue, job.state] -= 1
        if job.key:
            self._keyed[job.service, job.key.hash].pop(job.id, None)
        self.errors.pop(job.id, None)
        self.logs.pop(job.id, None)
        for parent_id in self.edges_by_child.pop(job.id, {}):
            self.edges_by_parent[parent_id].pop(job.id, None)

    def record(self, entry: Happening) -> None:
        if self._undo is not None:
            self._undo.append(self._unrecord)
        self.events.append(entry.event())

    def _unrecord(self) -> None:
        self.events.pop()

    def add_error(self, job: Job, error: TryError) -> None:
        self.errors.setdefault(job.id, []).append(error)

    def add_logs(self, job: Job, entries: Sequence[LogEntry]) -> None:
        logs = self.logs.setdefault(job.id, [])
        logs.extend(entries)
        del logs[:-MAX_LOGS]

    def clear_history(self, job: Job) -> None:
        self.errors.pop(job.id, None)
        self.logs.pop(job.id, None)

    # Lines

    def start(self, request: ClaimRequest, queue: str, room: int) -> list[Job]:
        return []  # one by one is as quick here

    def finish(self, changes: Sequence[Change], first: int) -> list[Answer]:
        return []

    def ready(self, service: str, queue: str, limit: int) -> list[Job]:
        heap = self._ready[service, queue]
        jobs: dict[str, Job] = {}
        while heap and len(jobs) < limit:
            priority, position, job_id = heapq.heappop(heap)
            job = self.jobs.get(job_id)
            if (
                job is not None
                and job.stage is Stage.READY
                and job.queue == queue
                and (job.priority, job.position) == (priority, position)
            ):
                jobs[job_id] = job
        for job in jobs.values():
            heapq.heappush(heap, (job.priority, job.position, job.id))
        return list(jobs.values())

    def due(self, service: str, queue: str, now: int, limit: int) -> list[Job]:
        jobs: dict[str, Job] = {}
        while len(jobs) < limit:
            run_at = self.next_due(service, queue)
            if run_at is None or run_at > now:
                break
            job_id = heapq.heappop(self._delayed[service, queue])[2]
            jobs[job_id] = self.jobs[job_id]
        return list(jobs.values())

    def next_due(self, service: str, queue: str) -> int | None:
        heap = self._delayed[service, queue]
        while heap:
            run_at, _, job_id = heap[0]
            job = self.jobs.get(job_id)
            if (
                job is not None
                and job.stage is Stage.DELAYED
                and job.queue == queue
                and job.run_at == run_at
            ):
                return run_at
            heapq.heappop(heap)
        return None

    def oldest_waiting(self, service: str, queue: str) -> str | None:
        for job in self.jobs.values():
            if job.queue == queue and job.service == service and job.state in WAITING:
                return job.id
        return None

    def counted(self, service: str, queue: str, state: State) -> int:
        return self.counts[service, queue, state]

    # Keys, dedup, edges, rates, settings

    def key(self, service: str, hash: str) -> KeyRow:
        return self.keys.get((service, hash), KeyRow())

    def set_key(self, service: str, hash: str, row: KeyRow) -> None:
        _assign(self.keys, (service, hash), row, self._undo)

    def keyed(self, service: str, hash: str) -> list[Job]:
        jobs = self._keyed[service, hash].values()
        return sorted(jobs, key=lambda job: (job.priority, job.position))

    def ready_ahead(self, job: Job) -> int:
        assert job.key
        return sum(
            other.stage is Stage.READY
            and other.queue == job.queue
            and other.priority <= job.priority
            and other.id != job.id
            for other in self._keyed[job.service, job.key.hash].values()
        )

    def parked(self, service: str, hash: str) -> list[Job]:
        heads: dict[str, Job] = {}
        for job in self.keyed(service, hash):
            if job.stage is Stage.PARKED:
                heads.setdefault(job.queue, job)
        return [heads[queue] for queue in sorted(heads)]

    def first_of_key(self, service: str, hash: str, active: bool) -> str | None:
        jobs = self._keyed[service, hash].values()
        wanted = [job for job in jobs if (job.state is State.ACTIVE) == active]
        return min(wanted, key=lambda job: job.seq).id if wanted else None

    def holder(self, service: str, key: str) -> Holder | None:
        return self.holders.get((service, key))

    def set_holder(self, service: str, key: str, holder: Holder | None) -> None:
        _assign(self.holders, (service, key), holder, self._undo)

    def edges_to(self, parent_id: str, state: EdgeState | None = None) -> list[Edge]:
        edges = self.edges_by_parent.get(parent_id, {}).values()
        return [edge for edge in edges if state in (None, edge.state)]

    def edges_from(self, child_id: str) -> list[Edge]:
        return list(self.edges_by_child.get(child_id, {}).values())

    def set_edge(self, edge: Edge) -> None:
        _assign(self.edges_by_parent[edge.parent_id], edge.child_id, edge, self._undo)
        _assign(self.edges_by_child[edge.child_id], edge.parent_id, edge, self._undo)

    def arrival(self, service: str, queue: str) -> int:
        return self.arrivals.get((service, queue), 0)

    def set_arrival(self, service: str, queue: str, arrival: int) -> None:
        self.arrivals[service, queue] = arrival

    def settings(self, service: str, queue: str) -> QueueSettings:
        return self._settings.get((service, queue), DEFAULTS)

    def put(self, put: Put, now: int) -> Document | None:
        found = self.documents.get((put.kind, put.name))
        if found and found.expires_at is not None and found.expires_at <= now:
            found = None
        if put.expected is not None and put.expected != (found.revision if found else 0):
            return None
        if put.kind == QUEUE_KIND:
            self._set_settings(put)
        self.revision += 1
        body = msgspec.Raw(b"null") if put.body is None else put.body
        document = Document(put.kind, put.name, body, self.revision, put.expires_at)
        if put.body is None:
            self.documents.pop((put.kind, put.name), None)
        else:
            self.documents[put.kind, put.name] = document
        return document

    def _set_settings(self, put: Put) -> None:
        service, queue = put.name.split("/")
        assert put.name == queue_document(service, queue)
        if put.body is None:
            self._settings.pop((service, queue), None)
        else:
            self._settings[service, queue] = decode(put.body)

    def undoable(self) -> Callable[[], None]:
        log: list[Callable[[], None]] = []
        self._undo = log

        def undo() -> None:
            self._undo = None
            while log:
                log.pop()()

        return undo

    def commit(self) -> None:
        """What was done so far can no longer be taken back."""
        self._undo = None


def _assign(
    table: dict[_K, _V], key: _K, value: _V | None, undo: list[Callable[[], None]] | None
) -> None:
    before = table.get(key)
    if undo is not None:
        undo.append(lambda: _assign(table, key, before, None))
    if value is None:
        table.pop(key, None)
    else:
        table[key] = value


class MemoryEngine:
    """An engine in this process's memory. Any thread and event loop may use it."""

    overlap = 1

    def __init__(self, url: str = "memory://") -> None:
        if url not in ("memory:", "memory://"):
            raise InvalidValue("url", f"{url!r}: memory has no name or parameters; use memory://")
        self.url = url
        self._records = MemoryRecords()
        self._lock = threading.Lock()
        self._bells = BellHub()

    async def open(self) -> None:
        """There is nothing to connect to."""

    async def close(self) -> None:
        """The jobs stay: the same engine can be opened again."""

    def twin(self) -> MemoryEngine:
        return self

    def listen(self, topics: frozenset[str]) -> HubBell:
        return self._bells.listen(topics)

    def _commit(self, work: Callable[[Ledger], _V]) -> _V:
        with self._lock:
            ledger = Ledger(self._records)
            answer = work(ledger)
            self._records.commit()
        self._bells.ring(ledger.topics)
        return answer

    async def insert(
        self, groups: Sequence[Sequence[NewJob]], now: int
    ) -> list[tuple[Verdict, ...]]:
        def work(ledger: Ledger) -> list[tuple[Verdict, ...]]:
            verdicts: list[tuple[Verdict, ...]] = []
            for group in groups:
                verdicts.append(ledger.insert(group, now))
                self._records.commit()
            return verdicts

        return self._commit(work)

    async def claim(self, request: ClaimRequest, changes: Sequence[Change] = ()) -> Claimed:
        return self._commit(lambda ledger: ledger.exchange(request, changes))

    async def apply(self, changes: Sequence[Change]) -> list[Answer]:
        return self._commit(lambda ledger: ledger.apply_all(changes))

    async def extend(self, leases: Sequence[Lease], until: int) -> list[Renewal]:
        with self._lock:
            return [self._extend(lease, until) for lease in leases]

    def _extend(self, lease: Lease, until: int) -> Renewal:
        job = self._records.jobs.get(lease.job_id)
        if job is None or job.token != lease.token or job.state is not State.ACTIVE:
            return Renewal(False)
        if not job.detached:
            self._records.save(job, msgspec.structs.replace(job, lease_until=until))
        return Renewal(True, job.cancelling)

    async def prune(self, order: Prune) -> int:
        return self._commit(lambda ledger: self._prune(ledger, order))

    def _prune(self, ledger: Ledger, order: Prune) -> int:
        records, gone = self._records, 0
        for cutoff in order.cutoffs:
            ended = sorted(
                (
                    job
                    for job in records.jobs.values()
                    if (job.service, job.queue, job.state)
                    == (cutoff.service, cutoff.queue, cutoff.state)
                ),
                key=lambda job: (job.finished_at or 0, job.seq),
            )
            old = [
                job
                for place, job in enumerate(ended, 1)
                if cutoff.lets_go(job.finished_at or 0, len(ended) - place)
            ][: order.limit]
            for job in old:
                ledger.discard(job, order.now)
            gone += len(old)
        old_events = 0
        for event in records.events[:-1][: order.limit]:
            if event.at > order.journal_before:
                break
            old_events += 1
        del records.events[:old_events]
        for key, holder in list(records.holders.items()):
            if (
                holder.held_until is not None
                and holder.held_until <= order.now
                and _ended(records.jobs.get(holder.job_id))
            ):
                del records.holders[key]
        for name, document in list(records.documents.items()):
            if document.expires_at is not None and document.expires_at <= order.now:
                del records.documents[name]
        return gone + old_events

    async def get(self, ids: Sequence[str]) -> list[Details | None]:
        with self._lock:
            return [self._details(job_id) for job_id in ids]

    def _details(self, job_id: str) -> Details | None:
        records = self._records
        job = records.jobs.get(job_id)
        if job is None:
            return None
        edges = records.edges_by_child.get(job_id, {})
        return Details(
            job,
            tuple(records.errors.get(job_id, ())),
            tuple(records.logs.get(job_id, ())),
            tuple(
                Parent(edge.parent_id, edge.parent_state, edge.result)
                for parent_id in job.spec.depends_on
                if (edge := edges.get(parent_id))
            ),
        )

    async def find(self, filter: Filter, cursor: str | None = None, limit: int = 100) -> Page:
        before = parse_cursor(cursor)
        jobs: list[Job] = []
        with self._lock:
            for looked, job in enumerate(self._records.by_state.newest(filter.states, before)):
                if len(jobs) == limit or looked == _SCAN:
                    last = jobs[-1].seq if len(jobs) == limit else job.seq + 1
                    return Page(tuple(jobs), str(last))
                if matches(job, filter):
                    jobs.append(job)
        return Page(tuple(jobs))

    async def count(self, service: str | None = None) -> list[Counted]:
        with self._lock:
            return [
                Counted(*place, jobs)
                for place, jobs in sorted(self._records.counts.items())
                if jobs and service in (None, place[0])
            ]

    async def journal(
        self, after: int, limit: int = 1000, job_id: str | None = None
    ) -> list[Entry]:
        with self._lock:
            records = self._records
            first = bisect_right(records.events, after, key=lambda event: event.seq)
            later = islice(records.events, first, None)
            own = (event for event in later if job_id in (None, event.job_id))
            wanted = list(islice(own, limit))
            return [Entry.of(event, records.jobs.get(event.job_id)) for event in wanted]

    async def put(self, puts: Sequence[Put], now: int) -> list[Document | None]:
        with self._lock:
            documents = [self._records.put(put, now) for put in puts]
        self._bells.ring_one(DOCUMENTS_TOPIC)
        return documents

    async def scan(self, kind: str, now: int) -> list[Document]:
        with self._lock:
            return [
                document
                for (of_kind, _), document in sorted(self._records.documents.items())
                if of_kind == kind and (document.expires_at is None or document.expires_at > now)
            ]

    async def key(self, service: str, hash: str) -> KeyStatus | None:
        with self._lock:
            jobs = self._records.keyed(service, hash)
            row = self._records.key(service, hash)
        if not jobs:
            return None
        limit = jobs[0].key
        assert limit
        active = tuple(job for job in jobs if job.state is State.ACTIVE)
        queued = tuple(job for job in jobs if job.state is not State.ACTIVE)
        return KeyStatus(service, limit.name, hash, active, row.queued, queued[:10], row.takeovers)

    async def checkup(self, now: int) -> Checkup:
        with self._lock:
            jobs = list(self._records.jobs.values())
        oldest: dict[tuple[str, str], int] = {}
        for job in jobs:
            if job.stage in (Stage.READY, Stage.DELAYED) and job.run_at <= now:
                place = (job.service, job.queue)
                oldest[place] = min(job.run_at, oldest.get(place, job.run_at))
        check = Check("durability", Health.OK, "nothing survives this process, as memory: means")
        return Checkup((check,), tuple(OldestDue(*at, since) for at, since in oldest.items()))


def _ended(job: Job | None) -> bool:
    return job is None or job.state in FINAL
