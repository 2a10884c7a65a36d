"""What a transaction is going to write, gathered so that it takes few steps to write it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from headrace.core.admission import Holder
from headrace.core.model import MAX_LOGS, Job, LogEntry, TryError
from headrace.core.states import EventType, State
from headrace.engine.records import Edge, KeyRow
from headrace.engine.sqlite.rows import created, encode, inserted, rewritten, updated
from headrace.engine.sqlite.sql import statement
from headrace.engine.sqlite.store import Store, Value, seqs, texts, without_nul

Place = tuple[str, str]
"""(service, queue), or (service, key)."""

_LOG_STEP = 1 << 20
"""Log lines are numbered from their write's sequence times this, so they keep their order."""


class Pending:
    """Writes in waiting. A copy is a point to go back to."""

    __slots__ = (
        "arrivals",
        "cleared",
        "counts",
        "created",
        "edges",
        "errors",
        "graves",
        "holders",
        "jobs",
        "journal",
        "key_lines",
        "keys",
        "lines",
        "logs",
        "removed",
    )

    def __init__(self) -> None:
        # Plain displays: one of these is made for every transaction, however small.
        self.jobs: dict[int, tuple[Job | None, Job]] = {}
        """By sequence: the job as the table has it (None for a new one), and as it is to be."""
        self.created: list[Job] = []
        """New jobs that concern no other; all of them wait, ready, in their queues."""
        self.removed: dict[int, str] = {}
        self.journal: list[Value] = []
        self.graves: list[Value] = []
        self.errors: list[tuple[int, int, TryError]] = []
        self.logs: list[tuple[int, int, LogEntry]] = []
        self.cleared: set[int] = set()
        self.keys: dict[Place, KeyRow] = {}
        self.holders: dict[Place, Holder | None] = {}
        self.edges: dict[tuple[str, str], tuple[int, Edge]] = {}
        self.arrivals: dict[Place, int] = {}
        self.counts: defaultdict[tuple[str, str, State], int] = defaultdict(int)
        self.lines: set[Place] = set()
        """Queues whose lines in the tables are out of date."""
        self.key_lines: set[Place] = set()
        """Keys whose lines in the tables are out of date."""

    def __bool__(self) -> bool:
        return bool(
            self.created
            or self.journal
            or self.counts
            or self.jobs
            or self.removed
            or self.holders
            or self.keys
            or self.edges
            or self.arrivals
        )

    def copy(self) -> Pending:
        other = Pending()
        for name in Pending.__slots__:
            setattr(other, name, getattr(self, name).copy())
        return other

    # Gathering

    def save(self, before: Job | None, new: Job) -> None:
        """`before` is the job as it was last seen or saved in this transaction."""
        entry = self.jobs.get(new.seq)
        self.jobs[new.seq] = (entry[0] if entry else before, new)
        service = new.spec.service
        self.lines.add((service, new.queue))
        if before is None:
            self.counts[service, new.queue, new.state] += 1
        elif before.state is not new.state or before.queue != new.queue:
            self.lines.add((service, before.queue))
            self.counts[service, before.queue, before.state] -= 1
            self.counts[service, new.queue, new.state] += 1
        if new.spec.key:
            self.key_lines.add((service, new.spec.key.hash))

    def remove(self, job: Job) -> None:
        entry = self.jobs.pop(job.seq, None)
        self.forget(job.seq)
        for tie in [tie for tie in self.edges if tie[1] == job.id]:
            del self.edges[tie]
        if entry is None or entry[0] is not None:
            self.removed[job.seq] = job.id
        self.counts[job.service, job.queue, job.state] -= 1
        self.lines.add((job.service, job.queue))
        if job.key:
            self.key_lines.add((job.service, job.key.hash))

    def forget(self, seq: int) -> None:
        """Drops the errors and logs of a job."""
        self.errors = [error for error in self.errors if error[0] != seq]
        self.logs = [line for line in self.logs if line[0] != seq]
        self.cleared.add(seq)

    def tie(self, number: int, edge: Edge) -> None:
        """`number` is the sequence of the write; an edge keeps the one it came with."""
        tie = (edge.parent_id, edge.child_id)
        known = self.edges.get(tie)
        self.edges[tie] = (known[0] if known else number, edge)

    def log(self, seq: int, number: int, entries: Iterable[LogEntry]) -> None:
        """`number` is the sequence of the write that logs."""
        start = number * _LOG_STEP + len(self.logs)
        self.logs.extend((seq, start + n, entry) for n, entry in enumerate(entries))

    # Writing

    def flush(self, store: Store) -> None:
        """Writes everything. What is deleted goes first: an id, an edge or a key may come back
        in the same transaction."""
        if self.removed or self.cleared:
            self._delete(store)
        if self.created:
            self._write_created(store)
        if self.jobs:
            self._write_jobs(store)
        if self.journal:
            store.write_rows("insert_journal", self.journal)
        if self.graves or self.errors or self.logs:
            self._write_history(store)
        if self.keys:
            self._write_keys(store)
        if self.holders:
            self._write_holders(store)
        if self.edges:
            rows = (_edge_row(n, edge) for n, edge in self.edges.values())
            _write(store, "upsert_edges", [value for row in rows for value in row])
        if self.arrivals:
            rows = ((*place, at) for place, at in self.arrivals.items())
            _write(store, "upsert_rates", [value for row in rows for value in row])
        counts: list[Value] = []
        for place, jobs in self.counts.items():
            if jobs:
                counts += (*place, jobs)
        _write(store, "add_counts", counts)

    def _write_history(self, store: Store) -> None:
        """What stays of deleted jobs, failed tries and log lines."""
        _write(store, "insert_graves", self.graves)
        errors = ((job, n, encode(error)) for job, n, error in self.errors)
        _write(store, "insert_errors", [value for row in errors for value in row])
        logs = ((job, n, encode(line)) for job, n, line in self.logs)
        _write(store, "insert_logs", [value for row in logs for value in row])
        for job in {line[0] for line in self.logs}:
            store.execute(statement("trim_logs"), (job, MAX_LOGS))

    def _delete(self, store: Store) -> None:
        if self.removed:
            gone = self.removed
            store.execute(statement("delete_jobs"), (seqs(gone),))
            store.execute(statement("delete_specs"), (seqs(gone),))
            store.execute(statement("delete_tags"), (seqs(gone),))
            store.execute(statement("delete_edges_from"), (texts(gone.values()),))
        if self.cleared:
            store.execute(statement("delete_errors"), (seqs(self.cleared),))
            store.execute(statement("delete_logs"), (seqs(self.cleared),))

    def _write_created(self, store: Store) -> None:
        rows: list[Value] = []
        specs: list[Value] = []
        tags: list[Value] = []
        places: dict[Place, int] = {}
        for job in self.created:
            spec = job.spec
            rows += created(job, spec)
            specs += (job.seq, encode(spec))
            place = (spec.service, spec.queue)
            places[place] = places.get(place, 0) + 1
            for tag in spec.tags:
                tags += (tag, job.seq)
        store.write_rows("insert_created", rows)
        store.write_rows("insert_specs", specs)
        if tags:
            store.write_rows("insert_tags", tags)
        # Of the numbers in between no other job is in the table yet.
        ends = (self.created[0].seq, self.created[-1].seq)
        store.execute(statement("journal_created"), ends)
        for place, jobs in places.items():
            self.counts[(*place, State.PENDING)] += jobs

    def _write_jobs(self, store: Store) -> None:
        new: list[Value] = []
        specs: list[Value] = []
        tags: list[Value] = []
        changed: defaultdict[str, list[Value]] = defaultdict(list)
        for before, job in self.jobs.values():
            if before is None:
                new.extend(inserted(job))
                specs += (job.seq, encode(job.spec))
                for tag in job.spec.tags:
                    tags += (tag, job.seq)
                if job.event is not EventType.CREATED:  # something happened to it at once
                    changed["update_jobs"].extend(rewritten(job))
            else:
                name, row = updated(before, job)
                changed[name].extend(row)
        _write(store, "insert_jobs", new)
        _write(store, "insert_specs", specs)
        _write(store, "insert_tags", tags)
        for name, values in changed.items():
            _write(store, name, values)

    def _write_keys(self, store: Store) -> None:
        _write(
            store,
            "upsert_keys",
            [
                value
                for place, row in self.keys.items()
                for value in (*place, row.active, row.queued, row.takeovers)
            ],
        )
        idle = (place for place, row in self.keys.items() if row == KeyRow())
        _by_service(idle, store, "delete_idle_keys")

    def _write_holders(self, store: Store) -> None:
        held = [((of, without_nul(key)), holder) for (of, key), holder in self.holders.items()]
        _by_service((place for place, holder in held if holder is None), store, "delete_holders")
        _write(
            store,
            "upsert_holders",
            [
                value
                for place, holder in held
                if holder is not None
                for value in (*place, holder.job_id, holder.held_until)
            ],
        )


def grouped(places: Iterable[Place]) -> dict[str, list[str]]:
    """Places by service."""
    groups: defaultdict[str, list[str]] = defaultdict(list)
    for service, name in places:
        groups[service].append(name)
    return groups


def _by_service(places: Iterable[Place], store: Store, name: str) -> None:
    for service, found in grouped(places).items():
        store.execute(statement(name), (service, texts(found)))


def _write(store: Store, name: str, values: list[Value]) -> None:
    if values:
        store.write_rows(name, values)


def _edge_row(n: int, edge: Edge) -> tuple[Value, ...]:
    result = None if edge.result is None else bytes(edge.result)
    return (edge.parent_id, edge.child_id, n, edge.policy, edge.state, edge.parent_state, result)
