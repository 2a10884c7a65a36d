"""The engine contract.

Every operation works in batches, is atomic, and can be repeated after a lost answer. Time is an
argument: an engine never reads a clock. Operations may be awaited from any event loop; `twin`
gives a handle for another thread's loop. They are coroutines or whatever else can be awaited.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from enum import StrEnum
from typing import Protocol, Self, runtime_checkable

import msgspec
from msgspec import Struct

from headrace.core.admission import Verdict
from headrace.core.change import Answer, Change
from headrace.core.claims import Claimed, ClaimRequest, Lease, Renewal
from headrace.core.event import Event
from headrace.core.model import (
    Counted,
    Document,
    Filter,
    Job,
    KeyStatus,
    LogEntry,
    NewJob,
    Page,
    Parent,
    TryError,
)
from headrace.core.retention import Cutoff
from headrace.core.states import EventType


class Entry(Struct, frozen=True):
    """A journal entry with what the job still holds: payload for `created`, result for
    `completed`."""

    event: Event
    payload: msgspec.Raw | None = None
    result: msgspec.Raw | None = None

    @classmethod
    def of(cls, event: Event, job: Job | None) -> Entry:
        """The entry of an event; `job` is None where it is gone."""
        payload = job.spec.payload if job and event.event is EventType.CREATED else None
        result = job.result if job and event.event is EventType.COMPLETED else None
        return cls(event, payload, result)


class Details(Struct, frozen=True):
    """A job with what is kept beside it."""

    job: Job
    errors: tuple[TryError, ...] = ()
    logs: tuple[LogEntry, ...] = ()
    parents: tuple[Parent, ...] = ()


class Put(Struct, frozen=True):
    """A document to write. `expected` is the revision it must have now: 0 for none, None for any.
    A body of None deletes it."""

    kind: str
    name: str
    body: msgspec.Raw | None
    expected: int | None = None
    expires_at: int | None = None


class Prune(Struct, frozen=True, kw_only=True):
    """What may be deleted, at most `limit` rows of each kind."""

    now: int
    cutoffs: tuple[Cutoff, ...]
    journal_before: int
    limit: int = 500


class Bell(Protocol):
    """Rings when something happened on the topics it listens to, also between two waits."""

    async def wait(self, timeout: float | None) -> bool:
        """Returns True at once if it rang since the last wait, or as soon as it does; False
        after `timeout` seconds."""
        ...

    def tell(self, hook: Callable[[], None]) -> None:
        """Has the hook called from now on whenever it rings, in the event loop in which it was
        made; nobody waits for such a bell."""
        ...

    def close(self) -> None: ...


class Engine(Protocol):
    """What every engine does."""

    @property
    def url(self) -> str: ...

    @property
    def overlap(self) -> int:
        """How many claims a worker should have under way at a time: more than one where the store
        works beside this process, so that neither waits for the other. Only where it is one is a
        claim with changes surely a single commit."""
        ...

    async def open(self) -> None:
        """Connects, creating or migrating the store where needed. Opening twice is harmless."""
        ...

    async def close(self) -> None:
        """Commits what was accepted and lets go of the store."""
        ...

    def twin(self) -> Self:
        """A handle on the same store for use in another thread's event loop."""
        ...

    def insert(
        self, groups: Sequence[Sequence[NewJob]], now: int
    ) -> Awaitable[list[tuple[Verdict, ...]]]:
        """Adds jobs with their dedup keys, slots, edges and first state. A group is taken whole
        or not at all; the answers stand for the jobs one by one."""
        ...

    def claim(self, request: ClaimRequest, changes: Sequence[Change] = ()) -> Awaitable[Claimed]:
        """Hands out due jobs in order, each with a new lease, its try counted, its slot taken,
        pauses and caps respected. First it makes the changes, as `apply` does: whatever room they
        make is there for the claim."""
        ...

    def apply(self, changes: Sequence[Change]) -> Awaitable[list[Answer]]:
        """Makes guarded changes. Each is atomic with its effects: journal, slot, edges, dedup
        key, discard. Refused ones change nothing and say why."""
        ...

    def extend(self, leases: Sequence[Lease], until: int) -> Awaitable[list[Renewal]]:
        """Renews leases; says which are held and which were asked to cancel."""
        ...

    def listen(self, topics: frozenset[str]) -> Bell:
        """A bell for the current event loop."""
        ...

    def prune(self, order: Prune) -> Awaitable[int]:
        """Deletes what the cut-offs allow; returns how many rows went, 0 when nothing is left."""
        ...

    def get(self, ids: Sequence[str]) -> Awaitable[list[Details | None]]:
        """The jobs with these ids, in order."""
        ...

    def find(self, filter: Filter, cursor: str | None = None, limit: int = 100) -> Awaitable[Page]:
        """Jobs, newest first, by pages."""
        ...

    def count(self, service: str | None = None) -> Awaitable[list[Counted]]:
        """Jobs by queue and state; only what is there."""
        ...

    def journal(
        self, after: int, limit: int = 1000, job_id: str | None = None
    ) -> Awaitable[list[Entry]]:
        """Entries with a sequence above `after`, in order."""
        ...

    def put(self, puts: Sequence[Put], now: int) -> Awaitable[list[Document | None]]:
        """Writes documents; None for each whose expected revision did not hold."""
        ...

    def scan(self, kind: str, now: int) -> Awaitable[list[Document]]:
        """The documents of a kind that have not expired, by name."""
        ...

    def key(self, service: str, hash: str) -> Awaitable[KeyStatus | None]:
        """One concurrency key, looked into; None if no living job has it."""
        ...


class Health(StrEnum):
    """How a check came out."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


class Check(Struct, frozen=True):
    """One thing that was looked at, and what to do about it where it is not well."""

    name: str
    health: Health
    message: str
    remedy: str = ""


class OldestDue(Struct, frozen=True):
    """Since when the job that waits longest in a queue could have started."""

    service: str
    queue: str
    since: int


class Checkup(Struct, frozen=True):
    """What an engine knows of its own health, and which jobs wait longest."""

    checks: tuple[Check, ...] = ()
    oldest: tuple[OldestDue, ...] = ()


@runtime_checkable
class Examinable(Protocol):
    """An engine that can be looked into by `headrace doctor`."""

    def checkup(self, now: int) -> Awaitable[Checkup]:
        """Looks at the store; may take a while, and changes nothing."""
        ...


# A topic is the id of a job, which rings with every change of it, or a path of its kind and name:
# `/` is in no name, so they cannot be confused.


def job_topic(job_id: str) -> str:
    """Rings with every change of the job."""
    return job_id


def work_topic(service: str, queue: str) -> str:
    """Rings when a job of the queue may be claimable, now or at a known later time."""
    return f"/work/{service}/{queue}"


def worker_topic(worker: str) -> str:
    """Rings when a job that the worker runs was asked to cancel or was taken away."""
    return f"/worker/{worker}"


JOURNAL_TOPIC = "/journal"
"""Rings with every commit."""

DOCUMENTS_TOPIC = "/documents"
"""Rings when a document was put."""

QUEUE_KIND = "queue"
WORKER_KIND = "worker"


def queue_document(service: str, queue: str) -> str:
    """The name of a queue's settings document. `/` is in no name, so it cannot be ambiguous."""
    return f"{service}/{queue}"
