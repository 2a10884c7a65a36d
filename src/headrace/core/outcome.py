"""Outcomes: what a handler's run amounts to, and the change that follows from it.

`settle(job, outcome, …)` is the only road from a run to a write; rescue and detached completion
take it too.
"""

from __future__ import annotations

from datetime import timedelta
from typing import assert_never

import msgspec
from msgspec import Struct

from headrace.core import retry
from headrace.core.change import Case, Change, Guard, Write
from headrace.core.model import MAX_MESSAGE, MAX_TRACEBACK, Job, OnLost, TryError
from headrace.core.queue import QueueSettings
from headrace.core.states import EventType, State

_COMPLETED = EventType.COMPLETED  # for every job, and Python 3.11 takes 0.1 µs to find a member
_ACTIVE = frozenset({State.ACTIVE})


class Problem(Struct, frozen=True, gc=False):
    """An error before it is tied to a try: its type, message and traceback."""

    type: str
    message: str
    traceback: str = ""


class Completed(Struct, frozen=True, gc=False, tag=True, tag_field="outcome"):
    """The handler returned."""

    result: msgspec.Raw | None = None


class Failed(Struct, frozen=True, gc=False, tag=True, tag_field="outcome"):
    """The handler raised. `after` is the delay that it or its task asks for, if any."""

    problem: Problem
    after: int | None = None


class Uncounted(Struct, frozen=True, gc=False, tag=True, tag_field="outcome"):
    """The handler raised something that is not a failure: tried again, the try not counted."""

    problem: Problem
    after: int | None = None


class Terminated(Struct, frozen=True, gc=False, tag=True, tag_field="outcome"):
    """The job fails at once."""

    problem: Problem


class Snoozed(Struct, frozen=True, gc=False, tag=True, tag_field="outcome"):
    """The handler gave the job back until a later time; the try does not count."""

    until: int


class Cancelled(Struct, frozen=True, gc=False, tag=True, tag_field="outcome"):
    """The handler was cancelled or ended its job itself."""

    reason: str = ""


class Expired(Struct, frozen=True, gc=False, tag=True, tag_field="outcome"):
    """The deadline came before the handler was done."""


class Detached(Struct, frozen=True, gc=False, tag=True, tag_field="outcome"):
    """The handler returned, but the job stays active until someone with its token settles it."""

    until: int


class Moved(Struct, frozen=True, gc=False, tag=True, tag_field="outcome"):
    """The job goes on in another queue, as another type, now or later."""

    queue: str
    type: str | None = None
    run_at: int = 0
    result: msgspec.Raw | None = None


class Returned(Struct, frozen=True, gc=False, tag=True, tag_field="outcome"):
    """The worker stopped before the handler was done; the try does not count."""


class Lost(Struct, frozen=True, gc=False, tag=True, tag_field="outcome"):
    """The owner's lease ran out. `contended`: another job of the key is waiting."""

    contended: bool = False


Incomplete = (
    Failed
    | Uncounted
    | Terminated
    | Snoozed
    | Cancelled
    | Expired
    | Detached
    | Moved
    | Returned
    | Lost
)
Outcome = Completed | Incomplete


def settle(job: Job, outcome: Outcome, now: int, chance: float, settings: QueueSettings) -> Change:
    """The change that `outcome` makes of `job`, held by its present token.

    A cancel that was asked for meanwhile wins over everything but an end of the job: a handler
    that finished has finished.
    """
    if isinstance(outcome, Completed):  # nearly always
        write = Write(event=_COMPLETED, at=now, result=outcome.result, error=None)
        guard, spec = Guard(states=_ACTIVE, token=job.token), job.spec
        alone = spec.key is None and spec.dedup is None and job.deadline is None
        return Change(job, (Case(guard, write),), True, alone)
    write = _write(job, outcome, now, chance, settings)
    lapsed = now if isinstance(outcome, Lost) else None
    if write.event in _ENDS:
        cases = (_case(job, write, None, lapsed),)
    else:
        cancelled = Write(event=EventType.CANCELLED, at=now, reason=job.cancelling)
        cases = (_case(job, write, False, lapsed), _case(job, cancelled, True, lapsed))
    return Change(job, cases, leaves_trace=lapsed is None)


_ENDS = frozenset(
    {
        EventType.COMPLETED,
        EventType.FAILED,
        EventType.DEAD,
        EventType.CANCELLED,
        EventType.EXPIRED,
        EventType.STALE,
    }
)


def _case(job: Job, write: Write, cancelling: bool | None, lapsed: int | None) -> Case:
    guard = Guard(states=_ACTIVE, token=job.token, cancelling=cancelling, lapsed_at=lapsed)
    return Case(guard, write)


