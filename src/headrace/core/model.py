"""The records: a job as it was enqueued, a job as it stands, and their parts.

Times are whole milliseconds since the epoch (UTC); durations are whole milliseconds.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec
from msgspec import Struct

from headrace.core.retry import RetryPolicy
from headrace.core.states import CLAIMABLE, EventType, State

JSON = Any
"""A decoded JSON value."""

MAX_PAYLOAD = 1024 * 1024
MAX_RESULT = 1024 * 1024
MAX_METADATA = 64 * 1024
MAX_LOGS = 1000
MAX_TRACEBACK = 16 * 1024
MAX_MESSAGE = 4 * 1024
DEFAULT_PRIORITY = 5
DEFAULT_MAX_TRIES = 10
DEFAULT_LEASE = 30_000


class OnParentFailure(StrEnum):
    """What becomes of a job when a parent ends without success."""

    UNREACHABLE = "unreachable"
    WAIT = "wait"
    RUN = "run"


class WhenFull(StrEnum):
    """What becomes of a new job when its key holds `max_queued` jobs."""

    REJECT = "reject"
    COALESCE = "coalesce"
    REPLACE_OLDEST = "replace-oldest"


class OnLost(StrEnum):
    """What becomes of a keyed job whose lease ran out.

    `retry` runs it again, like any other job. `fail-stale` ends it `stale` when another job of
    its key is waiting (it was superseded), and runs it again when none is. `block` holds the
    slot until the owner comes back or an operator releases it.
    """

    RETRY = "retry"
    FAIL_STALE = "fail-stale"
    BLOCK = "block"


class DedupMode(StrEnum):
    """How long a dedup key is held, and who wins.

    `simple` until the owner has ended; `throttle` for a window that outlives the owner;
    `debounce` replaces an owner that has not started; `keep_last` also lets one successor wait
    behind a running owner.
    """

    SIMPLE = "simple"
    THROTTLE = "throttle"
    DEBOUNCE = "debounce"
    KEEP_LAST = "keep_last"


class Stage(StrEnum):
    """Where a claimable job stands; `""` for every other job."""

    NONE = ""
    READY = "ready"
    DELAYED = "delayed"
    PARKED = "parked"


class Context(Struct, frozen=True, gc=False, omit_defaults=True):
    """Who asked for the job, for tracing. Stable over the job's life, on every event."""

    request_id: str
    traceparent: str
    tracestate: str | None = None

    @property
    def trace_id(self) -> str:
        return self.traceparent[3:35]


class Dedup(Struct, frozen=True, gc=False, omit_defaults=True):
    """A dedup key and its rule."""

    key: str
    mode: DedupMode = DedupMode.SIMPLE
    window: int = 0
    extend: bool = False


class KeyLimit(Struct, frozen=True, gc=False, omit_defaults=True):
    """A concurrency key as bound to one job: `name` for people, `hash` for the engine."""

    name: str
    hash: str
    max_active: int = 1
    max_queued: int | None = None
    when_full: WhenFull = WhenFull.REJECT
    on_lost: OnLost = OnLost.RETRY


class TryError(Struct, frozen=True, gc=False, omit_defaults=True):
    """Why one try did not succeed."""

    at: int
    number: int
    type: str
    message: str
    traceback: str = ""


class Progress(Struct, frozen=True, gc=False, omit_defaults=True):
    """How far a handler says it is."""

    step: str | None = None
    message: str | None = None
    current: float | None = None
    total: float | None = None


class LogEntry(Struct, frozen=True, gc=False):
    """A line that a handler logged on its job."""

    at: int
    level: str
    message: str


class NewJob(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """A job as it was enqueued. Never changes; what happens to it is in `Job`."""

    id: str
    service: str
    type: str
    queue: str
    payload: msgspec.Raw
    created_at: int
    run_at: int
    context: Context
    priority: int | None = None
    lifo: bool = False
    max_tries: int | None = None
    retry: RetryPolicy | None = None
    timeout: int | None = None
    deadline: int | None = None
    ttl: int | None = None
    dedup: Dedup | None = None
    key: KeyLimit | None = None
    depends_on: tuple[str, ...] = ()
    on_parent_failure: OnParentFailure = OnParentFailure.UNREACHABLE
    metadata: dict[str, JSON] = {}
    tags: tuple[str, ...] = ()


def position(run_at: int, seq: int, lifo: bool) -> int:
    """A place within queue and priority: by due time, then by order of creation.

    It fits 64 bits whatever the due time: those after the year 2248 are all the same here.
    """
    place = min(run_at, (1 << 43) - 1) << 20 | seq & 0xFFFFF
    return -place if lifo else place


class Job(Struct, frozen=True, gc=False, kw_only=True):
    """A job as it stands.

    `version` is the sequence of its newest journal entry: a snapshot is exact as long as the
    stored version is the same. `token` is the sequence of its newest `started`: it grows with
    every claim and fences whoever held the job before.
    """

    spec: NewJob
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
    result: msgspec.Raw | None = None
    error: TryError | None = None
    progress: Progress | None = None

    @property
    def id(self) -> str:
        return self.spec.id

    @property
    def service(self) -> str:
        return self.spec.service

    @property
    def key(self) -> KeyLimit | None:
        return self.spec.key

    @property
    def position(self) -> int:
        """The place within queue and priority."""
        return position(self.run_at, self.seq, self.spec.lifo)

    def shown(self, now: int, paused: bool = False) -> str:
        """The state as people see it: stored, or one of the derived ones."""
        if self.state is State.ACTIVE:
            return "detached" if self.detached else self.state
        if self.state not in CLAIMABLE:
            return self.state
        if self.state is State.PENDING and self.run_at > now:
            return "scheduled"
        if self.stage is Stage.PARKED:
            return "parked"
        if paused:
            return "paused"
        return self.state


class Parent(Struct, frozen=True, gc=False):
    """A parent as its dependent sees it; the result survives the parent's pruning."""

    id: str
    state: State | None
    result: msgspec.Raw | None


class KeyStatus(Struct, frozen=True, gc=False):
    """One concurrency key, looked into."""

    service: str
    name: str
    hash: str
    active: tuple[Job, ...]
    queued: int
    next: tuple[Job, ...]
    takeovers: int
    heartbeats: tuple[int | None, ...] = ()
    """When the worker of each active job last renewed its leases; None where it is gone, or the
    job is detached."""


class Counted(Struct, frozen=True, gc=False):
    """How many jobs of a queue are in a state."""

    service: str
    queue: str
    state: State
    jobs: int


class Filter(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """Which jobs. Empty fields do not restrict."""

    ids: tuple[str, ...] = ()
    service: str | None = None
    queue: str | None = None
    type: str | None = None
    states: frozenset[State] = frozenset()
    key: str | None = None
    tag: str | None = None
    text: str | None = None
    created_from: int | None = None
    created_until: int | None = None
    expires_until: int | None = None
    lease_until: int | None = None
    worker: str | None = None
    parent: str | None = None


class Page(Struct, frozen=True, gc=False):
    """Jobs, newest first, and the cursor of what follows; None at the end.

    A page may hold fewer jobs than asked for though more follow: a filter that no index serves
    looks at a bounded number of jobs per page.
    """

    jobs: tuple[Job, ...]
    cursor: str | None = None


class Document(Struct, frozen=True, gc=False):
    """A small document: queue settings, schedules, presence. `revision` grows with every put."""

    kind: str
    name: str
    body: msgspec.Raw
    revision: int
    expires_at: int | None = None
