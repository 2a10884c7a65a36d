"""What operators and upkeep do to a job, as changes."""

from __future__ import annotations

from headrace.core.change import Case, Change, Guard, Write
from headrace.core.model import Job, OnLost
from headrace.core.states import CLAIMABLE, FINAL, REVIVABLE, WAITING, EventType, State

_ACTIVE = frozenset({State.ACTIVE})
_DEAD = frozenset({State.DEAD})


def cancel(job: Job, now: int, reason: str) -> Change:
    """Ends a waiting job at once and asks the owner of a running one to stop.

    A detached job has no handler to ask: it ends at once too.
    """
    ended = Write(event=EventType.CANCELLED, at=now, reason=reason)
    asked = Write(event=EventType.CANCELLING, at=now, cancelling=reason, reason=reason)
    return Change(
        job,
        (
            Case(Guard(states=WAITING), ended),
            Case(Guard(states=_ACTIVE, detached=True), ended),
            Case(Guard(states=_ACTIVE, detached=False), asked),
        ),
    )


def retry(job: Job, now: int, states: frozenset[State] = REVIVABLE) -> Change:
    """Brings an ended job back: same identity, tries from 0, result and error cleared.

    A deadline that has passed is dropped, or the job would expire again unrun.
    """
    deadline = job.deadline if job.deadline is not None and job.deadline > now else None
    write = Write(
        event=EventType.RETRIED,
        at=now,
        run_at=now,
        tries=0,
        result=None,
        error=None,
        progress=None,
        started_at=None,
        deadline=deadline,
        expires_at=deadline,
        waiting_on=0,
        clears=True,
    )
    return Change(job, (Case(Guard(states=states), write),))


def replay(job: Job, now: int) -> Change:
    """Retries a dead job, and only a dead one."""
    return retry(job, now, _DEAD)


def dismiss(job: Job, now: int, reason: str | None = None) -> Change:
    """Takes a dead job out of the dead letters."""
    write = Write(event=EventType.DISMISSED, at=now, reason=reason)
    return Change(job, (Case(Guard(states=_DEAD), write),))


def expire(job: Job, now: int) -> Change:
    """Ends a waiting job whose deadline or time to live has passed."""
    write = Write(event=EventType.EXPIRED, at=now, reason="not started in time")
    return Change(job, (Case(Guard(states=WAITING, expired_at=now), write),))


def skip(job: Job, now: int, reason: str) -> Change:
    """Ends a waiting job because another took its place."""
    write = Write(event=EventType.SKIPPED, at=now, reason=reason)
    return Change(job, (Case(Guard(states=WAITING), write),))


def release(job: Job, now: int, reason: str) -> Change:
    """Takes the slot from an owner that does not come back; the job ends `stale`."""
    write = Write(event=EventType.STALE, at=now, reason=reason, takeover=True)
    return Change(job, (Case(Guard(states=_ACTIVE, token=job.token, lapsed_at=now), write),))


def reprioritise(job: Job, now: int, priority: int) -> Change:
    """Changes the priority of a waiting job."""
    write = Write(event=EventType.CHANGED, at=now, priority=priority)
    return Change(job, (Case(Guard(states=WAITING), write),))


def reschedule(job: Job, now: int, run_at: int) -> Change:
    """Changes when a waiting job is due; now or earlier runs it at once."""
    write = Write(event=EventType.CHANGED, at=now, run_at=max(now, run_at))
    return Change(job, (Case(Guard(states=CLAIMABLE), write),))


def free_dedup(job: Job, now: int) -> Change:
    """Gives a waiting job's dedup key back, so that another may take it."""
    write = Write(event=EventType.CHANGED, at=now, frees_dedup=True, reason="dedup key freed")
    return Change(job, (Case(Guard(states=WAITING), write),))


def delete(job: Job, now: int) -> Change:
    """Deletes a job that has ended; one that waits is cancelled in the same step."""
    cancelled = Write(event=EventType.CANCELLED, at=now, reason="deleted", discards=True)
    deleted = Write(event=EventType.DELETED, at=now, discards=True)
    return Change(job, (Case(Guard(states=WAITING), cancelled), Case(Guard(states=FINAL), deleted)))


def lapses(job: Job) -> bool:
    """Whether a lease that ran out is taken from its owner without an operator's word."""
    return job.key is None or job.key.on_lost is not OnLost.BLOCK or job.detached
