"""JobRef: a job as its caller holds it. Made by `enqueue`, or from the id alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from msgspec import Struct

from headrace.app.options import Seconds
from headrace.core import actions
from headrace.core.change import Applied, Change
from headrace.core.codec import Decoder
from headrace.core.errors import JobFailed, JobNotFound, Refused
from headrace.core.event import Event
from headrace.core.model import Job, Progress
from headrace.core.states import FINAL, EventType, State
from headrace.core.values import from_now, text
from headrace.engine.protocol import Details, job_topic

if TYPE_CHECKING:
    from headrace.app.app import App

R = TypeVar("R", covariant=True)

_LOOK_AGAIN = 5.0


class Snapshot(Struct, frozen=True, kw_only=True):
    """How a job stands, or stood after one change."""

    id: str
    state: State
    event: EventType
    at: int
    tries: int
    version: int
    progress: Progress | None = None
    error: str | None = None

    @property
    def final(self) -> bool:
        return self.state in FINAL

    @classmethod
    def of_job(cls, job: Job) -> Snapshot:
        error = f"{job.error.type}: {job.error.message}" if job.error else None
        return cls(
            id=job.id,
            state=job.state,
            event=job.event,
            at=job.updated_at,
            tries=job.tries,
            version=job.version,
            progress=job.progress,
            error=error,
        )

    @classmethod
    def of_event(cls, event: Event) -> Snapshot:
        return cls(
            id=event.job_id,
            state=event.state,
            event=event.event,
            at=event.at,
            tries=event.tries,
            version=event.seq,
            progress=event.progress,
            error=event.error,
        )


_TOLD_BY_ERROR = frozenset({State.FAILED, State.DEAD})


class JobRef(Generic[R]):
    """A job by its id; works in any process."""

    def __init__(self, app: App, job_id: str, result: Decoder | None = None) -> None:
        self._app, self.id = app, job_id
        self._result = result or Decoder(Any)

    def __repr__(self) -> str:
        return f"JobRef({self.id!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, JobRef) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    async def details(self) -> Details:
        """The job with its errors, logs and parents, or JobNotFound."""
        engine = await self._app.engine()
        found = (await engine.get([self.id]))[0]
        if found is None:
            raise JobNotFound(self.id)
        return found

    async def get(self) -> Job:
        """The job as it stands, or JobNotFound."""
        return (await self.details()).job

    async def wait(self, timeout: Seconds | None = None) -> Job:
        """The job once it has ended; TimeoutError if that takes longer. It looks at least once."""
        seconds = None if timeout is None else from_now("timeout", timeout) / 1000
        engine = await self._app.engine()
        bell = engine.listen(frozenset({job_topic(self.id)}))
        try:
            job = await self.get()
            async with asyncio.timeout(seconds):
                while job.state not in FINAL:
                    await bell.wait(_LOOK_AGAIN)
                    job = await self.get()
            return job
        except TimeoutError:
            if seconds is None:
                raise
            raise TimeoutError(f"job {self.id} has not ended after {seconds:g} s") from None
        finally:
            bell.close()

    async def result(self, timeout: Seconds | None = None) -> R:
        """What the handler returned, or JobFailed with the remote error."""
        job = await self.wait(timeout)
        if job.state is not State.COMPLETED:
            error = job.error
            raise JobFailed(
                self.id,
                job.state,
                error and error.type,
                error and error.message,
                error and error.traceback,
                await self._reason(job),
            )
        # A job that was moved has the result of another task than the one that made this ref.
        decoder = self._result if job.type == job.spec.type else Decoder(Any)
        return decoder.decode(b"null" if job.result is None else job.result)

    async def _reason(self, job: Job) -> str | None:
        """Why a job ended as it did, as far as the journal tells; where an error tells it, that is
        not asked."""
        if job.state in _TOLD_BY_ERROR:
            return None
        engine = await self._app.engine()
        entries = await engine.journal(job.version - 1, 1, self.id)
        return entries[0].event.reason if entries else None

    async def watch(self) -> AsyncIterator[Snapshot]:
        """How the job stands, then each change, until it has ended."""
        engine = await self._app.engine()
        bell = engine.listen(frozenset({job_topic(self.id)}))
        try:
            snapshot = Snapshot.of_job(await self.get())
            yield snapshot
            while not snapshot.final:
                entries = await engine.journal(snapshot.version, job_id=self.id)
                for entry in entries:
                    snapshot = Snapshot.of_event(entry.event)
                    yield snapshot
                    if snapshot.final:
                        return
                if not entries:
                    await bell.wait(_LOOK_AGAIN)
        finally:
            bell.close()

    async def cancel(self, reason: str = "cancelled by request") -> bool:
        """Ends a waiting job at once and asks a running one to stop. False if it has ended."""
        reason = text("reason", reason)
        job = await self.get()
        answer = await self._apply(actions.cancel(job, self._app.clock.now(), reason))
        return isinstance(answer, Applied)

    async def retry(self) -> Job:
        """Brings an ended job back: same identity, tries from 0."""
        return await self._do(actions.retry(await self.get(), self._app.clock.now()), "retried")

    async def replay(self) -> Job:
        """Brings a dead job back."""
        return await self._do(actions.replay(await self.get(), self._app.clock.now()), "replayed")

    async def dismiss(self, reason: str | None = None) -> Job:
        """Takes a dead job out of the dead letters."""
        reason = None if reason is None else text("reason", reason)
        change = actions.dismiss(await self.get(), self._app.clock.now(), reason)
        return await self._do(change, "dismissed")

    async def delete(self) -> None:
        """Deletes the job; one that waits is cancelled, one that runs is refused."""
        await self._do(actions.delete(await self.get(), self._app.clock.now()), "deleted")

    async def set_priority(self, priority: int) -> Job:
        """Changes the priority of a waiting job."""
        self._app.check_options({"priority": priority})
        change = actions.reprioritise(await self.get(), self._app.clock.now(), priority)
        return await self._do(change, "given another priority")

    async def run_now(self) -> Job:
        """Makes a delayed job due."""
        now = self._app.clock.now()
        return await self._do(actions.reschedule(await self.get(), now, now), "run now")

    async def free_unique(self) -> Job:
        """Gives a waiting job's dedup key back."""
        change = actions.free_dedup(await self.get(), self._app.clock.now())
        return await self._do(change, "given up its dedup key")

    async def why(self) -> list[str]:
        """Why the job is not running."""
        return await self._app.why(self.id)

    async def _apply(self, change: Change):
        engine = await self._app.engine()
        return (await engine.apply([change]))[0]

    async def _do(self, change: Change, done: str) -> Job:
        answer = await self._apply(change)
        if isinstance(answer, Applied):
            return answer.job
        if answer.job is None:
            raise JobNotFound(self.id)
        raise Refused(f"job {self.id} cannot be {done}: {answer.reason}")
