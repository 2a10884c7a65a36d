"""The journal entry, and its shape on the wire."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

import msgspec
from msgspec import Struct

from headrace.core.model import Context, LogEntry, Progress
from headrace.core.states import EventType, State


class Policy(Struct, frozen=True, gc=False, omit_defaults=True):
    """What admission made of a new job."""

    outcome: str
    reason: str | None = None
    existing_id: str | None = None
    replaced_id: str | None = None


class Slot(Struct, frozen=True, gc=False, omit_defaults=True):
    """The concurrency key of the job, as the event saw it."""

    name: str
    hash: str
    token: int | None = None
    lease_until: int | None = None
    takeovers: int | None = None


class Event(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """One change of one job, as the journal keeps it. Payload and result stay with the job."""

    seq: int = 0
    at: int
    job_id: str
    service: str
    queue: str
    type: str
    event: EventType
    state: State
    previous: State | None = None
    tries: int = 0
    max_tries: int = 0
    context: Context
    worker: str | None = None
    error: str | None = None
    reason: str | None = None
    progress: Progress | None = None
    logs: tuple[LogEntry, ...] = ()
    deadline: int | None = None
    run_at: int | None = None
    slot: Slot | None = None
    policy: Policy | None = None


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@lru_cache(maxsize=256)
def rfc3339(at: int) -> str:
    """Milliseconds since the epoch as RFC 3339 in UTC; many events of a batch have the same."""
    second, millisecond = divmod(at, 1000)
    return f"{_second(second)}.{millisecond:03}Z"


@lru_cache(maxsize=256)
def _second(second: int) -> str:
    return (_EPOCH + timedelta(seconds=second)).replace(tzinfo=None).isoformat()


_CAMEL = {EventType.STALE_COMPLETION_IGNORED: "staleCompletionIgnored"}


def wire(
    event: Event, payload: msgspec.Raw | None = None, result: msgspec.Raw | None = None
) -> dict[str, Any]:
    """The event in the shape that other languages read."""
    context = {
        "requestId": event.context.request_id,
        "traceId": event.context.trace_id,
        "traceparent": event.context.traceparent,
        "tracestate": event.context.tracestate,
    }
    shape: dict[str, Any] = {
        "jobId": event.job_id,
        "context": _present(context),
        "service": event.service,
        "queue": event.queue,
        "jobType": event.type,
        "eventType": _CAMEL.get(event.event, str(event.event)),
        "state": str(event.state),
        "previousState": event.previous and str(event.previous),
        "tries": event.tries,
        "maxTries": event.max_tries,
        "error": event.error,
        "reason": event.reason,
        "progress": event.progress and _present(msgspec.to_builtins(event.progress)),
        "logs": [
            {"timestamp": rfc3339(entry.at), "level": entry.level, "message": entry.message}
            for entry in event.logs
        ]
        or None,
        "payload": payload,
        "result": result,
        "deadline": event.deadline and rfc3339(event.deadline),
        "concurrency": event.slot and wire_slot(event.slot, event.event, event.at, event.worker),
        "queuePolicy": event.policy and wire_policy(event.policy),
        "timestamp": rfc3339(event.at),
    }
    return _present(shape)


def wire_slot(slot: Slot, event: EventType, at: int, worker: str | None) -> dict[str, Any]:
    """A slot of a key in that shape: what happened to its job, when, and who did it."""
    shape: dict[str, Any] = {"key": slot.name, "keyHash": slot.hash}
    if slot.token is not None:
        shape["slotToken"] = str(slot.token)
    if event is EventType.STARTED:
        shape["heartbeatAt"] = rfc3339(at)
    if slot.lease_until is not None:
        shape["leaseExpiresAt"] = rfc3339(slot.lease_until)
    if slot.takeovers is not None:
        shape["staleTakeoverCount"] = slot.takeovers
    if worker is not None:
        shape["instanceId"] = worker
    return shape


def wire_policy(policy: Policy) -> dict[str, Any]:
    """What admission made of a job, in that shape."""
    return _present(
        {
            "outcome": policy.outcome,
            "reason": policy.reason,
            "existingJobId": policy.existing_id,
            "replacedJobId": policy.replaced_id,
        }
    )


def _present(shape: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in shape.items() if value is not None}
