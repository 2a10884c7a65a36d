"""The parts of a transaction: what can be read, guarded and written as one, and what is drafted."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from headrace.core.event import Event
from headrace.core.model import Job, Stage, TryError, position
from headrace.core.queue import QueueSettings
from headrace.core.states import State
from headrace.engine.nats import layout as names
from headrace.engine.records import Edge, KeyRow

MEMBERS = 256
"""The most jobs of a key in its record."""


class Part(NamedTuple):
    """Something that can be read and written as one: what it is, and whose."""

    kind: str
    name: str
    of: str = ""


@lru_cache(maxsize=8192)
def job_part(job_id: str) -> Part:
    return Part("job", job_id)


@lru_cache(maxsize=8192)
def key_part(service: str, hash: str) -> Part:
    return Part("key", hash, service)


class Domain(Struct, frozen=True, gc=False):
    """A job with what is kept under its prefix. `last` is the sequence that guards it."""

    last: int = 0
    newest: int = 0
    """The sequence of the message that says how the job stands."""
    job: Job | None = None
    told: bool = False
    parents: dict[str, Edge] = {}
    children: tuple[str, ...] = ()


class Member(Struct, frozen=True, gc=False, array_like=True, omit_defaults=True):
    """A living job of a key."""

    queue: str
    priority: int
    run_at: int
    seq: int
    stage: Stage = Stage.NONE
    active: bool = False
    lifo: bool = False
    sure: int = 0
    """How many of its key may run, where it starts and ends without a word in the record."""

    @property
    def place(self) -> tuple[int, int]:
        return self.priority, position(self.run_at, self.seq, self.lifo)


class KeyRecord(Struct, frozen=True, gc=False, omit_defaults=True):
    """A concurrency key: what is counted of it, and its living jobs.

    A record is written with every change, so it must not grow: beyond some hundred jobs those
    that wait longest are noted one by one, and read again when there is room.
    """

    row: KeyRow = KeyRow()
    members: dict[str, Member] = {}
    beyond: int = 0
    """How many more living jobs there are."""
    taken: dict[int, int] = {}
    """Up to where the notes of each priority were read."""
    horizon: tuple[int, int] | None = None
    """The place from which on jobs are noted."""

    @property
    def empty(self) -> bool:
        """Whether it says no more than none at all."""
        return not self.members and self.row == KeyRow() and self.beyond <= 0

    @property
    def sure(self) -> list[str]:
        return [job_id for job_id, member in self.members.items() if member.sure]

    def has_room(self, more: int = 0, limit: int | None = None) -> bool:
        """Whether all that stand ready or run, as far as this tells, and so many `more` with this
        limit may run at the same time, so that none has to wait."""
        members = self.members.values()
        limits = [member.sure for member in members if member.sure]
        if limit is not None:
            limits.append(limit)
        standing = sum(member.active or member.stage is Stage.READY for member in members)
        return (
            self.beyond <= 0
            and not any(member.stage is Stage.PARKED for member in members)
            and standing + more <= min(limits, default=standing)
        )


class Note(NamedTuple):
    """A job of a key that is not in the key's record."""

    seq: int
    priority: int
    job_id: str


class Rules(NamedTuple):
    """The settings of a queue, with the sequence that guards them."""

    settings: QueueSettings
    last: int


class Tally(Struct, frozen=True, gc=False, omit_defaults=True):
    """What is counted of a queue that has limits."""

    counts: dict[State, int] = {}
    arrival: int = 0
    counting: bool = False


class Known(Struct, frozen=True, gc=False):
    """A part as it was read, with the sequence that guards it."""

    value: Any
    last: int


class Draft(Struct, frozen=True, gc=False):
    """A message of a job, to be written."""

    job_id: str
    kind: str
    job: Job | None
    """As it stands then; None where it is removed."""
    event: Event | None = None
    error: TryError | None = None
    clears: bool = False
    told: bool = False
    sure: bool = False
    """Whether the job is sure of the slot of its key."""
    body: bytes | None = None
    """The message itself, where it is spelled out already."""

    @property
    def open(self) -> bool:
        """Whether more can be said in it."""
        return self.kind != names.REMOVED and self.body is None


class Timer(NamedTuple):
    """A moment at which someone must look."""

    service: str
    queue: str
    what: str
    at: int
    body: bytes = b""


def lease_timer(service: str, ids: Sequence[str], until: int) -> Timer:
    """Has someone look when the leases of some jobs would have run out."""
    what = f"lease.{secrets.token_hex(8)}"
    return Timer(service, names.WATCH, what, until, msgspec.json.encode(ids))


def member_of(job: Job) -> Member:
    """A job as the record of its key has it."""
    return Member(
        job.queue,
        job.priority,
        job.run_at,
        job.seq,
        job.stage,
        job.state is State.ACTIVE,
        job.spec.lifo,
    )
