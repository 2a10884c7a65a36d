"""Admission: what becomes of a new job, given the facts that the engine found.

The engine reads the facts in the same atomic step in which it carries out the verdict.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec
from msgspec import Struct

from headrace.core import edges, keys
from headrace.core.change import Write
from headrace.core.edges import EdgeState
from headrace.core.event import Policy
from headrace.core.model import DEFAULT_PRIORITY, DedupMode, Job, NewJob, Stage
from headrace.core.queue import Discard, QueueSettings
from headrace.core.states import FINAL, EventType, State

# Python 3.11 takes 0.1 µs to find a member of an enum: what every job asks for has a name here.
_PENDING, _CREATED = State.PENDING, EventType.CREATED


class Holder(Struct, frozen=True, gc=False):
    """Who holds a dedup key: the job, and until when the window lasts that outlives it."""

    job_id: str
    held_until: int | None = None


class Outcome(StrEnum):
    """What `submit` answers."""

    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"
    COALESCED = "coalesced"
    REPLACED = "replaced"
    REJECTED = "rejected"


IN_GROUP = "group"
"""The reason of a job that was refused only because another of its group was."""


class Verdict(Struct, frozen=True, gc=False, omit_defaults=True):
    """What becomes of one new job. `job` is there exactly when it was taken."""

    outcome: Outcome
    job_id: str
    reason: str | None = None
    existing_id: str | None = None
    replaced: tuple[str, ...] = ()
    job: Job | None = None
    behind: str | None = None
    """The running owner of the dedup key that the job waits behind."""
    then: Write | None = None
    """What happens to the job in the same step: a parent that failed makes it unreachable."""

    @property
    def taken(self) -> bool:
        return self.job is not None


class Facts(Struct):
    """What the engine found; only what the job asks for needs to be looked up."""

    settings: QueueSettings
    existing: Job | None = None
    holder: Holder | None = None
    holder_job: Job | None = None
    holder_behind: Job | None = None
    parents: dict[str, Job | None] = {}
    active: int = 0
    queued: int = 0
    first_queued: str | None = None
    first_active: str | None = None
    waiting: int = 0
    oldest_waiting: str | None = None


def same_insert(new: NewJob, existing: Job) -> bool:
    """Whether `existing` is this very insert, whose answer was lost."""
    return existing.spec == new


def admit(new: NewJob, facts: Facts, now: int) -> Verdict:
    """The verdict on `new`; nothing is written for any but the taken ones."""
    if facts.existing is not None:
        if same_insert(new, facts.existing):
            return Verdict(Outcome.ACCEPTED, new.id, job=facts.existing)
        return Verdict(Outcome.DUPLICATE, new.id, "id", existing_id=new.id)
    if facts.settings.draining:
        return Verdict(Outcome.REJECTED, new.id, "queue-draining")
    for parent_id, parent in facts.parents.items():
        if parent is None:
            return Verdict(Outcome.REJECTED, new.id, "unknown-parent", existing_id=parent_id)
    replaced: list[str] = []
    behind: Job | None = None
    if new.dedup and facts.holder:
        refusal, behind = _dedup(new, facts, now, replaced)
        if refusal:
            return refusal
    if new.key and not (replaced and _same_key(new, facts.holder_job)):
        refusal = _depth(new, facts, replaced)
        if refusal:
            return refusal
    limit = facts.settings.max_entries
    if limit is not None and facts.waiting - len(replaced) >= limit:
        if facts.settings.discard is Discard.NEW or facts.oldest_waiting is None:
            return Verdict(Outcome.REJECTED, new.id, "queue-full")
        if facts.oldest_waiting not in replaced:
            replaced.append(facts.oldest_waiting)
    behind_id = behind.id if behind else None
    return Verdict(
        Outcome.REPLACED if replaced else Outcome.ACCEPTED,
        new.id,
        replaced=tuple(replaced),
        job=_created(new, facts, behind_id),
        behind=behind_id,
        then=_broken(new, facts, now) if new.depends_on else None,
    )


def reconsidered(verdict: Verdict, new: NewJob, facts: Facts, now: int) -> Verdict:
    """The verdict once the replaced jobs have ended: parents of the new job may be among them,
    or have ended with them."""
    return msgspec.structs.replace(
        verdict, job=_created(new, facts, verdict.behind), then=_broken(new, facts, now)
    )


def _same_key(new: NewJob, other: Job | None) -> bool:
    """Whether `other` gives up a place of the key that the new job takes."""
    return bool(new.key and other and other.key and other.key.hash == new.key.hash)


def _dedup(
    new: NewJob, facts: Facts, now: int, replaced: list[str]
) -> tuple[Verdict | None, Job | None]:
    """The refusal, if any; else the running owner that the new job must wait behind."""
    assert new.dedup
    assert facts.holder
    owner = facts.holder_job
    lives = owner is not None and owner.state not in FINAL
    unstarted = owner is not None and lives and owner.state is not State.ACTIVE and owner.tries == 0
    duplicate = Verdict(Outcome.DUPLICATE, new.id, "dedup-key", existing_id=facts.holder.job_id)
    in_window = facts.holder.held_until is not None and facts.holder.held_until > now
    match new.dedup.mode:
        case DedupMode.SIMPLE:
            return (duplicate if lives or in_window else None), None
        case DedupMode.THROTTLE:
            held = in_window or (lives and facts.holder.held_until is None)
            return (duplicate if held else None), None
        case DedupMode.DEBOUNCE:
            if owner is not None and unstarted:
                replaced.append(owner.id)
                return None, None
            return (duplicate if lives else None), None
        case DedupMode.KEEP_LAST:
            if owner is None or not lives:
                return None, None
            if unstarted:
                replaced.append(owner.id)
                return None, facts.holder_behind
            return None, owner


def _depth(new: NewJob, facts: Facts, replaced: list[str]) -> Verdict | None:
    assert new.key
    key = new.key
    reason = keys.full_reason(facts.active, key.max_active)
    match keys.depth(facts.active, facts.queued, key.max_active, key.max_queued, key.when_full):
        case keys.Depth.ACCEPT:
            return None
        case keys.Depth.REJECT:
            existing = facts.first_active or facts.first_queued
            return Verdict(Outcome.REJECTED, new.id, reason, existing_id=existing)
        case keys.Depth.COALESCE:
            existing = facts.first_queued or facts.first_active
            return Verdict(Outcome.COALESCED, new.id, reason, existing_id=existing)
        case keys.Depth.REPLACE:
            assert facts.first_queued
            replaced.append(facts.first_queued)
            return None


def _created(new: NewJob, facts: Facts, behind: str | None) -> Job:
    """The job in its first state, but for the sequence, which only the engine knows."""
    states = [
        edges.edge_state(parent.state, new.on_parent_failure)
        for parent in facts.parents.values()
        if parent is not None
    ]
    unsatisfied = len(states) - states.count(EdgeState.SATISFIED)
    if behind is not None and behind not in new.depends_on:
        unsatisfied += 1
    return created(new, facts.settings, 0, unsatisfied)


def plain(new: NewJob, settings: QueueSettings) -> bool:
    """Whether only its id can stand in the job's way: there are no facts to look up."""
    return (
        new.dedup is None
        and new.key is None
        and not new.depends_on
        and settings.max_entries is None
        and not settings.draining
    )


