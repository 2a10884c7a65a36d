"""What a message in a job's domain says: the event for whoever follows, the job for us.

The newest message of a job is its state. `created` carries what was enqueued, which never
changes; every other message carries only how the job stands, and of that under `headrace` only
what the event does not tell already.

The stream gives a message its sequence when it is stored, so a message cannot name the sequence
of another one of its own batch: those are written as negative distances, -1 for itself.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import lru_cache
from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType

from headrace.core.event import Event, Policy, Slot, rfc3339, wire_policy, wire_slot
from headrace.core.model import (
    DEFAULT_PRIORITY,
    Context,
    Job,
    LogEntry,
    NewJob,
    OnParentFailure,
    Progress,
    Stage,
    TryError,
)
from headrace.core.states import CLAIMABLE, EventType, State
from headrace.engine.nats import layout

PROVISIONAL = 1 << 60
"""Sequences from here on stand for places in a batch that is not stored yet."""

replace = msgspec.structs.replace
_NULL = msgspec.Raw(b"null")
_OWN = -1


SHORT = {
    "seq": "s",
    "version": "v",
    "token": "t",
    "event": "e",
    "updated_at": "u",
    "run_at": "r",
    "priority": "p",
    "stage": "g",
    "expires_at": "x",
    "deadline": "d",
    "worker": "w",
    "lease_until": "l",
    "started_at": "b",
    "finished_at": "f",
    "has_result": "h",
}
"""Names of what is in many messages."""


class Private(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True, rename=SHORT):
    """Our part of a message: how the job stands, as far as the event does not tell it."""

    seq: int = _OWN
    version: int = _OWN
    token: int = 0
    event: EventType | None = None
    """The job's newest event, where this is another."""
    updated_at: int | None = None
    """When that was, where this was at another time."""
    run_at: int = 0
    priority: int = DEFAULT_PRIORITY
    stage: Stage = Stage.NONE
    expires_at: int | None = None
    deadline: int | None = None
    worker: str | None = None
    lease_until: int | None = None
    detached: bool = False
    cancelling: str | None = None
    waiting_on: int = 0
    started_at: int | None = None
    finished_at: int | None = None
    error: TryError | None = None
    progress: Progress | None = None
    has_result: bool = False
    result: msgspec.Raw = _NULL
    """The job's result where the event does not carry it."""
    spec: NewJob | None = None
    """What was enqueued, but for its payload, where the event does not tell all of it."""
    by: str | None = None
    """Who made the event, where the job is no longer its own."""
    slot: Slot | None = None
    policy: Policy | None = None
    failed: TryError | None = None
    """A try that failed just now."""
    clears: bool = False
    """Errors and logs of earlier messages are forgotten."""
    told: bool = False
    """There are errors or logs to be found."""
    sure: bool = False
    """Whether a new job may start and end without a word in the record of its key."""


class WireContext(Struct, frozen=True, gc=False, omit_defaults=True, rename="camel"):
    """The context as others read it."""

    request_id: str
    trace_id: str
    traceparent: str
    tracestate: str | None = None


class WireLog(Struct, frozen=True, gc=False):
    """A log entry as others read it."""

    timestamp: str
    level: str
    message: str


class Wire(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True, rename="camel"):
    """A message as others read it (see core.event.wire), with our part."""

    job_id: str
    context: WireContext | None = None
    service: str = ""
    queue: str = ""
    job_type: str = ""
    event_type: str
    state: State | None = None
    """None: the job is gone."""
    previous_state: State | None = None
    tries: int | None = None
    max_tries: int | None = None
    error: str | None = None
    reason: str | None = None
    progress: Progress | None = None
    logs: tuple[WireLog, ...] = ()
    payload: msgspec.Raw | UnsetType = UNSET
    result: msgspec.Raw | UnsetType = UNSET
    deadline: str | None = None
    concurrency: dict[str, Any] | None = None
    queue_policy: dict[str, Any] | None = None
    timestamp: str = ""
    headrace: Private | UnsetType = UNSET


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Wire).decode
_EVENTS = {
    str(event): event for event in EventType if event is not EventType.STALE_COMPLETION_IGNORED
} | {"staleCompletionIgnored": EventType.STALE_COMPLETION_IGNORED}
_SPELLED = {event: text for text, event in _EVENTS.items()}


