"""Jobs as rows and rows as jobs."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import cast

import msgspec

from headrace.core.edges import EdgeState
from headrace.core.model import Job, NewJob, OnParentFailure, position
from headrace.core.states import FINAL, EventType, State
from headrace.engine.records import Edge
from headrace.engine.sqlite.store import Bound, Store, Value

encode = msgspec.json.Encoder().encode

_JOBS = msgspec.json.Decoder(list[Job])
_RESULTS = msgspec.json.Decoder(list[tuple[int, msgspec.Raw]])
_EDGES = msgspec.json.Decoder(list[tuple[int, str, str, OnParentFailure, EdgeState, State | None]])
_EDGE_RESULTS = msgspec.json.Decoder(list[tuple[str, str, msgspec.Raw]])


def fetch_jobs(store: Store, sql: str, values: Sequence[Value | Bound]) -> list[Job]:
    """The jobs of a `jobs_json` query."""
    row = store.fetch(sql, values)
    if row is None or row[0] is None:
        return []
    return with_results(_JOBS.decode(cast(str, row[0])), row[1])


def with_results(jobs: list[Job], found: Value) -> list[Job]:
    """The jobs with their results, as a `results_json` query has found them."""
    if found is None:
        return jobs
    results = dict(_RESULTS.decode(cast(str, found)))
    return [
        msgspec.structs.replace(job, result=results[job.seq]) if job.seq in results else job
        for job in jobs
    ]


def fetch_edges(store: Store, sql: str, values: Sequence[Value | Bound]) -> list[Edge]:
    """The edges of an `edges_json` query, in the order in which the dependents came."""
    row = store.fetch(sql, values)
    if row is None or row[0] is None:
        return []
    results: dict[tuple[str, str], msgspec.Raw] = {}
    if row[1] is not None:
        found = _EDGE_RESULTS.decode(cast(str, row[1]))
        results = {(parent, child): result for parent, child, result in found}
    return [
        Edge(parent, child, policy, state, parent_state, results.get((parent, child)))
        for _, parent, child, policy, state, parent_state in sorted(
            _EDGES.decode(cast(str, row[0])), key=itemgetter(0)
        )
    ]


def _json(value: object) -> bytes | None:
    return None if value is None else encode(value)


def created(job: Job, spec: NewJob) -> tuple[Value, ...]:
    """The row of `insert_created`."""
    seq, run_at = job.seq, job.run_at
    return (
        seq,
        spec.id,
        seq,
        spec.service,
        spec.queue,
        spec.type,
        job.priority,
        position(run_at, seq, spec.lifo),
        run_at,
        job.expires_at,
        job.max_tries,
        spec.created_at,
        spec.created_at,
    )


def inserted(job: Job) -> tuple[Value, ...]:
    """The row of `insert_jobs`: a job as it is created."""
    spec = job.spec
    return (
        job.seq,
        spec.id,
        job.version,
        spec.service,
        job.queue,
        job.type,
        job.state,
        job.stage,
        job.priority,
        job.position,
        job.run_at,
        job.expires_at,
        job.deadline,
        job.max_tries,
        job.waiting_on,
        spec.created_at,
        job.updated_at,
        spec.key.hash if spec.key else None,
        spec.key.name if spec.key else None,
    )


def updated(old: Job, new: Job) -> tuple[str, tuple[Value, ...]]:
    """The statement that writes what changed between two versions, and its row.

    Setting a column makes SQLite write every index that has it, so the changes of a job's usual
    way have statements that set only what they change.
    """
    if new.version == old.version:
        return "update_placed", (new.seq, new.stage, new.waiting_on)
    if (
        new.run_at == old.run_at
        and new.queue is old.queue
        and new.type is old.type
        and new.priority == old.priority
        and new.max_tries == old.max_tries
        and new.waiting_on == old.waiting_on
        and new.expires_at == old.expires_at
        and new.deadline == old.deadline
        and new.progress is old.progress
        and not new.detached
        and new.cancelling is None
    ):
        if (
            new.event is EventType.STARTED
            and new.result is old.result
            and new.error is old.error
            and not old.detached
            and old.cancelling is None
            and old.finished_at is None
        ):
            row = (
                new.seq,
                new.version,
                new.tries,
                new.worker,
                new.lease_until,
                new.started_at,
                new.updated_at,
            )
            return "update_started", row
        if (
            new.state in FINAL
            and new.worker is None
            and new.lease_until is None
            and new.tries == old.tries
            and new.token == old.token
            and new.started_at == old.started_at
        ):
            row = (
                new.seq,
                new.version,
                new.state,
                new.event,
                new.finished_at,
                new.updated_at,
                _json(new.result),
                _json(new.error),
            )
            return "update_ended", row
    return "update_jobs", rewritten(new)


def rewritten(new: Job) -> tuple[Value, ...]:
    """The row of `update_jobs`: everything that can change."""
    return (
        new.seq,
        new.version,
        new.queue,
        new.type,
        new.state,
        new.event,
        new.stage,
        new.priority,
        new.position,
        new.run_at,
        new.expires_at,
        new.deadline,
        new.tries,
        new.max_tries,
        new.token,
        new.worker,
        new.lease_until,
        new.detached,
        new.cancelling,
        new.waiting_on,
        new.started_at,
        new.finished_at,
        new.updated_at,
        _json(new.error),
        _json(new.progress),
        _json(new.result),
    )
