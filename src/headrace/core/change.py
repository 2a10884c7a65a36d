"""Decisions as data: a change is a list of guarded writes, of which the first that fits is made.

`Change(job, cases)` is decided from a snapshot; the engine compares each case's guard with the
stored job in the same atomic step that writes it. A change none of whose guards fits is refused
and changes nothing, except that it may leave a trace in the journal.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import msgspec
from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from headrace.core.event import Policy
from headrace.core.model import Job, LogEntry, Progress, Stage, TryError
from headrace.core.states import CLAIMABLE, FINAL, TRANSITIONS, EventType, State


class Guard(Struct, frozen=True, gc=False, kw_only=True):
    """What must hold at commit time."""

    states: frozenset[State]
    token: int | None = None
    """The lease that must still be the newest; None where ownership does not matter."""
    cancelling: bool | None = None
    """Whether a cancel must, or must not, have been asked for meanwhile."""
    lapsed_at: int | None = None
    """The lease must have run out by this time."""
    expired_at: int | None = None
    """The time by which the job had to start or end must have come by this time."""
    detached: bool | None = None
    """Whether the job must, or must not, be active outside its handler."""

    def allows(self, job: Job) -> bool:
        return (
            job.state in self.states
            and (self.token is None or self.token == job.token)
            and (self.cancelling is None or self.cancelling == (job.cancelling is not None))
            and (
                self.lapsed_at is None
                or (job.lease_until is not None and job.lease_until <= self.lapsed_at)
            )
            and (
                self.expired_at is None
                or (job.expires_at is not None and job.expires_at <= self.expired_at)
            )
            and (self.detached is None or self.detached == job.detached)
        )


class Write(Struct, frozen=True, gc=False, kw_only=True):
    """What is written: the event, which names the next state, and the fields that change."""

    event: EventType
    at: int
    run_at: int | UnsetType = UNSET
    tries: int | UnsetType = UNSET
    queue: str | UnsetType = UNSET
    type: str | UnsetType = UNSET
    priority: int | UnsetType = UNSET
    deadline: int | UnsetType | None = UNSET
    expires_at: int | UnsetType | None = UNSET
    worker: str | UnsetType | None = UNSET
    lease_until: int | UnsetType | None = UNSET
    detached: bool | UnsetType = UNSET
    cancelling: str | UnsetType | None = UNSET
    waiting_on: int | UnsetType = UNSET
    started_at: int | UnsetType | None = UNSET
    result: msgspec.Raw | UnsetType | None = UNSET
    error: TryError | UnsetType | None = UNSET
    progress: Progress | UnsetType | None = UNSET
    logs: tuple[LogEntry, ...] = ()
    reason: str | None = None
    policy: Policy | None = None
    takeover: bool = False
    """The key's slot was lost by its owner: counted on the key."""
    clears: bool = False
    """Forget the errors and logs of earlier tries."""
    frees_dedup: bool = False
    """Give the dedup key back now."""
    discards: bool = False
    """Delete the job after its event is in the journal."""


class Case(Struct, frozen=True, gc=False):
    """One guarded write."""

    guard: Guard
    write: Write


class Change(Struct, frozen=True, gc=False):
    """What is to become of `job`; the first case whose guard fits is made."""

    job: Job
    cases: tuple[Case, ...]
    leaves_trace: bool = False
    """A refusal is journaled as `stale_completion_ignored`."""
    only_completes: bool = False
    """It can do no more than complete the job, whose end concerns no key, dedup key or deadline:
    what an engine may do by the batch."""


class Applied(Struct, frozen=True, gc=False):
    """The change was made (now, or by an earlier attempt whose answer was lost)."""

    job: Job


class NotApplied(Struct, frozen=True, gc=False):
    """The change was refused; `job` is how it stands, None if it does not exist."""

    reason: str
    job: Job | None


Answer = Applied | NotApplied

_LEAVES_LEASE = {"worker": None, "lease_until": None, "detached": False, "cancelling": None}

