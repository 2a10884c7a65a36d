"""Looking at jobs, queues, keys and workers, and acting on what is seen."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, cast, get_args

import msgspec

from headrace.app import bulk
from headrace.app.detached import DetachedJob
from headrace.app.jobref import JobRef
from headrace.app.queues import Queue, QueueInfo
from headrace.core import keys
from headrace.core.actions import dismiss, release, replay
from headrace.core.change import Applied, Change
from headrace.core.errors import InvalidValue
from headrace.core.event import Event
from headrace.core.model import Counted, Filter, Job, KeyStatus
from headrace.core.names import check_name
from headrace.core.queue import decode
from headrace.core.states import DERIVED, EventType, State
from headrace.core.values import Check, moment, one_of, text, unfit, whole
from headrace.core.why import Surroundings, explain
from headrace.engine.protocol import (
    JOURNAL_TOPIC,
    QUEUE_KIND,
    WORKER_KIND,
    Engine,
    Entry,
    job_topic,
)
from headrace.runtime.clock import Clock
from headrace.runtime.presence import Presence

if TYPE_CHECKING:
    from headrace.app.app import App


class EventFilter(TypedDict, total=False):
    """Which journal entries."""

    job_id: str
    queue: str
    type: str
    event: EventType | str


_EVENT_CHECKS: dict[str, Check] = {
    "job_id": check_name,
    "queue": check_name,
    "type": check_name,
    "event": partial(one_of, EventType),
}


def _matches(event: Event, wanted: EventFilter) -> bool:
    return all(getattr(event, name) == value for name, value in wanted.items())


class Looking:
    """The part of an App that needs no task."""

    service: str
    clock: Clock

    async def engine(self) -> Engine:
        """The engine, open."""
        raise NotImplementedError

    @property
    def _app(self) -> App:
        return cast("App", self)

    def job(self, job_id: str) -> JobRef[Any]:
        """A ref from the id alone."""
        return JobRef(self._app, check_name("id", job_id))

    def detached(self, token: str) -> DetachedJob:
        """A detached job, for whoever holds its token."""
        return DetachedJob(self._app, token)

    def queue(self, name: str) -> Queue:
        """A queue of this service."""
        return Queue(self._app, name)

    async def queues(self) -> list[QueueInfo]:
        """All queues that have jobs or settings."""
        engine = await self.engine()
        counts: dict[str, dict[State, int]] = {}
        for counted in await engine.count(self.service):
            counts.setdefault(counted.queue, {})[counted.state] = counted.jobs
        settings = {
            document.name.partition("/")[2]: decode(document.body)
            for document in await engine.scan(QUEUE_KIND, self.clock.now())
            if document.name.partition("/")[0] == self.service
        }
        return [
            QueueInfo(name, settings.get(name) or decode(b"{}"), counts.get(name, {}))
            for name in sorted(counts.keys() | settings.keys())
        ]

    async def find(self, limit: int | None = 100, **wanted: Any) -> AsyncIterator[Job]:
        """Jobs, newest first: `async for job in app.find(states={"dead"}, queue="mail")`."""
        engine = await self.engine()
        left = None if limit is None else whole("limit", limit, 0)
        stored, derived = _states(wanted.pop("states", ()))
        behind = stored.union(*(DERIVED[state] for state in derived))
        chosen = job_filter(self.service, wanted, behind)
        paused = await paused_queues(self) if "paused" in derived else frozenset[str]()
        cursor = None
        while left is None or left > 0:
            page = await engine.find(chosen, cursor, min(left or 500, 500))
            for job in page.jobs:
                shown = job.shown(self.clock.now(), job.queue in paused) if derived else None
                if shown is None or job.state in stored or shown in derived:
                    yield job
                    left = None if left is None else left - 1
            if page.cursor is None:
                return
            cursor = page.cursor

    async def replay(self, **wanted: Any) -> int:
        """Brings dead jobs back: all, or those that `find` would find. Returns how many."""
        return await self._to_dead_letters(replay, wanted)

    async def dismiss(self, reason: str | None = None, **wanted: Any) -> int:
        """Takes dead jobs out of the dead letters: all, or those that `find` would find. Returns
        how many."""
        reason = None if reason is None else text("reason", reason)
        return await self._to_dead_letters(partial(dismiss, reason=reason), wanted)

    async def _to_dead_letters(
        self, decide: Callable[[Job, int], Change], wanted: dict[str, Any]
    ) -> int:
        if "states" in wanted:
            raise InvalidValue("states", "only dead jobs are meant here")
        chosen = job_filter(self.service, wanted, frozenset({State.DEAD}))
        return (await bulk.act(self._app, chosen, decide)).changed

    async def count(self) -> list[Counted]:
        """Jobs of this service by queue and state."""
        return await (await self.engine()).count(self.service)

    async def events(
        self, after: int = 0, follow: bool = False, **wanted: Unpack[EventFilter]
    ) -> AsyncIterator[Entry]:
        """The journal in order, after a sequence; with `follow`, it goes on as things happen."""
        unknown = sorted(wanted.keys() - EventFilter.__annotations__.keys())
        if unknown:
            known = ", ".join(EventFilter.__annotations__)
            raise InvalidValue(unknown[0], f"is not something to look for; known are {known}")
        for name, value in wanted.items():
            _EVENT_CHECKS[name](name, value)
        if isinstance(after, bool) or not isinstance(after, int) or not 0 <= after < 1 << 63:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidValue("after", f"{after!r} is not a sequence of the journal")
        engine, job_id = await self.engine(), wanted.get("job_id")
        topic = JOURNAL_TOPIC if job_id is None else job_topic(job_id)
        bell = engine.listen(frozenset({topic}))
        try:
            while True:
                entries = await engine.journal(after, job_id=job_id)
                for entry in entries:
                    after = entry.event.seq
                    if entry.event.service == self.service and _matches(entry.event, wanted):
                        yield entry
                if not entries and not follow:
                    return
                if not entries:
                    await bell.wait(1.0)
        finally:
            bell.close()

    async def key(self, *segments: keys.Scalar, hash: str | None = None) -> KeyStatus | None:
        """A concurrency key by its segments or its hash; None if no living job has it."""
        wanted = _key_hash(segments, hash)
        status = await (await self.engine()).key(self.service, wanted)
        if status is None:
            return None
        beats = {worker.id: worker.beat_at for worker in await self.workers()}
        heartbeats = tuple(
            None if job.detached else beats.get(job.worker or "") for job in status.active
        )
        return msgspec.structs.replace(status, heartbeats=heartbeats)

    async def release_key(
        self, *segments: keys.Scalar, hash: str | None = None, reason: str = "released"
    ) -> int:
        """Takes the slots of a blocked key from owners whose lease has run out."""
        reason = text("reason", reason)
        status = await self.key(*segments, hash=hash)
        engine, now = await self.engine(), self.clock.now()
        changes = [release(job, now, reason) for job in (status.active if status else ())]
        answers = await engine.apply(changes) if changes else []
        return sum(isinstance(answer, Applied) for answer in answers)

    async def workers(self) -> list[Presence]:
        """The workers that have been heard of lately, of every service."""
        documents = await (await self.engine()).scan(WORKER_KIND, self.clock.now())
        return [msgspec.json.decode(document.body, type=Presence) for document in documents]

    async def why(self, job_id: str) -> list[str]:
        """Why a job is not running."""
        details = await self.job(job_id).details()
        job, engine = details.job, await self.engine()
        around = Surroundings(self.clock.now(), await self.queue(job.queue).settings())
        around.parents = details.parents
        if job.key:
            around.key = await engine.key(job.service, job.key.hash)
        around.queue_active = sum(
            counted.jobs
            for counted in await engine.count(job.service)
            if counted.queue == job.queue and counted.state is State.ACTIVE
        )
        serving = [
            worker.queues
            for worker in await self.workers()
            if job.queue in worker.queues and worker.service == job.service
        ]
        around.workers, around.devoted = len(serving), serving.count((job.queue,))
        return explain(job, around)


async def paused_queues(app: Looking) -> frozenset[str]:
    """The queues that are paused now."""
    return frozenset(info.name for info in await app.queues() if info.settings.paused)


def _key_hash(segments: tuple[keys.Scalar, ...], hash: str | None) -> str:
    if (hash is None) != bool(segments):
        raise InvalidValue("key", "give the segments of a key, or its hash")
    if hash is not None:
        return text("hash", hash)
    for segment in segments:
        if not isinstance(segment, get_args(keys.Scalar)):
            raise InvalidValue(
                "key",
                f"{segment!r} is not a text, number or boolean; give the segments of a key one by"
                ' one: "tenant", 7',
            )
    return keys.hash_of(segments)


def _states(given: Any) -> tuple[frozenset[State], frozenset[str]]:
    """The stored states that are asked for, and the derived ones."""
    known = {*State, *DERIVED}
    if isinstance(given, str) or not isinstance(given, Iterable):
        given = (given,)
    named = list(cast(Iterable[object], given))
    for state in named:
        if not isinstance(state, str) or state not in known:
            choice = ", ".join([*State, *DERIVED])
            raise InvalidValue("states", f"{state!r} is not a state; states are {choice}")
    names = frozenset(map(str, named))
    return frozenset(State(name) for name in names - DERIVED.keys()), names & DERIVED.keys()


_TIMES = ("created_from", "created_until", "expires_until", "lease_until")


def job_filter(service: str, wanted: dict[str, Any], states: frozenset[State]) -> Filter:
    """A filter from what users write."""
    unknown = sorted(wanted.keys() - set(Filter.__struct_fields__))
    if unknown:
        known = ", ".join(Filter.__struct_fields__)
        raise InvalidValue(unknown[0], f"is not something to look for; known are {known}")
    times = {
        name: moment(name, wanted[name])
        for name in _TIMES
        if name in wanted and not isinstance(wanted[name], int | None)
    }
    fields: dict[str, Any] = {"service": service, **wanted, **times, "states": states}
    try:
        found = msgspec.convert(fields, Filter)
        msgspec.json.encode(found)  # every store takes what has a JSON form
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError) as error:
        raise unfit("filter", error) from None
    return found
