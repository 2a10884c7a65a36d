"""Task: a function registered under a type; what enqueues jobs of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, Unpack, cast

from msgspec import Struct

from headrace.app.jobref import JobRef
from headrace.app.options import JobOptions, check, travelling
from headrace.core.admission import IN_GROUP, Outcome, Verdict
from headrace.core.codec import Decoder
from headrace.core.errors import (
    DuplicateJob,
    EnqueueRefused,
    InvalidValue,
    KeyBusy,
    QueueFull,
    UnknownParent,
)
from headrace.core.model import NewJob
from headrace.runtime.handler import Handler

if TYPE_CHECKING:
    from headrace.app.app import App
    from headrace.app.blocking import BlockingTask

P = ParamSpec("P")
R = TypeVar("R", covariant=True)


BATCH = 250
"""`enqueue_many` hands over so many jobs per round trip."""


class Prepared(Struct, Generic[R], frozen=True, gc=False):
    """A job that is checked and encoded, but not yet enqueued; for `app.enqueue_many`."""

    job: NewJob
    result: Decoder

    @property
    def id(self) -> str:
        return self.job.id


class Submission(Struct, Generic[R], frozen=True):
    """What became of one job: accepted, replaced, duplicate, coalesced or rejected."""

    outcome: Outcome
    ref: JobRef[R] | None
    """The new job, where there is one."""
    reason: str | None = None
    existing_id: str | None = None
    replaced: tuple[str, ...] = ()
    error: EnqueueRefused | None = None

    @property
    def accepted(self) -> bool:
        return self.ref is not None


class Task(Generic[P, R]):
    """A function registered under a type. Call it to run the function right here; `enqueue` to
    have it run by a worker."""

    def __init__(self, app: App, handler: Handler, options: JobOptions) -> None:
        self._app, self.handler, self._options = app, handler, options
        self.type = handler.type
        self.__name__ = getattr(handler.function, "__name__", handler.type)
        self.__doc__ = handler.function.__doc__
        self.__module__ = getattr(handler.function, "__module__", "")
        self.__qualname__ = getattr(handler.function, "__qualname__", self.__name__)
        self.__wrapped__ = handler.function

    def __repr__(self) -> str:
        return f"<Task {self.type!r}>"

    @property
    def app(self) -> App:
        return self._app

    @property
    def queue(self) -> str:
        """The queue that its jobs go to."""
        return self._options.get("queue", "default")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.handler.function(*args, **kwargs)

    def options(self, **options: Unpack[JobOptions]) -> Task[P, R]:
        """The same task with other options: `mail.options(delay=60).enqueue(…)`."""
        chosen = travelling(check(options))
        own = dict(self._options)
        if chosen.keys() & {"delay", "run_at"}:  # two ways to say one thing: the call's wins
            own = {name: own[name] for name in own if name not in ("delay", "run_at")}
        merged = cast(JobOptions, {**own, **chosen})
        return Task(self._app, self.handler, merged)

    def prepare(self, *args: P.args, **kwargs: P.kwargs) -> Prepared[R]:
        """Checks and encodes a job for `app.enqueue_many`."""
        job = self._app.build(self.handler, self._options, args, kwargs)
        return Prepared(job, self.handler.parameters.result)

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobRef[R]:
        """A ref once the engine has confirmed the job; a typed error otherwise."""
        job = self._app.build(self.handler, self._options, args, kwargs)
        ((verdict,),) = await self._app.insert(((job,),))
        if verdict.job is None:
            raise refusal(job, verdict)
        return JobRef(self._app, verdict.job_id, self.handler.parameters.result)

    async def submit(self, *args: P.args, **kwargs: P.kwargs) -> Submission[R]:
        """Like `enqueue`, but says what became of the job instead of raising."""
        prepared = self.prepare(*args, **kwargs)
        ((verdict,),) = await self._app.insert(((prepared.job,),))
        return submission(self._app, prepared, verdict)

    @property
    def blocking(self) -> BlockingTask[P, R]:
        """The same for code without an event loop."""
        from headrace.app.blocking import BlockingTask

        return BlockingTask(self._app, self)


def submission(app: App, prepared: Prepared[R], verdict: Verdict) -> Submission[R]:
    """A verdict as users see it."""
    if verdict.job is not None:
        ref: JobRef[R] = JobRef(app, verdict.job_id, prepared.result)
        return Submission(verdict.outcome, ref, replaced=verdict.replaced)
    return Submission(
        verdict.outcome,
        None,
        verdict.reason,
        verdict.existing_id,
        error=refusal(prepared.job, verdict),
    )


def refusal(job: NewJob, verdict: Verdict) -> EnqueueRefused:
    """Why a job was not taken, as an error."""
    existing = verdict.existing_id
    kind, text = _REFUSALS.get(verdict.reason or "", (EnqueueRefused, "was refused: {reason}"))
    if verdict.outcome is Outcome.COALESCED:
        kind, text = KeyBusy, "was coalesced into {existing}: key {key!r} is full"
    text = text.format(
        existing=existing,
        key=job.key.name if job.key else "",
        dedup=job.dedup.key if job.dedup else "",
        queue=job.queue,
        reason=verdict.reason,
    )
    return kind(f"job {job.id} ({job.type}) {text}", job_id=job.id, existing_id=existing)


_REFUSALS: dict[str, tuple[type[EnqueueRefused], str]] = {
    "id": (DuplicateJob, "has an id that exists; use another, or `submit` to be told"),
    "dedup-key": (DuplicateJob, "is a duplicate: {existing} holds the key {dedup!r}"),
    "active-limit": (KeyBusy, "was refused: key {key!r} runs its max_active jobs"),
    "queue-depth": (KeyBusy, "was refused: key {key!r} holds its max_queued jobs"),
    "queue-full": (QueueFull, "was refused: queue {queue!r} holds its max_entries jobs"),
    "queue-draining": (QueueFull, "was refused: queue {queue!r} is draining; resume it first"),
    "unknown-parent": (
        UnknownParent,
        "depends on {existing}, which does not exist; enqueue parents first, or before it in one"
        " group",
    ),
    IN_GROUP: (EnqueueRefused, "was not written, because another job of its group was refused"),
}


def unwrap(jobs: Sequence[Prepared[Any]], service: str) -> list[NewJob]:
    """The jobs themselves, which must be of the service."""
    for one in jobs:
        if not isinstance(one, Prepared):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidValue("jobs", f"{one!r} is not a prepared job; use task.prepare(…)")
        if one.job.service != service:
            raise InvalidValue(
                "jobs",
                f"job {one.id} ({one.job.type}) is of service {one.job.service!r}, not of"
                f" {service!r}; enqueue it with the app that prepared it",
            )
    return [prepared.job for prepared in jobs]
