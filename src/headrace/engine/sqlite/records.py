"""The ledger's records on SQLite, within one transaction.

Reads see what the transaction has changed; writes wait in `Pending` until a query needs them in
the tables, or the transaction ends. What a batch will ask for is looked up beforehand in one go:
see `Wanted`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import cast

import msgspec

from headrace.core.admission import Holder
from headrace.core.change import Answer, Applied, Change
from headrace.core.claims import ClaimRequest, Lease, Renewal
from headrace.core.edges import EdgeState
from headrace.core.model import Job, LogEntry, Stage, TryError
from headrace.core.queue import Discard, QueueSettings
from headrace.core.states import WAITING, State
from headrace.engine.records import Edge, Happening, KeyRow
from headrace.engine.sqlite.bulk import Finishing, start_line
from headrace.engine.sqlite.journal import entry_row, grave_row
from headrace.engine.sqlite.keylines import KeyLines
from headrace.engine.sqlite.pending import Pending, Place, grouped
from headrace.engine.sqlite.rows import fetch_edges, fetch_jobs
from headrace.engine.sqlite.span import Span
from headrace.engine.sqlite.sql import statement
from headrace.engine.sqlite.standing import Head, Standing
from headrace.engine.sqlite.store import Store, seqs, texts, without_nul
from headrace.engine.sqlite.wanted import Wanted
from headrace.engine.statements import LARGEST

_READY = Stage.READY  # asked for by every job, and Python 3.11 takes 0.1 µs to find a member
_HEADS = msgspec.json.Decoder(list[tuple[int, int, Stage, int, int | None]])
_LEASES = msgspec.json.Decoder(list[tuple[int, int, int, str | None]])
_KEYS = msgspec.json.Decoder(list[tuple[str, str, int, int, int]])
_HOLDERS = msgspec.json.Decoder(list[tuple[str, str, str, int | None]])
_COUNTS = msgspec.json.Decoder(dict[State, int])
_SETTINGS = msgspec.json.Decoder(list[tuple[str, msgspec.Raw]])
_ENDED = msgspec.json.Decoder(list[tuple[int, int]])
_SEQS = msgspec.json.Decoder(list[int])
_IDS = msgspec.json.Decoder(list[str])


class Again(Exception):
    """The transaction must be taken back and done again with savepoints."""


class SqlRecords:
    """See headrace.engine.ledger.Records. `careful` guards every undoable step by a savepoint;
    without, a step that cannot be taken back in memory asks for that by raising `Again`."""

    def __init__(self, store: Store, standing: Standing, *, careful: bool = False) -> None:
        self.store = store
        self._standing = standing
        self._careful = careful
        self._pending = Pending()
        self._flushes = 0
        # With savepoints there are others before this one, whose writes are not committed yet.
        self._base = self._head = standing.read() if careful else standing.head()
        self._seq = self._base.seq
        self._known: dict[str, Job | None] = {}
        self._heads: dict[int, tuple[int, int, Stage, int, int | None]] = {}
        self._keys: dict[Place, KeyRow] = {}
        self._lines = KeyLines(store)
        self._holders: dict[Place, Holder | None] = {}
        self._edges = bool(self._base.edges)
        """Whether anything depends on anything. In many stores nothing does: then no job that ends
        is looked up."""
        self._edges_to: dict[str, dict[str, Edge]] = {}
        self._parents: defaultdict[str, set[str]] = defaultdict(set)
        self._counts: dict[Place, dict[State, int]] = {}
        self._drained: set[Place] = set()

    @property
    def span(self) -> Span:
        """From where to where this transaction takes the store."""
        return Span(self._base.seq, self._seq, self._base.revision, self._head.revision)

    @property
    def head(self) -> Head:
        """Where this transaction takes the store."""
        return self._head._replace(seq=self._seq, edges=self._edges)

    # Looking up beforehand

    def prepare(self, wanted: Wanted) -> None:
        """Looks up what a batch will ask for, each kind in one query."""
        if wanted.holders:
            self._load_holders(wanted.holders)
            held = (self._holders[place] for place in wanted.holders)
            wanted.ids.update(holder.job_id for holder in held if holder)
        if wanted.ids:
            self._load_jobs(wanted.ids)
        if wanted.fresh and self._careful:
            self._load_jobs(wanted.fresh)
        elif wanted.fresh:
            self._known.update(dict.fromkeys(wanted.fresh))
        if wanted.snapshots:
            self._load_heads([job.seq for job in wanted.snapshots])
        if wanted.parents:
            self._load_edges(wanted.parents)
        if wanted.keys:
            self._load_keys(wanted.keys)

    def _load_jobs(self, ids: Iterable[str]) -> None:
        missing = [job_id for job_id in ids if job_id not in self._known]
        self._known.update(dict.fromkeys(missing))
        found = _IDS.decode(
            self.store.text(statement("existing"), (texts(missing),)) if missing else "[]"
        )
        for start in range(0, len(found), LARGEST):
            part = texts(found[start : start + LARGEST])
            for job in fetch_jobs(self.store, statement("jobs_by_id"), (part,)):
                self._known[job.id] = job

    def _load_heads(self, numbers: list[int]) -> None:
        text = self.store.text(statement("heads"), (seqs(numbers),))
        self._heads.update((head[0], head) for head in _HEADS.decode(text))

    def _load_edges(self, parents: Iterable[str]) -> None:
        if not self._edges:
            return
        missing = [parent for parent in parents if parent not in self._edges_to]
        if not missing:
            return
        self._flush_edges()
        for parent in missing:
            self._edges_to[parent] = {}
        found = fetch_edges(self.store, statement("edges_to"), (texts(missing),))
        for edge in found:
            self._tie(edge)

    def _tie(self, edge: Edge) -> None:
        self._edges_to[edge.parent_id][edge.child_id] = edge
        self._parents[edge.child_id].add(edge.parent_id)

    def _load_keys(self, places: Iterable[Place]) -> None:
        """The counts and lines of keys."""
        missing = {place for place in places if place not in self._keys}
        for service, hashes in grouped(missing).items():
            self._keys.update(((service, hash), KeyRow()) for hash in hashes)
            text = self.store.text(statement("keys"), (service, texts(hashes)))
            for _, hash, active, queued, takeovers in _KEYS.decode(text):
                self._keys[service, hash] = KeyRow(active, queued, takeovers)
        missing = {place for place in places if place not in self._lines}
        if missing & self._pending.key_lines:
            self.flush()
        for service, hashes in grouped(missing).items():
            self._lines.load(service, hashes)

    def _load_holders(self, places: Iterable[Place]) -> None:
        missing = [place for place in places if place not in self._holders]
        for service, keys in grouped(missing).items():
            self._holders.update(((service, key), None) for key in keys)
            stored = {without_nul(key): key for key in keys}
            text = self.store.text(statement("holders"), (service, texts(stored)))
            for _, key, job_id, held_until in _HOLDERS.decode(text):
                self._holders[service, stored[key]] = Holder(job_id, held_until)

    # Jobs

    def next_seq(self) -> int:
        self._seq += 1
        return self._seq

    def job(self, job_id: str) -> Job | None:
        if job_id not in self._known:
            self._load_jobs((job_id,))
        return self._known[job_id]

    def current(self, snapshot: Job) -> Job | None:
        job_id = snapshot.id
        if job_id in self._known:
            return self._known[job_id]
        if snapshot.seq not in self._heads:
            self._load_heads([snapshot.seq])
        head = self._heads.get(snapshot.seq)
        if head is None or head[1] != snapshot.version:
            return self.job(job_id)
        _, _, stage, waiting_on, lease_until = head
        if (
            stage is not snapshot.stage
            or waiting_on != snapshot.waiting_on
            or lease_until != snapshot.lease_until
        ):
            snapshot = msgspec.structs.replace(
                snapshot, stage=stage, waiting_on=waiting_on, lease_until=lease_until
            )
        self._known[job_id] = snapshot
        return snapshot

    def create(self, job: Job) -> None:
        if job.deadline is not None or job.run_at > job.updated_at or job.stage is not _READY:
            # The journal has more to tell.
            self.record(Happening(None, job))
            self.save(None, job)
            return
        spec = job.spec
        place = (spec.service, spec.queue)
        self._pending.created.append(job)
        self._pending.lines.add(place)
        self._known[spec.id] = job
        self._drained.discard(place)

    def save(self, old: Job | None, new: Job) -> None:
        job_id = new.spec.id
        before = self._known.get(job_id, old)
        self._pending.save(before, new)
        self._known[job_id] = new
        if new.stage is Stage.READY:
            self._drained.discard((new.spec.service, new.queue))
        if new.spec.key:
            self._lines.moved(before, new)

    def remove(self, job: Job) -> None:
        stored = self.job(job.id)
        if stored is None:
            return
        if self._pending.created:
            self.flush()  # it may be one of these
        self._pending.remove(stored)
        self._pending.graves += grave_row(stored)
        self._known[job.id] = None
        if stored.key:
            self._lines.moved(stored, None)
        for parent in self._parents.pop(job.id, ()):
            self._edges_to[parent].pop(job.id, None)

    def record(self, entry: Happening) -> None:
        self._pending.journal += entry_row(entry)

    def add_error(self, job: Job, error: TryError) -> None:
        self._pending.errors.append((job.seq, self._seq, error))

    def add_logs(self, job: Job, entries: Sequence[LogEntry]) -> None:
        self._pending.log(job.seq, self._seq, entries)

    def clear_history(self, job: Job) -> None:
        self._pending.forget(job.seq)

    def renew(self, leases: Sequence[Lease], until: int) -> list[Renewal]:
        """Extends the leases that are still held; a detached job keeps the time it has."""
        if any(lease.seq in self._pending.jobs for lease in leases):
            self.flush()
        wanted = seqs(lease.seq for lease in leases)
        text = self.store.text(statement("leases"), (wanted,))
        found = {row[0]: row for row in _LEASES.decode(text)}
        due = [lease for lease in leases if (row := found.get(lease.seq)) and _due(row, lease)]
        if due:
            numbers = seqs(lease.seq for lease in due)
            self.store.execute(statement("renew"), (until, numbers))
            self._flushes += 1
        for lease in due:
            self._known.pop(lease.job_id, None)
            self._heads.pop(lease.seq, None)
        return [_renewal(found.get(lease.seq), lease) for lease in leases]

    # Starting and finishing by the batch

    def start(self, request: ClaimRequest, queue: str, room: int) -> list[Job]:
        service, started = request.service, list[Job]()
        while len(started) < room and (service, queue) not in self._drained:
            self._flush_line(service, queue)
            left = room - len(started)
            jobs, retried = start_line(self.store, request, queue, left, self._seq)
            if not jobs:
                break
            self._flushes += 1
            self._seq += len(jobs)
            counts = self._pending.counts
            counts[service, queue, State.PENDING] -= len(jobs) - retried
            counts[service, queue, State.RETRY] -= retried
            counts[service, queue, State.ACTIVE] += len(jobs)
            self._known.update([(job.spec.id, job) for job in jobs])
            started += jobs
        return started

    def finish(self, changes: Sequence[Change], first: int) -> list[Answer]:
        if self._careful:
            return []
        finishing, answers = Finishing(), list[Answer]()
        known, waiting = self._known, self._pending.jobs
        ended: dict[Place, int] = {}
        for change in islice(changes, first, None):
            if not change.only_completes:
                break
            # Taken to be as the caller has seen it, until writing shows whether it was.
            spec = change.job.spec
            stored = known.get(spec.id, change.job)
            if not stored or stored.detached or stored.cancelling is not None:
                break
            if stored.seq in waiting or self._has_dependents(spec.id):
                break
            new = finishing.add(change, stored, self._seq + 1)
            if new is None:
                break
            self._seq += 1
            known[spec.id] = new
            place = (spec.service, new.queue)
            ended[place] = ended.get(place, 0) + 1
            answers.append(Applied(new))
        if not finishing.write(self.store):
            raise Again
        self._flushes += bool(answers)
        for place, jobs in ended.items():
            self._pending.counts[(*place, State.ACTIVE)] -= jobs
            self._pending.counts[(*place, State.COMPLETED)] += jobs
        return answers

    # Lines

    def ready(self, service: str, queue: str, limit: int) -> list[Job]:
        if (service, queue) in self._drained:
            return []
        self._flush_line(service, queue)
        at_most = min(limit, LARGEST)
        line = fetch_jobs(self.store, statement("ready"), (service, queue, at_most))
        if len(line) < at_most:
            # Whoever asks for the line takes every job out of it.
            self._drained.add((service, queue))
        keyed = {(service, job.key.hash) for job in line if job.key}
        if keyed:
            self._load_keys(keyed)
        self._known.update((job.id, job) for job in line)
        return line

    def due(self, service: str, queue: str, now: int, limit: int) -> list[Job]:
        self._flush_line(service, queue)
        values = (service, queue, now, limit)
        found = _SEQS.decode(self.store.text(statement("due"), values))
        jobs = self.by_seq(found)
        keyed = {(service, job.key.hash) for job in jobs if job.key}
        if keyed:
            self._load_keys(keyed)
        return jobs

    def ended(self, service: str, queue: str, state: State, limit: int) -> list[tuple[int, int]]:
        """The jobs of a place that ended first: sequence and time."""
        self._flush_line(service, queue)
        values = (service, queue, state, limit)
        return _ENDED.decode(self.store.text(statement("ended"), values))

    def by_seq(self, numbers: list[int]) -> list[Job]:
        """The jobs of these sequences, which must exist as the tables have them."""
        jobs: dict[int, Job] = {}
        for start in range(0, len(numbers), LARGEST):
            part = seqs(numbers[start : start + LARGEST])
            for job in fetch_jobs(self.store, statement("jobs_by_seq"), (part,)):
                jobs[job.seq] = self._known[job.id] = job
        return [jobs[seq] for seq in numbers]

    def next_due(self, service: str, queue: str) -> int | None:
        self._flush_line(service, queue)
        row = self.store.fetch(statement("next_due"), (service, queue))
        return cast("int | None", row[0]) if row else None

    def counted(self, service: str, queue: str, state: State) -> int:
        place = (service, queue)
        if self._pending.created:
            self.flush()  # these are counted as they are written
        if place not in self._counts:
            row = self.store.fetch(statement("counted"), place)
            self._counts[place] = _COUNTS.decode(cast(str, row[0])) if row else {}
        waiting = self._pending.counts.get((service, queue, state), 0)
        return self._counts[place].get(state, 0) + waiting

    def oldest_waiting(self, service: str, queue: str) -> str | None:
        settings = self.settings(service, queue)
        waiting = sum(self.counted(service, queue, state) for state in WAITING)
        if settings.discard is Discard.NEW or waiting < (settings.max_entries or 0):
            return None  # nobody would have to make room
        self._flush_line(service, queue)
        row = self.store.fetch(statement("oldest_waiting"), (service, queue))
        return cast(str, row[0]) if row else None

    def _flush_line(self, service: str, queue: str) -> None:
        if (service, queue) in self._pending.lines:
            self.flush()

    # Keys, dedup, edges, rates, settings

    def key(self, service: str, hash: str) -> KeyRow:
        if (service, hash) not in self._keys:
            self._load_keys({(service, hash)})
        return self._keys[service, hash]

    def set_key(self, service: str, hash: str, row: KeyRow) -> None:
        self._keys[service, hash] = self._pending.keys[service, hash] = row

    def ready_ahead(self, job: Job) -> int:
        assert job.key
        place = (job.service, job.key.hash)
        if place not in self._lines:
            self._load_keys({place})
        stored = self._known.get(job.id)
        itself = (
            stored is not None
            and stored.stage is Stage.READY
            and stored.queue == job.queue
            and stored.priority <= job.priority
        )
        return -itself + sum(
            jobs
            for (queue, priority), jobs in self._lines.ready(place).items()
            if queue == job.queue and priority <= job.priority
        )

    def parked(self, service: str, hash: str) -> list[Job]:
        place = (service, hash)
        if place not in self._lines:
            self._load_keys({place})
        heads = self._lines.parked(place)
        if heads is None:
            self._flush_key(place)
            self._lines.load(service, [hash])
            heads = self._lines.parked(place)
        if heads is None:
            heads = self._lines.read_parked(place)
        self._known.update((job.id, job) for job in heads)
        return heads

    def first_of_key(self, service: str, hash: str, active: bool) -> str | None:
        self._flush_key((service, hash))
        name = "first_active" if active else "first_queued"
        row = self.store.fetch(statement(name), (service, hash))
        return cast(str, row[0]) if row else None

    def _flush_key(self, place: Place) -> None:
        if place in self._pending.key_lines:
            self.flush()

    def holder(self, service: str, key: str) -> Holder | None:
        if (service, key) not in self._holders:
            self._load_holders([(service, key)])
        return self._holders[service, key]

    def set_holder(self, service: str, key: str, holder: Holder | None) -> None:
        self._holders[service, key] = self._pending.holders[service, key] = holder

    def edges_to(self, parent_id: str, state: EdgeState | None = None) -> list[Edge]:
        self._load_edges((parent_id,))
        edges = self._edges_to[parent_id].values() if self._edges else ()
        return [edge for edge in edges if state in (None, edge.state)]

    def _has_dependents(self, job_id: str) -> bool:
        if not self._edges:
            return False
        if job_id not in self._edges_to:
            self._load_edges((job_id,))
        return bool(self._edges_to[job_id])

    def edges_from(self, child_id: str) -> list[Edge]:
        self._flush_edges()
        return fetch_edges(self.store, statement("edges_from"), (texts((child_id,)),))

    def _flush_edges(self) -> None:
        if self._pending.edges or self._pending.removed:
            self.flush()

    def set_edge(self, edge: Edge) -> None:
        self._edges = True
        self._pending.tie(self._seq, edge)
        if edge.parent_id in self._edges_to:
            self._tie(edge)

    def arrival(self, service: str, queue: str) -> int:
        waiting = self._pending.arrivals.get((service, queue))
        if waiting is not None:
            return waiting
        row = self.store.fetch(statement("arrival"), (service, queue))
        return cast(int, row[0]) if row else 0

    def set_arrival(self, service: str, queue: str, arrival: int) -> None:
        self._pending.arrivals[service, queue] = arrival

    def settings(self, service: str, queue: str) -> QueueSettings:
        return self._standing.settings(service, queue)

    # Writing and taking back

    def flush(self) -> None:
        """Writes what is waiting."""
        if not self._pending:
            return
        self._flushes += 1
        self.end()
        for (service, queue, state), jobs in self._pending.counts.items():
            counts = self._counts.get((service, queue))
            if counts is not None:
                counts[state] = counts.get(state, 0) + jobs
        self._pending = Pending()

    def end(self) -> None:
        """Writes what is waiting, as the last thing in a transaction."""
        if self._pending:
            self._pending.flush(self.store)

    @contextmanager
    def bypassed(self) -> Generator[Store, None, None]:
        """The store itself, for writes that the ledger has no part in."""
        self.flush()
        yield self.store
        self._flushes += 1
        self.forget()
        self._head = self._standing.read()

    def undoable(self) -> Callable[[], None]:
        if self._careful:
            self.flush()
            self.store.execute("SAVEPOINT headrace_group")
            return self._roll_back_group
        mark, flushes = self._pending.copy(), self._flushes

        def undo() -> None:
            if self._flushes != flushes:
                raise Again
            self._pending = mark
            self.forget()
            self._known.update(dict.fromkeys(mark.removed.values()))
            self._known.update((job.id, job) for job in mark.created)
            self._known.update((job.id, job) for _, job in mark.jobs.values())
            self._keys.update(mark.keys)
            self._holders.update(mark.holders)

        return undo

    def _roll_back_group(self) -> None:
        self.store.execute("ROLLBACK TO headrace_group; RELEASE headrace_group")
        self._pending = Pending()
        self.forget()

    def forget(self) -> None:
        """Forgets what was read: it was taken back, or changed behind the ledger's back."""
        self._known.clear()
        self._heads.clear()
        self._keys.clear()
        self._lines.clear()
        self._holders.clear()
        self._edges_to.clear()
        self._parents.clear()
        self._counts.clear()
        self._drained.clear()


_Held = tuple[int, int, int, str | None]
"""Of an active job: sequence, token, whether it is detached, why it is to be cancelled."""


def _due(held: _Held, lease: Lease) -> bool:
    return held[1] == lease.token and not held[2]


def _renewal(held: _Held | None, lease: Lease) -> Renewal:
    if held is None or held[1] != lease.token:
        return Renewal(False)
    return Renewal(True, held[3])
