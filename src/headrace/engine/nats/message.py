"""What a message in a job's domain says: the event for whoever follows, the job for us.

The newest message of a job is its state. `created` carries what was enqueued, which never
changes; every other message carries only how the job stands.

The stream gives a message its sequence when it is stored, so a message cannot name the sequence
of another one of its own batch: those are written as negative distances, -1 for itself.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType

from headrace.core.edges import EdgeState
from headrace.core.event import Event, rfc3339, wire
from headrace.core.model import Job, NewJob, OnParentFailure, Progress, Stage, TryError
from headrace.core.states import EventType, State
from headrace.engine.nats import layout
from headrace.engine.records import Edge

PROVISIONAL = 1 << 60
"""Sequences from here on stand for places in a batch that is not stored yet."""

replace = msgspec.structs.replace
_NULL = msgspec.Raw(b"null")


class Stand(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """How a job stands: everything but what was enqueued and its result."""

    seq: int
    version: int
    state: State
    event: EventType
    queue: str
    type: str
    priority: int
    max_tries: int
    run_at: int
    updated_at: int
    stage: Stage = Stage.NONE
    expires_at: int | None = None
    deadline: int | None = None
    tries: int = 0
    token: int = 0
    worker: str | None = None
    lease_until: int | None = None
    detached: bool = False
    cancelling: str | None = None
    waiting_on: int = 0
    started_at: int | None = None
    finished_at: int | None = None
    error: TryError | None = None
    progress: Progress | None = None


class Private(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """Our part of a message."""

    stand: Stand | None = None
    """None: the job is gone."""
    spec: NewJob | None = None
    """What was enqueued, but for its payload, which is the event's."""
    entry: Event | None = None
    """The journal's entry; None where nothing happened that the journal tells."""
    error: TryError | None = None
    """A try that failed just now."""
    clears: bool = False
    """Errors and logs of earlier messages are forgotten."""
    told: bool = False
    """There are errors or logs to be found."""
    has_result: bool = False
    result: msgspec.Raw = _NULL
    """The job's result where the event does not carry it."""


class Body(Struct, frozen=True, gc=False, omit_defaults=True):
    """The parts of a message that we read."""

    headrace: Private
    payload: msgspec.Raw = _NULL
    result: msgspec.Raw = _NULL


_decoder = msgspec.json.Decoder(Body)


class Letter(Struct, frozen=True, gc=False):
    """A message of a job, read."""

    seq: int
    private: Private
    payload: msgspec.Raw
    result: msgspec.Raw | None

    @property
    def removes(self) -> bool:
        return self.private.stand is None

    def spec(self) -> NewJob:
        """What was enqueued; only `created` knows it."""
        assert self.private.spec
        return replace(self.private.spec, payload=self.payload)

    def job(self, spec: NewJob) -> Job:
        """The job as this message left it."""
        stand, own = self.private.stand, self.seq
        assert stand
        return Job(
            spec=spec,
            seq=_absolute(stand.seq, own),
            version=_absolute(stand.version, own),
            state=stand.state,
            event=stand.event,
            queue=stand.queue,
            type=stand.type,
            priority=stand.priority,
            max_tries=stand.max_tries,
            run_at=stand.run_at,
            updated_at=stand.updated_at,
            stage=stand.stage,
            expires_at=stand.expires_at,
            deadline=stand.deadline,
            tries=stand.tries,
            token=_absolute(stand.token, own),
            worker=stand.worker,
            lease_until=stand.lease_until,
            detached=stand.detached,
            cancelling=stand.cancelling,
            waiting_on=stand.waiting_on,
            started_at=stand.started_at,
            finished_at=stand.finished_at,
            result=self.result,
            error=stand.error,
            progress=stand.progress,
        )

    def event(self) -> Event | None:
        """The journal's entry."""
        entry = self.private.entry
        if entry is None:
            return None
        slot = entry.slot
        if slot and slot.token:
            slot = replace(slot, token=_absolute(slot.token, self.seq))
        return replace(entry, seq=self.seq, slot=slot)


def read(seq: int, payload: bytes) -> Letter:
    """Reads a stored message."""
    body = _decoder.decode(payload)
    private = body.headrace
    result: msgspec.Raw | None = None
    if private.has_result:
        completes = private.entry is not None and private.entry.event is EventType.COMPLETED
        result = msgspec.Raw(bytes(body.result if completes else private.result))
    return Letter(seq, private, msgspec.Raw(bytes(body.payload)), result)


class WireContext(Struct, frozen=True, gc=False, omit_defaults=True, rename="camel"):
    """The context as others read it."""

    request_id: str
    trace_id: str
    traceparent: str
    tracestate: str | None = None


class Wire(Struct, gc=False, kw_only=True, omit_defaults=True, rename="camel"):
    """A message as others read it (see core.event.wire), with our part."""

    job_id: str
    context: WireContext
    service: str
    queue: str
    job_type: str
    event_type: str
    state: State
    previous_state: State | None = None
    tries: int
    max_tries: int
    payload: msgspec.Raw | UnsetType = UNSET
    result: msgspec.Raw | UnsetType = UNSET
    timestamp: str
    headrace: Private


