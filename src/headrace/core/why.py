"""Why a job is not running: the answer for any job, from the facts at hand."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from headrace.core.actions import lapses
from headrace.core.event import rfc3339
from headrace.core.model import Job, KeyStatus, OnParentFailure, Parent, Stage
from headrace.core.queue import QueueSettings
from headrace.core.states import FINAL, REVIVABLE, SATISFIES, State


class Surroundings(Struct):
    """What is known around a job."""

    now: int
    settings: QueueSettings
    queue_active: int = 0
    workers: int = 0
    """How many serve the queue."""
    devoted: int = 0
    """How many of those serve no other."""
    key: KeyStatus | None = None
    parents: tuple[Parent, ...] = ()


def explain(job: Job, around: Surroundings) -> list[str]:
    """The reasons, the most telling first; each says what would change it."""
    if job.state in FINAL:
        return [_ended(job)]
    if job.state is State.ACTIVE:
        return [_running(job, around.now)]
    if job.state is State.BLOCKED:
        return _blocked(job, around.parents)
    return _waiting(job, around)


def _blocked(job: Job, parents: Sequence[Parent]) -> list[str]:
    waits = [p.id for p in parents if p.state is None or p.state not in FINAL]
    failed = [f"{p.id} ({p.state})" for p in parents if p.state in FINAL - SATISFIES]
    reasons = [f"it waits for {', '.join(waits)} to complete"] if waits else []
    if failed and job.spec.on_parent_failure is OnParentFailure.WAIT:
        reasons.append(f"parents ended without success: {', '.join(failed)}; retry them")
    return reasons or ["it waits for a parent to complete"]


def _ended(job: Job) -> str:
    text = f"it has ended: {job.state}"
    if job.error:
        text += f", with {job.error.type}: {job.error.message}"
    return text + ("; `retry` brings it back" if job.state in REVIVABLE else "")


def _running(job: Job, now: int) -> str:
    if job.detached:
        return f"it is detached: whoever holds its token has until {rfc3339(job.lease_until or 0)}"
    if job.lease_until is not None and job.lease_until <= now:
        if not lapses(job):
            return (
                f"its worker {job.worker} stopped renewing the lease, and its key waits for it"
                " (on_lost=block); release the key if it does not come back"
            )
        return f"its worker {job.worker} stopped renewing the lease; it is about to be rescued"
    return f"it is running on worker {job.worker}" + (
        f"; a cancel was asked for: {job.cancelling}" if job.cancelling is not None else ""
    )


def _waiting(job: Job, around: Surroundings) -> list[str]:
    reasons: list[str] = []
    settings = around.settings
    if settings.paused:
        reasons.append(f"queue {job.queue!r} is paused; resume it")
    if job.run_at > around.now:
        kind = "its next try" if job.state is State.RETRY else "it"
        reasons.append(f"{kind} is not due until {rfc3339(job.run_at)}")
    if job.stage is Stage.PARKED and around.key:
        held = ", ".join(active.id for active in around.key.active)
        busy = f"has no free slot: {held} runs" if held else "has another job ahead of it"
        reasons.append(f"its key {around.key.name!r} {busy}; {around.key.queued} of the key wait")
    if settings.max_active is not None and around.queue_active >= settings.max_active:
        reasons.append(
            f"queue {job.queue!r} runs its max_active of {settings.max_active} jobs already"
        )
    if settings.rate is not None and not reasons:
        reasons.append(f"queue {job.queue!r} is limited to {settings.rate.count} starts per period")
    if settings.weight == 0 and around.workers and not around.devoted:
        reasons.append(
            f"queue {job.queue!r} has weight 0: workers that serve other queues beside it pass it"
            " over; raise its weight, or start a worker for it alone"
        )
    if not around.workers:
        reasons.append(f"no worker serves queue {job.queue!r}; start one")
    return reasons or ["it is ready, and will start as soon as a worker has a free slot"]