def _write(
    job: Job, outcome: Incomplete, now: int, chance: float, settings: QueueSettings
) -> Write:
    match outcome:
        case Failed(problem=problem, after=after):
            return _failed(job, problem, after, now, chance, settings)
        case Uncounted(problem=problem, after=after):
            delay = _delay(job, after, chance, settings)
            return Write(
                event=EventType.RETRY,
                at=now,
                run_at=now + delay,
                tries=job.tries - 1,
                error=_error(job, problem, now),
                reason="not counted",
            )
        case Terminated(problem=problem):
            return Write(event=EventType.FAILED, at=now, error=_error(job, problem, now))
        case Snoozed(until=until):
            return Write(
                event=EventType.SNOOZED, at=now, run_at=max(until, now), tries=job.tries - 1
            )
        case Cancelled(reason=reason):
            return Write(event=EventType.CANCELLED, at=now, reason=reason or job.cancelling or None)
        case Expired():
            return Write(event=EventType.EXPIRED, at=now, reason="deadline passed while running")
        case Detached(until=until):
            if job.deadline is not None:
                until = min(until, job.deadline)
            return Write(event=EventType.DETACHED, at=now, detached=True, lease_until=until)
        case Moved(queue=queue, type=type, run_at=run_at, result=result):
            return Write(
                event=EventType.MOVED,
                at=now,
                queue=queue,
                type=type or job.type,
                run_at=max(run_at, now),
                tries=0,
                error=None,
                result=job.result if result is None else result,
                clears=True,
            )
        case Returned():
            return Write(event=EventType.RETURNED, at=now, tries=job.tries - 1)
        case Lost(contended=contended):
            return _lost(job, contended, now, chance, settings)
        case _:
            assert_never(outcome)


def _failed(
    job: Job,
    problem: Problem,
    after: int | None,
    now: int,
    chance: float,
    settings: QueueSettings,
) -> Write:
    error = _error(job, problem, now)
    if job.tries >= job.max_tries:
        return _exhausted(error, now, settings)
    delay = _delay(job, after, chance, settings)
    return Write(event=EventType.RETRY, at=now, run_at=now + delay, error=error)


def _lost(job: Job, contended: bool, now: int, chance: float, settings: QueueSettings) -> Write:
    if job.deadline is not None and job.deadline <= now:
        gone = "nobody settled it" if job.detached else "its worker is gone"
        return Write(
            event=EventType.EXPIRED,
            at=now,
            reason=f"deadline passed; {gone}",
            takeover=not job.detached,
        )
    if job.detached:
        problem = Problem("DetachedTimeout", "nobody settled the detached job in time")
        return _failed(job, problem, None, now, chance, settings)
    error = _error(
        job, Problem("LeaseLost", f"worker {job.worker} stopped renewing its lease"), now
    )
    if contended and supersedable(job):
        return Write(event=EventType.STALE, at=now, error=error, takeover=True)
    if job.tries >= job.max_tries:
        return msgspec.structs.replace(_exhausted(error, now, settings), takeover=True)
    # Its due time stays as it was: it has waited its turn already.
    return Write(event=EventType.RETRY, at=now, error=error, takeover=True)


def supersedable(job: Job) -> bool:
    """Whether a job that lost its lease gives way to one of its key that is waiting."""
    return job.key is not None and job.key.on_lost is OnLost.FAIL_STALE


def _exhausted(error: TryError, now: int, settings: QueueSettings) -> Write:
    event = EventType.DEAD if settings.dead_letters else EventType.FAILED
    return Write(event=event, at=now, error=error)


def _delay(job: Job, after: int | None, chance: float, settings: QueueSettings) -> int:
    if after is None:
        after = (job.spec.retry or settings.retry).delay(job.tries, chance)
    return min(max(0, after), retry.LONGEST)


def _error(job: Job, problem: Problem, now: int) -> TryError:
    trace = problem.traceback
    if len(trace) > MAX_TRACEBACK:
        half = MAX_TRACEBACK // 2
        trace = f"{trace[:half]}\n… {len(trace) - 2 * half} characters left out …\n{trace[-half:]}"
    return TryError(now, job.tries, problem.type, problem.message[:MAX_MESSAGE], trace)


def custom_delay(function: retry.RetryFunction, number: int, error: BaseException) -> int:
    """The delay that a task's own callable asks for, in milliseconds; InvalidValue for one that
    makes no sense."""
    asked = function(number, error)
    seconds = asked.total_seconds() if isinstance(asked, timedelta) else asked
    return 0 if seconds < 0 else retry.milliseconds(seconds)
