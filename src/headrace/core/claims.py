"""Claims: what is asked for, what is handed out, and the write that starts a job."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from headrace.core.change import Answer, Write
from headrace.core.model import Job, Stage
from headrace.core.states import EventType, State


class Share(Struct, frozen=True, gc=False):
    """Up to `at_most` jobs of one queue."""

    queue: str
    at_most: int


class ClaimRequest(Struct, frozen=True, gc=False, kw_only=True):
    """Up to `limit` due jobs, looking at the shares in turn.

    A queue may be named more than once: weights are a matter of how shares are laid out.
    """

    service: str
    worker: str
    shares: tuple[Share, ...]
    limit: int
    lease: int
    now: int


class Claimed(Struct, frozen=True, gc=False):
    """The jobs handed out, when the next delayed one of these queues is due, and what became of
    the changes that came with the claim."""

    jobs: tuple[Job, ...]
    next_due: int | None = None
    answers: tuple[Answer, ...] = ()


class Lease(Struct, frozen=True, gc=False):
    """A lease to renew."""

    job_id: str
    seq: int
    token: int


class Renewal(Struct, frozen=True, gc=False):
    """Whether the lease is still held, and the reason if a cancel was asked for."""

    held: bool
    cancelling: str | None = None


def started(job: Job, request: ClaimRequest) -> Write:
    """The write that hands a job to a worker: the try is counted as it is delivered.

    A time to live is kept by starting in time; from here on only the deadline can expire the job.
    """
    return Write(
        event=EventType.STARTED,
        at=request.now,
        tries=job.tries + 1,
        worker=request.worker,
        lease_until=request.now + request.lease,
        started_at=request.now,
        expires_at=job.deadline,
    )


def begun(job: Job, request: ClaimRequest, version: int) -> Job:
    """What `change.written` makes of a claimable job by that write, with the fields named here: it
    is among the most frequent ones."""
    return replace(
        job,
        state=State.ACTIVE,
        event=EventType.STARTED,
        stage=Stage.NONE,
        version=version,
        token=version,
        tries=job.tries + 1,
        worker=request.worker,
        lease_until=request.now + request.lease,
        started_at=request.now,
        finished_at=None,
        updated_at=request.now,
        expires_at=job.deadline,
    )