class Letter(Struct, frozen=True, gc=False):
    """A message of a job, read."""

    seq: int
    wire: Wire
    private: Private
    happened: EventType | None
    """What the journal tells; None where nothing happened."""

    @property
    def removes(self) -> bool:
        return self.wire.state is None

    @property
    def creates(self) -> bool:
        return self.happened is EventType.CREATED

    @property
    def at(self) -> int:
        """When it was written, by the writer's clock."""
        return milliseconds(self.wire.timestamp)

    def payload(self) -> msgspec.Raw:
        """The payload; only `created` has one."""
        payload = self.wire.payload
        return _NULL if payload is UNSET else msgspec.Raw(bytes(payload))

    def spec(self) -> NewJob:
        """What was enqueued; only `created` knows it."""
        wire, private = self.wire, self.private
        payload = self.payload()
        if private.spec is not None:
            return replace(private.spec, payload=payload)
        return NewJob(
            id=wire.job_id,
            service=wire.service,
            type=wire.job_type,
            queue=wire.queue,
            payload=payload,
            created_at=self.at,
            run_at=private.run_at,
            context=_context(wire.context),
        )

    def result(self) -> msgspec.Raw | None:
        """The job's result, if it has one."""
        if not self.private.has_result:
            return None
        wire = self.wire
        return msgspec.Raw(bytes(wire.result if wire.result is not UNSET else self.private.result))

    def job(self, spec: NewJob) -> Job:
        """The job as this message left it."""
        wire, private, own = self.wire, self.private, self.seq
        assert wire.state is not None
        assert wire.tries is not None
        assert wire.max_tries is not None
        event = private.event or self.happened
        assert event
        return Job(
            spec=spec,
            seq=_absolute(private.seq, own),
            version=_absolute(private.version, own),
            state=wire.state,
            event=event,
            queue=wire.queue,
            type=wire.job_type,
            priority=private.priority,
            max_tries=wire.max_tries,
            run_at=private.run_at,
            updated_at=self.at if private.updated_at is None else private.updated_at,
            stage=private.stage,
            expires_at=private.expires_at,
            deadline=private.deadline,
            tries=wire.tries,
            token=_absolute(private.token, own),
            worker=private.worker,
            lease_until=private.lease_until,
            detached=private.detached,
            cancelling=private.cancelling,
            waiting_on=private.waiting_on,
            started_at=private.started_at,
            finished_at=private.finished_at,
            result=self.result(),
            error=private.error,
            progress=private.progress,
        )

    def logs(self) -> list[LogEntry]:
        """What was logged just now."""
        return [
            LogEntry(milliseconds(entry.timestamp), entry.level, entry.message)
            for entry in self.wire.logs
        ]

    def event(self) -> Event | None:
        """The journal's entry."""
        if self.happened is None or self.removes:
            return None
        wire, private, at = self.wire, self.private, self.at
        assert wire.state is not None
        slot = private.slot
        if slot and slot.token:
            slot = replace(slot, token=_absolute(slot.token, self.seq))
        delayed = wire.state in CLAIMABLE and private.run_at > at
        return Event(
            seq=self.seq,
            at=at,
            job_id=wire.job_id,
            service=wire.service,
            queue=wire.queue,
            type=wire.job_type,
            event=self.happened,
            state=wire.state,
            previous=wire.previous_state,
            tries=wire.tries or 0,
            max_tries=wire.max_tries or 0,
            context=_context(wire.context),
            worker=private.by or private.worker,
            error=wire.error,
            reason=wire.reason,
            progress=wire.progress,
            logs=tuple(self.logs()),
            deadline=private.deadline,
            run_at=private.run_at if delayed else None,
            slot=slot,
            policy=private.policy,
        )


def read(seq: int, payload: bytes) -> Letter:
    """Reads a stored message."""
    found = _decode(payload)
    private = found.headrace if found.headrace is not UNSET else Private()
    return Letter(seq, found, private, _EVENTS.get(found.event_type))


