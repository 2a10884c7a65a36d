"""Jobs for tests of core: plain records, no engine."""

from __future__ import annotations

from typing import Any

import msgspec

from headrace.core.model import Context, Job, NewJob
from headrace.core.states import EventType, State

NOW = 1_700_000_000_000
CONTEXT = Context("r1", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")


def new(id: str = "a", **fields: Any) -> NewJob:
    chosen: dict[str, Any] = {
        "service": "svc",
        "type": "work",
        "queue": "q",
        "payload": msgspec.Raw(b"{}"),
        "created_at": NOW,
        "run_at": NOW,
        "context": CONTEXT,
    }
    return NewJob(id=id, **(chosen | fields))


def job(id: str = "a", spec: NewJob | None = None, **fields: Any) -> Job:
    spec = spec or new(id)
    chosen: dict[str, Any] = {
        "seq": 1,
        "version": 1,
        "state": State.PENDING,
        "event": EventType.CREATED,
        "queue": spec.queue,
        "type": spec.type,
        "priority": 5,
        "max_tries": 3,
        "run_at": spec.run_at,
        "updated_at": NOW,
    }
    return Job(spec=spec, **(chosen | fields))


def running(spec: NewJob | None = None, **fields: Any) -> Job:
    chosen: dict[str, Any] = {
        "state": State.ACTIVE,
        "event": EventType.STARTED,
        "version": 7,
        "token": 7,
        "tries": 1,
        "worker": "w1",
        "lease_until": NOW + 30_000,
        "started_at": NOW,
    }
    return job(spec=spec, **(chosen | fields))
