"""Records: the primitive reads and writes of a store that has transactions; see ledger.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import msgspec
from msgspec import Struct

from headrace.core.admission import Holder
from headrace.core.change import Answer, Change, Write
from headrace.core.claims import ClaimRequest
from headrace.core.edges import EdgeState
from headrace.core.event import Event, Policy, Slot
from headrace.core.model import Job, LogEntry, OnParentFailure, TryError
from headrace.core.queue import QueueSettings
from headrace.core.states import CLAIMABLE, EventType, State


class KeyRow(Struct, frozen=True, gc=False):
    """What is counted of a concurrency key."""

    active: int = 0
    queued: int = 0
    takeovers: int = 0


class Happening(NamedTuple):
    """A journal entry before it is spelled out: the job before and after, and what was written.
    Its sequence is the version of `new`."""

    old: Job | None
    new: Job
    write: Write | None = None
    policy: Policy | None = None
    takeovers: int | None = None

    def event(self) -> Event:
        """The entry, spelled out."""
        old, new, write, policy, takeovers = self
        key = new.spec.key
        slot = None
        if key:
            token = new.token if new.state is State.ACTIVE else None
            slot = Slot(key.name, key.hash, token, new.lease_until, takeovers)
        delayed = new.run_at if new.state in CLAIMABLE and new.run_at > new.updated_at else None
        return Event(
            seq=new.version,
            at=new.updated_at,
            job_id=new.id,
            service=new.service,
            queue=new.queue,
            type=new.type,
            event=write.event if write else EventType.CREATED,
            state=new.state,
            previous=old.state if old else None,
            tries=new.tries,
            max_tries=new.max_tries,
            context=new.spec.context,
            worker=new.worker or (old.worker if old else None),
            error=_error_text(write),
            reason=_reason(old, write),
            progress=write.progress or None if write else None,
            logs=write.logs if write else (),
            deadline=new.deadline,
            run_at=delayed,
            slot=slot,
            policy=policy,
        )


class Edge(Struct, frozen=True, gc=False):
    """A dependency, with the parent's result once it has ended."""

    parent_id: str
    child_id: str
    policy: OnParentFailure
    state: EdgeState = EdgeState.OPEN
    parent_state: State | None = None
    result: msgspec.Raw | None = None


class Records(Protocol):
    """The primitives of a store, within one transaction."""

    def next_seq(self) -> int: ...
    def job(self, job_id: str) -> Job | None: ...
    def current(self, snapshot: Job) -> Job | None:
        """The stored job; the snapshot itself where its version is still the newest."""
        ...

    def create(self, job: Job) -> None:
        """Adds a new job, with its entry in the journal, that concerns no other."""
        ...

    def save(self, old: Job | None, new: Job) -> None: ...
    def remove(self, job: Job) -> None:
        """Deletes the job and what is kept beside it, but not its journal entries nor the edges
        that its dependents have to it."""
        ...

    def record(self, entry: Happening) -> None:
        """Adds to the journal."""
        ...

    def add_error(self, job: Job, error: TryError) -> None: ...
    def add_logs(self, job: Job, entries: Sequence[LogEntry]) -> None: ...
    def clear_history(self, job: Job) -> None: ...
    def settings(self, service: str, queue: str) -> QueueSettings: ...
    def key(self, service: str, hash: str) -> KeyRow: ...
    def set_key(self, service: str, hash: str, row: KeyRow) -> None: ...
    def ready_ahead(self, job: Job) -> int:
        """How many other ready jobs of the same key and queue have the same or a better
        priority."""
        ...

    def parked(self, service: str, hash: str) -> list[Job]:
        """The first parked job of the key in each queue."""
        ...

    def first_of_key(self, service: str, hash: str, active: bool) -> str | None: ...
    def holder(self, service: str, key: str) -> Holder | None: ...
    def set_holder(self, service: str, key: str, holder: Holder | None) -> None: ...
    def edges_to(self, parent_id: str, state: EdgeState | None = None) -> list[Edge]:
        """The edges of the job's dependents, or those in one state. Where they are too many for one
        step, some of them: then `Ledger.resume` goes on, and nothing removes the job before."""
        ...

    def edges_from(self, child_id: str) -> list[Edge]: ...
    def set_edge(self, edge: Edge) -> None: ...
    def start(self, request: ClaimRequest, queue: str, room: int) -> list[Job]:
        """Starts the first jobs of a line in one go, as `claims.started` would, where none of
        them needs a closer look (a key that is full, a time to expire). May start none."""
        ...

    def finish(self, changes: Sequence[Change], first: int) -> list[Answer]:
        """Makes changes from the `first` on in one go, as long as they only complete a job whose
        end concerns no other (no dedup key, no dependent, nobody who waits for its key). May make
        none."""
        ...

    def ready(self, service: str, queue: str, limit: int) -> list[Job]: ...
    def due(self, service: str, queue: str, now: int, limit: int) -> list[Job]: ...
    def next_due(self, service: str, queue: str) -> int | None: ...
    def counted(self, service: str, queue: str, state: State) -> int: ...
    def oldest_waiting(self, service: str, queue: str) -> str | None: ...
    def arrival(self, service: str, queue: str) -> int:
        """How far the queue's rate limit is used up; see core.rate."""
        ...

    def set_arrival(self, service: str, queue: str, arrival: int) -> None: ...
    def undoable(self) -> Callable[[], None]:
        """Marks this point; the answer takes everything since back."""
        ...


def _reason(old: Job | None, write: Write | None) -> str | None:
    """The write's reason; a cancel that was asked for meanwhile has its own."""
    if write is None:
        return None
    if write.reason is None and write.event is EventType.CANCELLED and old:
        return old.cancelling
    return write.reason


def _error_text(write: Write | None) -> str | None:
    if write is None or not isinstance(write.error, TryError):
        return None
    return f"{write.error.type}: {write.error.message}"
