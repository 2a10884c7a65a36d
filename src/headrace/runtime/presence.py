"""Worker presence: a document that fades. For people only; it never decides ownership."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from headrace.engine.protocol import WORKER_KIND, Put

FRESH_FOR = 3
"""A worker is shown for so many lease lengths after its last beat."""


class Presence(Struct, frozen=True, kw_only=True):
    """What a worker says of itself."""

    id: str
    service: str
    queues: tuple[str, ...]
    concurrency: int
    host: str
    pid: int
    version: str
    started_at: int
    beat_at: int
    jobs: tuple[str, ...] = ()
    stopping: bool = False


def beat(presence: Presence, lease: int) -> Put:
    """The document of a worker that lives."""
    body = msgspec.Raw(msgspec.json.encode(presence))
    return Put(WORKER_KIND, presence.id, body, expires_at=presence.beat_at + FRESH_FOR * lease)


def gone(worker: str) -> Put:
    """Takes the document of a worker that leaves away."""
    return Put(WORKER_KIND, worker, None)
