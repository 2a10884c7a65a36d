"""The journal entry on the wire: Trellis's field names, exactly."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.event import Event, Policy, Slot, rfc3339, wire
from headrace.core.model import Context, LogEntry, Progress
from headrace.core.states import EventType, State
from tests.core.jobs import CONTEXT, NOW

AT = "2023-11-14T22:13:20.000Z"
BARE = Event(
    at=NOW,
    job_id="j1",
    service="svc",
    queue="q",
    type="work",
    event=EventType.CREATED,
    state=State.PENDING,
    max_tries=10,
    context=CONTEXT,
)
FULL = Event(
    seq=9,
    at=NOW,
    job_id="j1",
    service="svc",
    queue="q",
    type="work",
    event=EventType.RETRY,
    state=State.RETRY,
    previous=State.ACTIVE,
    tries=2,
    max_tries=10,
    context=Context("r1", CONTEXT.traceparent, "v=1"),
    worker="w1",
    error="ValueError: boom",
    reason="why",
    progress=Progress("s", "m", 0, 2),
    logs=(LogEntry(NOW, "info", "hello"),),
    deadline=NOW,
    slot=Slot("k", "h", 7, NOW, 2),
    policy=Policy("replaced", "reason", "e", "r"),
)


def test_bare_event_has_only_what_is_there() -> None:
    assert wire(BARE) == {
        "jobId": "j1",
        "context": {
            "requestId": "r1",
            "traceId": "0af7651916cd43dd8448eb211c80319c",
            "traceparent": CONTEXT.traceparent,
        },
        "service": "svc",
        "queue": "q",
        "jobType": "work",
        "eventType": "created",
        "state": "pending",
        "tries": 0,
        "maxTries": 10,
        "timestamp": AT,
    }


def test_full_event_has_every_field_by_its_name() -> None:
    assert wire(FULL, msgspec.Raw(b"{}"), msgspec.Raw(b"1")) == {
        "jobId": "j1",
        "context": {
            "requestId": "r1",
            "traceId": "0af7651916cd43dd8448eb211c80319c",
            "traceparent": CONTEXT.traceparent,
            "tracestate": "v=1",
        },
        "service": "svc",
        "queue": "q",
        "jobType": "work",
        "eventType": "retry",
        "state": "retry",
        "previousState": "active",
        "tries": 2,
        "maxTries": 10,
        "error": "ValueError: boom",
        "reason": "why",
        "progress": {"step": "s", "message": "m", "current": 0, "total": 2},
        "logs": [{"timestamp": AT, "level": "info", "message": "hello"}],
        "payload": msgspec.Raw(b"{}"),
        "result": msgspec.Raw(b"1"),
        "deadline": AT,
        "concurrency": {
            "key": "k",
            "keyHash": "h",
            "slotToken": "7",
            "leaseExpiresAt": AT,
            "staleTakeoverCount": 2,
            "instanceId": "w1",
        },
        "queuePolicy": {
            "outcome": "replaced",
            "reason": "reason",
            "existingJobId": "e",
            "replacedJobId": "r",
        },
        "timestamp": AT,
    }


def test_wire_shape_is_json() -> None:
    text = msgspec.json.encode(wire(FULL, msgspec.Raw(b'{"n":1}')))
    assert msgspec.json.decode(text)["payload"] == {"n": 1}


def test_ignored_completion_has_trellis_s_spelling() -> None:
    late = msgspec.structs.replace(BARE, event=EventType.STALE_COMPLETION_IGNORED)
    assert wire(late)["eventType"] == "staleCompletionIgnored"


def test_every_other_event_keeps_its_name() -> None:
    for event in set(EventType) - {EventType.STALE_COMPLETION_IGNORED}:
        assert wire(msgspec.structs.replace(BARE, event=event))["eventType"] == event.value


def test_event_survives_storage() -> None:
    assert msgspec.json.decode(msgspec.json.encode(FULL), type=Event) == FULL


@given(st.integers(0, 253_402_300_799_999))
def test_time_keeps_every_millisecond(at: int) -> None:
    text = rfc3339(at)
    assert text.endswith("Z")
    moment = datetime.fromisoformat(text)
    assert (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1) == at