def tells(event_type: str) -> bool:
    """Whether the journal tells of it."""
    return event_type in _EVENTS


def removed(job_id: str) -> bytes:
    """The message of a job that was deleted."""
    return _encode(Wire(job_id=job_id, event_type=layout.REMOVED))


def written(
    job: Job,
    distance: Callable[[int], int],
    *,
    event: Event | None,
    error: TryError | None = None,
    clears: bool = False,
    told: bool = False,
    sure: bool = False,
    kind: str = layout.PLACED,
) -> bytes:
    """The message of a batch: how the job stands, and the event if something happened. `distance`
    spells sequences that are not known yet."""
    if event is None:
        return _encode(
            Wire(
                job_id=job.spec.id,
                service=job.spec.service,
                queue=job.queue,
                job_type=job.type,
                event_type=kind,
                state=job.state,
                tries=job.tries,
                max_tries=job.max_tries,
                timestamp=rfc3339(job.updated_at),
                headrace=_private(job, distance, None, told=told),
            )
        )
    creates = event.event is EventType.CREATED
    completes = event.event is EventType.COMPLETED
    spec = job.spec
    return _encode(
        Wire(
            job_id=spec.id,
            context=_wire_context(event.context),
            service=spec.service,
            queue=event.queue,
            job_type=event.type,
            event_type=_SPELLED[event.event],
            state=event.state,
            previous_state=event.previous,
            tries=event.tries,
            max_tries=event.max_tries,
            error=event.error,
            reason=event.reason,
            progress=event.progress,
            logs=tuple(WireLog(rfc3339(e.at), e.level, e.message) for e in event.logs),
            payload=spec.payload if creates else UNSET,
            result=(job.result or _NULL) if completes else UNSET,
            deadline=rfc3339(event.deadline) if event.deadline else None,
            concurrency=_concurrency(event.slot, event.event, event.at, event.worker),
            queue_policy=wire_policy(event.policy) if event.policy else None,
            timestamp=rfc3339(event.at),
            headrace=_private(job, distance, event, error, clears, told, sure),
        )
    )


def trace(context: Context) -> bytes:
    """The header lines of an event, for whoever follows a request or a trace."""
    state = f"tracestate: {context.tracestate}\r\n" if context.tracestate else ""
    text = f"request-id: {context.request_id}\r\ntraceparent: {context.traceparent}\r\n{state}"
    return text.encode()


def created(job: Job) -> bytes:
    """The message of a new job that is stored on its own."""
    spec = job.spec
    return _plainly(
        job,
        None,
        Private(
            run_at=job.run_at,
            priority=job.priority,
            stage=job.stage,
            spec=None if _told_by(job, job.updated_at) else replace(spec, payload=_NULL),
        ),
        payload=spec.payload,
    )


def tells_all(job: Job) -> bool:
    """Whether there is nothing to a job that `started` and `completed` leave out."""
    return (
        job.seq < PROVISIONAL
        and job.token < PROVISIONAL
        and job.deadline is None
        and job.expires_at is None
        and job.error is None
        and job.result is None
        and job.progress is None
        and job.cancelling is None
        and not job.detached
        and not job.waiting_on
    )


def started(job: Job, previous: State) -> bytes:
    """The message of a job's start, whose sequence is its token."""
    key = job.spec.key
    return _plainly(
        job,
        previous,
        Private(
            seq=job.seq,
            token=_OWN,
            run_at=job.run_at,
            priority=job.priority,
            worker=job.worker,
            lease_until=job.lease_until,
            started_at=job.started_at,
            slot=Slot(key.name, key.hash, _OWN, job.lease_until) if key else None,
        ),
        job.worker,
    )


def completed(job: Job, worker: str | None) -> bytes:
    """The message of a job's completion by a worker."""
    key = job.spec.key
    return _plainly(
        job,
        State.ACTIVE,
        Private(
            seq=job.seq,
            token=job.token,
            run_at=job.run_at,
            priority=job.priority,
            started_at=job.started_at,
            finished_at=job.finished_at,
            has_result=job.result is not None,
            by=worker,
            slot=Slot(key.name, key.hash) if key else None,
        ),
        worker,
        result=job.result or _NULL,
    )