def created(
    new: NewJob,
    settings: QueueSettings,
    seq: int,
    unsatisfied: int = 0,
    stage: Stage = Stage.NONE,
) -> Job:
    """The job in its first state."""
    return Job(
        spec=new,
        seq=seq,
        version=seq,
        state=State.BLOCKED if unsatisfied else _PENDING,
        event=_CREATED,
        queue=new.queue,
        type=new.type,
        priority=DEFAULT_PRIORITY if new.priority is None else new.priority,
        max_tries=settings.max_tries if new.max_tries is None else new.max_tries,
        run_at=new.run_at,
        updated_at=new.created_at,
        stage=stage,
        expires_at=_expires_at(new, settings),
        deadline=new.deadline,
        waiting_on=unsatisfied,
    )


def _expires_at(new: NewJob, settings: QueueSettings) -> int | None:
    """By when the job must have started: the earliest of its limits."""
    limit = new.deadline
    if new.ttl is None and settings.max_age is None:
        return limit
    for age in (new.ttl, settings.max_age):
        if age is not None and (limit is None or new.created_at + age < limit):
            limit = new.created_at + age
    return limit


def _broken(new: NewJob, facts: Facts, now: int) -> Write | None:
    for parent in facts.parents.values():
        if parent and edges.edge_state(parent.state, new.on_parent_failure) is EdgeState.BROKEN:
            return edges.unreachable(now, parent.id, parent.state)
    return None


def holder_after(new: NewJob, now: int) -> Holder | None:
    """Who holds the dedup key once `new` is taken."""
    if new.dedup is None:
        return None
    window = new.dedup.window if new.dedup.mode is DedupMode.THROTTLE else 0
    return Holder(new.id, now + window if window else None)


def extended(new: NewJob, holder: Holder, now: int) -> Holder | None:
    """The holder after a refused duplicate that renews the window; None where it does not."""
    if new.dedup is None or not new.dedup.extend or holder.held_until is None:
        return None
    return msgspec.structs.replace(holder, held_until=now + new.dedup.window)


def creation_policy(verdict: Verdict) -> Policy | None:
    """What the `created` event says of the admission; nothing for the plain case."""
    if not verdict.replaced:
        return None
    return Policy(outcome=str(verdict.outcome), replaced_id=verdict.replaced[0])