_encode = msgspec.json.Encoder().encode


def plain(job: Job, event: Event, told: bool, payload: msgspec.Raw | UnsetType = UNSET) -> bytes:
    """The message of an event that says no more than this, stored on its own. The sequences of
    the job that begin with it are `PROVISIONAL`."""
    completes = event.event is EventType.COMPLETED
    result = job.result
    context = event.context
    return _encode(
        Wire(
            job_id=event.job_id,
            context=WireContext(
                context.request_id, context.trace_id, context.traceparent, context.tracestate
            ),
            service=event.service,
            queue=event.queue,
            job_type=event.type,
            event_type=event.event,
            state=event.state,
            previous_state=event.previous,
            tries=event.tries,
            max_tries=event.max_tries,
            payload=payload,
            result=(result or _NULL) if completes else UNSET,
            timestamp=stamp(event.at),
            headrace=Private(
                stand=_stand(job, 0),
                spec=None if payload is UNSET else replace(job.spec, payload=_NULL),
                entry=event,
                told=told,
                has_result=result is not None,
                result=_NULL if completes or result is None else result,
            ),
        )
    )


@lru_cache(maxsize=256)
def stamp(at: int) -> str:
    """A time as others read it; many messages have the same."""
    return rfc3339(at)


def written(
    place: int,
    job: Job | None,
    *,
    event: Event | None,
    error: TryError | None = None,
    clears: bool = False,
    told: bool = False,
    kind: str = layout.PLACED,
    job_id: str = "",
) -> bytes:
    """The message that will be at `place` of its batch. `job` is None where it is removed."""
    stand = _stand(job, place) if job else None
    creates = event is not None and event.event is EventType.CREATED
    completes = event is not None and event.event is EventType.COMPLETED
    spec = payload = None
    if creates:
        assert job
        spec, payload = replace(job.spec, payload=_NULL), job.spec.payload
    result = job.result if job else None
    if event is not None:
        if event.slot and event.slot.token:
            token = _relative(event.slot.token, place)
            event = replace(event, slot=replace(event.slot, token=token))
        shape: dict[str, Any] = wire(event, payload, (result or _NULL) if completes else None)
        event = replace(event, seq=0)
    elif job is None:
        shape = {"jobId": job_id, "eventType": kind}
    else:
        shape = {
            "jobId": job.id,
            "service": job.service,
            "queue": job.queue,
            "jobType": job.type,
            "eventType": kind,
            "state": str(job.state),
            "timestamp": rfc3339(job.updated_at),
        }
    shape["headrace"] = Private(
        stand=stand,
        spec=spec,
        entry=event,
        error=error,
        clears=clears,
        told=told,
        has_result=result is not None,
        result=_NULL if completes or result is None else result,
    )
    return msgspec.json.encode(shape)


def _stand(job: Job, place: int) -> Stand:
    return Stand(
        seq=_relative(job.seq, place),
        version=_relative(job.version, place),
        state=job.state,
        event=job.event,
        queue=job.queue,
        type=job.type,
        priority=job.priority,
        max_tries=job.max_tries,
        run_at=job.run_at,
        updated_at=job.updated_at,
        stage=job.stage,
        expires_at=job.expires_at,
        deadline=job.deadline,
        tries=job.tries,
        token=_relative(job.token, place),
        worker=job.worker,
        lease_until=job.lease_until,
        detached=job.detached,
        cancelling=job.cancelling,
        waiting_on=job.waiting_on,
        started_at=job.started_at,
        finished_at=job.finished_at,
        error=job.error,
        progress=job.progress,
    )


def _relative(seq: int, place: int) -> int:
    return seq - PROVISIONAL - place - 1 if seq >= PROVISIONAL else seq


def _absolute(seq: int, own: int) -> int:
    return own + seq + 1 if seq < 0 else seq


class KeptEdge(Struct, frozen=True, gc=False, omit_defaults=True):
    """An edge as the dependent keeps it."""

    parent_id: str
    child_id: str
    policy: OnParentFailure
    state: EdgeState = EdgeState.OPEN
    parent_state: State | None = None
    ended: bool = False
    result: msgspec.Raw = _NULL


_edges = msgspec.json.Decoder(KeptEdge)


def edge_written(edge: Edge) -> bytes:
    """An edge as a message."""
    kept = KeptEdge(
        edge.parent_id,
        edge.child_id,
        edge.policy,
        edge.state,
        edge.parent_state,
        edge.result is not None,
        edge.result if edge.result is not None else _NULL,
    )
    return msgspec.json.encode(kept)


def edge_read(payload: bytes) -> Edge:
    """An edge from its message."""
    kept = _edges.decode(payload)
    result = msgspec.Raw(bytes(kept.result)) if kept.ended else None
    return Edge(kept.parent_id, kept.child_id, kept.policy, kept.state, kept.parent_state, result)