def _plainly(
    job: Job,
    previous: State | None,
    private: Private,
    worker: str | None = None,
    payload: msgspec.Raw | UnsetType = UNSET,
    result: msgspec.Raw | UnsetType = UNSET,
) -> bytes:
    """What `written` would write, where most of a job is as it was made."""
    spec = job.spec
    return _encode(
        Wire(
            job_id=spec.id,
            context=_wire_context(spec.context),
            service=spec.service,
            queue=job.queue,
            job_type=job.type,
            event_type=job.event,
            state=job.state,
            previous_state=previous,
            tries=job.tries,
            max_tries=job.max_tries,
            payload=payload,
            result=result,
            concurrency=_concurrency(private.slot, job.event, job.updated_at, worker)
            if private.slot
            else None,
            timestamp=rfc3339(job.updated_at),
            headrace=private,
        )
    )


def _private(
    job: Job,
    distance: Callable[[int], int],
    event: Event | None,
    error: TryError | None = None,
    clears: bool = False,
    told: bool = False,
    sure: bool = False,
) -> Private:
    happened = event.event if event else None
    slot = event.slot if event else None
    if slot and slot.token:
        slot = replace(slot, token=distance(slot.token))
    worker = event.worker if event else None
    at = event.at if event else job.updated_at
    creates, completes = happened is EventType.CREATED, happened is EventType.COMPLETED
    return Private(
        seq=distance(job.seq),
        version=distance(job.version),
        token=distance(job.token),
        event=None if job.event is happened else job.event,
        updated_at=None if job.updated_at == at else job.updated_at,
        run_at=job.run_at,
        priority=job.priority,
        stage=job.stage,
        expires_at=job.expires_at,
        deadline=job.deadline,
        worker=job.worker,
        lease_until=job.lease_until,
        detached=job.detached,
        cancelling=job.cancelling,
        waiting_on=job.waiting_on,
        started_at=job.started_at,
        finished_at=job.finished_at,
        error=job.error,
        progress=job.progress,
        has_result=job.result is not None,
        result=_NULL if completes or job.result is None else job.result,
        spec=replace(job.spec, payload=_NULL) if creates and not _told_by(job, at) else None,
        by=worker if worker != job.worker else None,
        slot=slot,
        policy=event.policy if event else None,
        failed=error,
        clears=clears,
        told=told,
        sure=sure,
    )


def _told_by(job: Job, at: int) -> bool:
    """Whether the event of its creation tells all that was enqueued."""
    spec = job.spec
    return (
        spec.created_at == at
        and spec.run_at == job.run_at
        and spec.queue == job.queue
        and spec.type == job.type
        and spec.priority is None
        and spec.max_tries is None
        and spec.retry is None
        and spec.timeout is None
        and spec.deadline is None
        and spec.ttl is None
        and spec.dedup is None
        and spec.key is None
        and not spec.lifo
        and not spec.depends_on
        and not spec.metadata
        and not spec.tags
        and spec.on_parent_failure is OnParentFailure.UNREACHABLE
    )


def _concurrency(
    slot: Slot | None, event: EventType, at: int, worker: str | None
) -> dict[str, Any] | None:
    """The token of a start is its own sequence, which only the stream can tell."""
    if slot is None:
        return None
    if slot.token and not 0 < slot.token < PROVISIONAL:
        slot = replace(slot, token=None)
    return wire_slot(slot, event, at, worker)


def _wire_context(context: Context) -> WireContext:
    return WireContext(
        context.request_id, context.trace_id, context.traceparent, context.tracestate
    )


def _context(context: WireContext | None) -> Context:
    assert context
    return Context(context.request_id, context.traceparent, context.tracestate)


def milliseconds(stamp: str) -> int:
    """The time of a stamp."""
    return _second(stamp[:-5]) + int(stamp[-4:-1])


@lru_cache(maxsize=256)
def _second(stamp: str) -> int:
    return int(datetime.fromisoformat(stamp + "+00:00").timestamp()) * 1000


def _absolute(seq: int, own: int) -> int:
    return own + seq + 1 if seq < 0 else seq
