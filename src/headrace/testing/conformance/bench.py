"""The bench: an engine, a clock that moves by hand, and short words for what tests do.

Everything here goes through the engine protocol and the decisions of core, as the runtime does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict, Unpack

import msgspec

from headrace.core import actions, keys
from headrace.core.admission import Verdict
from headrace.core.change import Answer, Applied, Case, Change, Guard, NotApplied, Write
from headrace.core.claims import Claimed, ClaimRequest, Lease, Renewal, Share
from headrace.core.event import Event
from headrace.core.model import (
    JSON,
    Context,
    Counted,
    Dedup,
    Filter,
    Job,
    KeyLimit,
    KeyStatus,
    LogEntry,
    NewJob,
    OnLost,
    OnParentFailure,
    Parent,
    Progress,
    TryError,
    WhenFull,
)
from headrace.core.outcome import Completed, Failed, Lost, Outcome, Problem, settle
from headrace.core.queue import DEFAULTS, QueueSettings, decode
from headrace.core.retention import cutoffs
from headrace.core.retry import RetryPolicy
from headrace.core.states import WAITING, EventType, State
from headrace.engine.protocol import (
    QUEUE_KIND,
    Bell,
    Details,
    Engine,
    Entry,
    Prune,
    Put,
    queue_document,
)

START = 1_700_000_000_000
"""When every test begins."""

LEASE = 30_000
RING_LIMIT = 10.0
"""Seconds that a bell may take to ring; far more than any engine needs."""

CONTEXT = Context("request-1", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "v=1")
ACTIVE = frozenset({State.ACTIVE})


class Options(TypedDict, total=False):
    """What a test may say of a new job; `delay` stands for `run_at`."""

    service: str
    type: str
    queue: str
    payload: JSON
    delay: int
    run_at: int
    context: Context
    priority: int | None
    lifo: bool
    max_tries: int | None
    retry: RetryPolicy | None
    timeout: int | None
    deadline: int | None
    ttl: int | None
    dedup: Dedup | None
    key: KeyLimit | None
    depends_on: tuple[str, ...]
    on_parent_failure: OnParentFailure
    metadata: dict[str, JSON]
    tags: tuple[str, ...]


def raw(value: JSON) -> msgspec.Raw:
    """A value as it is stored."""
    return msgspec.Raw(msgspec.json.encode(value))


def key(
    name: str,
    max_active: int = 1,
    max_queued: int | None = None,
    when_full: WhenFull = WhenFull.REJECT,
    on_lost: OnLost = OnLost.RETRY,
) -> KeyLimit:
    """A concurrency key of one constant."""
    return KeyLimit(name, keys.hash_of([name]), max_active, max_queued, when_full, on_lost)


def failed(message: str = "boom", after: int | None = None) -> Failed:
    """A handler that raised."""
    return Failed(Problem("ValueError", message, "Traceback …"), after)


class Bench:
    """One engine under test and the time that the test says it is."""

    def __init__(self, engine: Engine, now: int = START) -> None:
        self.engine, self.now = engine, now
        self.service = "svc"
        self._made = 0

    def tick(self, milliseconds: int) -> int:
        """Moves the clock; returns the new time."""
        self.now += milliseconds
        return self.now

    # Adding

    def new(self, id: str | None = None, **options: Unpack[Options]) -> NewJob:
        """A job to insert: of type `work` in queue `q`, due now, unless it says otherwise."""
        self._made += 1
        now = self.now  # once: where the clock runs, a job must not be due before it was made
        payload = options.pop("payload", {})
        delay = options.pop("delay", 0)
        options.setdefault("service", self.service)
        options.setdefault("type", "work")
        options.setdefault("queue", "q")
        options.setdefault("context", CONTEXT)
        options.setdefault("run_at", now + delay)
        return NewJob(
            id=id or f"job-{self._made}",
            payload=raw(payload),
            created_at=now,
            **options,  # pyright: ignore[reportCallIssue]  # payload and delay are taken out
        )

    async def insert(self, *group: NewJob) -> tuple[Verdict, ...]:
        """One group, taken whole or not at all."""
        return (await self.engine.insert([group], self.now))[0]

    async def submit(self, id: str | None = None, **options: Unpack[Options]) -> Verdict:
        """What becomes of one new job."""
        return (await self.insert(self.new(id, **options)))[0]

    async def add(self, id: str | None = None, **options: Unpack[Options]) -> Job:
        """One new job, which must be taken."""
        verdict = await self.submit(id, **options)
        assert verdict.taken, verdict
        assert verdict.job is not None
        return verdict.job

    # Running

    async def offer(
        self, limit: int = 1, *queues: str, worker: str = "w1", lease: int = LEASE
    ) -> Claimed:
        """What a claim of the given queues hands out."""
        shares = tuple(Share(queue, limit) for queue in queues or ("q",))
        request = ClaimRequest(
            service=self.service,
            worker=worker,
            shares=shares,
            limit=limit,
            lease=lease,
            now=self.now,
        )
        return await self.engine.claim(request)

    async def claim(
        self, limit: int = 1, *queues: str, worker: str = "w1", lease: int = LEASE
    ) -> list[Job]:
        """The jobs that a claim hands out."""
        return list((await self.offer(limit, *queues, worker=worker, lease=lease)).jobs)

    async def claimed_ids(self, limit: int = 100, *queues: str) -> list[str]:
        """The ids of the jobs that a claim hands out, in order."""
        return [job.id for job in await self.claim(limit, *queues)]

    async def start(self, queue: str = "q", worker: str = "w1", lease: int = LEASE) -> Job:
        """The next job of a queue, which must be there."""
        jobs = await self.claim(1, queue, worker=worker, lease=lease)
        assert len(jobs) == 1, "nothing was claimable"
        return jobs[0]

    async def settle(self, job: Job, outcome: Outcome) -> Answer:
        """Commits what a run amounts to, under the settings of the job's queue."""
        return await self.apply(await self.settled(job, outcome))

    async def settled(self, job: Job, outcome: Outcome) -> Change:
        """The change that a run amounts to, not committed yet."""
        return settle(job, outcome, self.now, 0.5, await self.settings(job.queue))

    async def complete(self, job: Job, result: JSON = None) -> Job:
        """Completes a running job, which must work."""
        return made(await self.settle(job, Completed(raw(result))))

    async def fail(self, job: Job, after: int | None = None) -> Job:
        """Fails a running job, which must work."""
        return made(await self.settle(job, failed(after=after)))

    async def run(self, queue: str = "q", result: JSON = None) -> Job:
        """Starts and completes the next job of a queue."""
        return await self.complete(await self.start(queue), result)

    async def kill(self, id: str) -> Job:
        """Lets the only try of a job with `max_tries=1` fail, so that it is dead."""
        job = await self.start()
        assert job.id == id
        return await self.fail(job)

    async def apply(self, change: Change) -> Answer:
        return (await self.engine.apply([change]))[0]

    async def report(
        self, job: Job, progress: Progress | None = None, logs: Sequence[LogEntry] = ()
    ) -> Answer:
        """What a running handler says of itself."""
        write = (
            Write(event=EventType.LOGGED, at=self.now, logs=tuple(logs))
            if progress is None
            else Write(event=EventType.PROGRESS, at=self.now, progress=progress)
        )
        guard = Guard(states=ACTIVE, token=job.token)
        return await self.apply(Change(job, (Case(guard, write),)))

    async def extend(self, *jobs: Job, lease: int = LEASE) -> list[Renewal]:
        """Renews the leases of jobs."""
        leases = [Lease(job.id, job.seq, job.token) for job in jobs]
        return await self.engine.extend(leases, self.now + lease)

    # Operating

    async def cancel(self, job: Job, reason: str = "not needed") -> Answer:
        return await self.apply(actions.cancel(job, self.now, reason))

    async def retry(self, job: Job) -> Answer:
        return await self.apply(actions.retry(job, self.now))

    async def delete(self, job: Job) -> Answer:
        return await self.apply(actions.delete(job, self.now))

    async def rescue(self) -> list[Answer]:
        """Settles every lapsed lease, as upkeep does."""
        page = await self.engine.find(Filter(states=ACTIVE, lease_until=self.now))
        changes = [await self.lost(job) for job in page.jobs if actions.lapses(job)]
        return await self.engine.apply(changes)

    async def lost(self, job: Job) -> Change:
        """The change that a lapsed lease amounts to."""
        status = await self.engine.key(job.service, job.key.hash) if job.key else None
        return await self.settled(job, Lost(contended=status is not None and status.queued > 0))

    async def expire(self) -> list[Answer]:
        """Expires what is overdue, as upkeep does."""
        page = await self.engine.find(Filter(states=WAITING, expires_until=self.now))
        return await self.engine.apply([actions.expire(job, self.now) for job in page.jobs])

    async def prune(self, journal_before: int = 0, limit: int = 500) -> int:
        """Deletes what retention lets go, as upkeep does."""
        places = {(c.service, c.queue) for c in await self.engine.count()}
        settings = {place: await self.settings(place[1], place[0]) for place in places}
        order = Prune(
            now=self.now,
            cutoffs=tuple(cutoffs(settings, self.now)),
            journal_before=journal_before,
            limit=limit,
        )
        return await self.engine.prune(order)

    async def set_queue(self, settings: QueueSettings, queue: str = "q") -> None:
        """Writes the settings of a queue."""
        name = queue_document(self.service, queue)
        body = msgspec.Raw(msgspec.json.encode(settings))
        assert (await self.engine.put([Put(QUEUE_KIND, name, body)], self.now))[0] is not None

    async def settings(self, queue: str = "q", service: str | None = None) -> QueueSettings:
        """The settings of a queue as they are stored."""
        name = queue_document(service or self.service, queue)
        for document in await self.engine.scan(QUEUE_KIND, self.now):
            if document.name == name:
                return decode(document.body)
        return DEFAULTS

    # Looking

    async def details(self, id: str) -> Details:
        found = (await self.engine.get([id]))[0]
        assert found is not None, f"{id} does not exist"
        return found

    async def job(self, id: str) -> Job:
        return (await self.details(id)).job

    async def exists(self, id: str) -> bool:
        return (await self.engine.get([id]))[0] is not None

    async def state(self, id: str) -> State:
        return (await self.job(id)).state

    async def states(self, *ids: str) -> list[State]:
        return [await self.state(id) for id in ids]

    async def errors(self, id: str) -> list[TryError]:
        return list((await self.details(id)).errors)

    async def parents(self, id: str) -> list[Parent]:
        return list((await self.details(id)).parents)

    async def found(self, filter: Filter) -> list[str]:
        """The ids that a filter means, newest first, over all pages."""
        ids: list[str] = []
        cursor: str | None = None
        while True:
            page = await self.engine.find(filter, cursor)
            ids.extend(job.id for job in page.jobs)
            cursor = page.cursor
            if cursor is None:
                return ids

    async def counts(self, service: str | None = None) -> dict[tuple[str, State], int]:
        """Jobs by queue and state."""
        counted: list[Counted] = await self.engine.count(service)
        return {(c.queue, c.state): c.jobs for c in counted}

    async def entries(self, id: str | None = None) -> list[Entry]:
        return await self.engine.journal(0, job_id=id)

    async def events(self, id: str | None = None) -> list[Event]:
        return [entry.event for entry in await self.entries(id)]

    async def story(self, id: str) -> list[EventType]:
        """What happened to a job, in order."""
        return [event.event for event in await self.events(id)]

    async def key(self, limit: KeyLimit) -> KeyStatus:
        status = await self.engine.key(self.service, limit.hash)
        assert status is not None
        return status

    def listen(self, *topics: str) -> Bell:
        return self.engine.listen(frozenset(topics))


async def rings(bell: Bell) -> bool:
    """Whether the bell rings; waits for it as long as any engine may need."""
    return await bell.wait(RING_LIMIT)


def made(answer: Answer) -> Job:
    """The job after a change that must have been made."""
    assert isinstance(answer, Applied), answer
    return answer.job


def refused(answer: Answer) -> NotApplied:
    """The refusal of a change that must not have been made."""
    assert isinstance(answer, NotApplied), answer
    return answer