SETS: Mapping[EventType, tuple[str, ...]] = MappingProxyType(
    {
        EventType.BLOCKED: ("waiting_on",),
        EventType.RELEASED: ("waiting_on", "run_at"),
        EventType.STARTED: ("tries", "worker", "lease_until", "started_at", "expires_at"),
        EventType.RETRY: ("run_at", "tries", "error"),
        EventType.SNOOZED: ("run_at", "tries"),
        EventType.RETURNED: ("tries",),
        EventType.DETACHED: ("detached", "lease_until"),
        EventType.MOVED: ("queue", "type", "run_at", "tries", "error", "result"),
        EventType.PROGRESS: ("progress",),
        EventType.CANCELLING: ("cancelling",),
        EventType.CHANGED: ("priority", "run_at"),
        EventType.COMPLETED: ("result", "error"),
        EventType.FAILED: ("error",),
        EventType.DEAD: ("error",),
        EventType.STALE: ("error",),
        EventType.RETRIED: (
            "run_at",
            "tries",
            "result",
            "error",
            "progress",
            "started_at",
            "deadline",
            "expires_at",
            "waiting_on",
        ),
    }
)
"""The fields that an event may set; those that are not listed set none."""


class Effect(NamedTuple):
    """What an event makes of a job in a state, whatever is written with it."""

    fields: dict[str, object]
    ends: bool
    sets: tuple[str, ...]


def _effects() -> dict[tuple[State, EventType], Effect]:
    """A job that leaves `active` gives up its lease; one that reaches a final state gets its end
    time; one that comes back loses it. The stage of a claimable job is left for the engine."""
    table: dict[tuple[State, EventType], Effect] = {}
    for (before, event), after in TRANSITIONS.items():
        if before is None:
            continue
        fields: dict[str, object] = {"state": after, "event": event}
        if after is not before:
            fields["finished_at"] = None
            if before is State.ACTIVE:
                fields |= _LEAVES_LEASE
            if after not in CLAIMABLE:
                fields["stage"] = Stage.NONE
        ends = after is not before and after in FINAL
        table[before, event] = Effect(fields, ends, SETS.get(event, ()))
    return table


EFFECTS: Mapping[tuple[State, EventType], Effect] = MappingProxyType(_effects())


def written(job: Job, write: Write, version: int) -> Job | None:
    """The job after `write`, or None where the transition table does not allow it."""
    effect = EFFECTS.get((job.state, write.event))
    if effect is None:
        return None
    fields = effect.fields.copy()
    fields["version"], fields["updated_at"] = version, write.at
    if effect.ends:
        fields["finished_at"] = write.at
    for name in effect.sets:
        value = getattr(write, name)
        if value is not UNSET:
            fields[name] = value
    if write.event is EventType.STARTED:
        fields["token"] = version
    return replace(job, **fields)


# Python 3.11 takes 0.1 µs to find a member of an enum: what every job asks for has a name here.
_COMPLETED, _COMPLETED_EVENT, _NO_STAGE = State.COMPLETED, EventType.COMPLETED, Stage.NONE


def completed(job: Job, write: Write, version: int) -> Job:
    """What `written` makes of an active job that completes. It is by far the most frequent write,
    and with the fields named here takes a third of the time."""
    return replace(
        job,
        state=_COMPLETED,
        event=_COMPLETED_EVENT,
        stage=_NO_STAGE,
        version=version,
        worker=None,
        lease_until=None,
        detached=False,
        cancelling=None,
        finished_at=write.at,
        updated_at=write.at,
        result=job.result if write.result is UNSET else write.result,
        error=job.error if write.error is UNSET else write.error,
    )


def completes_plainly(write: Write) -> bool:
    """Whether `completed` tells all that the write does."""
    return write.event is EventType.COMPLETED and not (write.logs or write.error or write.discards)


def choose(change: Change, stored: Job) -> Write | None:
    """The write of the first case whose guard fits the stored job."""
    for case in change.cases:
        if case.guard.allows(stored):
            return case.write
    return None


def repeated(change: Change, stored: Job) -> bool:
    """Whether an earlier attempt at this change was made and only its answer was lost.

    Only the owner of a token writes with it, so the same event under the same token is ours.
    Without a token it is the same event at the same time, made since the change was decided.
    """
    if stored.version <= change.job.version:
        return False
    return any(
        case.guard.token in (None, stored.token)
        and case.write.event is stored.event
        and case.write.at == stored.updated_at
        for case in change.cases
    )
