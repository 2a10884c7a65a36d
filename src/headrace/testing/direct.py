"""Running a task's handler right here, with a context that is not a worker's."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, ParamSpec, TypeVar

import msgspec

from headrace.app.task import Task
from headrace.core.admission import Facts, admit
from headrace.core.change import Applied, Change, written
from headrace.core.model import Job, LogEntry, NewJob, Progress
from headrace.core.outcome import Completed, Outcome, settle
from headrace.core.queue import DEFAULTS
from headrace.core.states import State
from headrace.runtime.clock import Clock
from headrace.runtime.context import JobContext
from headrace.runtime.executor import Executor
from headrace.runtime.handler import Handler, Middleware, Mode, Next
from headrace.runtime.processes import ProcessPool
from headrace.runtime.resources import Provider, Resources
from headrace.runtime.threads import ThreadPool

P = ParamSpec("P")
R = TypeVar("R", covariant=True)

_CHANCE = 0.5


class TaskRun(Generic[R]):
    """What a run came to."""

    def __init__(self, task: Task[..., R], outcome: Outcome, job: Job, desk: _Desk) -> None:
        self._task, self._desk = task, desk
        self.outcome = outcome
        self.job = job
        """The job as a worker would have left it."""

    def __repr__(self) -> str:
        return f"<TaskRun {self._task.type!r} {self.state}>"

    @property
    def state(self) -> State:
        return self.job.state

    @property
    def error(self) -> BaseException | None:
        """What the handler raised."""
        return self._desk.error

    @property
    def progress(self) -> list[Progress]:
        return self._desk.progress

    @property
    def logs(self) -> list[LogEntry]:
        return self._desk.logs

    @property
    def result(self) -> R:
        """What the handler returned, through JSON and back; raises what it raised."""
        if isinstance(self.outcome, Completed):
            raw = b"null" if self.outcome.result is None else self.outcome.result
            return self._task.handler.parameters.result.decode(raw)
        if self.error is not None:
            raise self.error
        raise AssertionError(f"{self._task!r} has no result: {self.outcome}")


async def run_task(task: Task[P, R], *args: P.args, **kwargs: P.kwargs) -> TaskRun[R]:
    """Runs the handler as a worker would, with its middleware and resources: the arguments go
    through JSON, and what it returns or raises becomes an outcome. Nothing is stored."""
    return await Setup().run(task, *args, **kwargs)


@dataclass(kw_only=True)
class Setup:
    """What a handler finds when it is run: `await Setup(number=3).run(task, …)`."""

    number: int = 1
    """Which try it is."""
    dependencies: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The parents' results by id."""
    resources: Mapping[Any, Any] = field(default_factory=dict[Any, Any])
    """Resources by their type, in place of the app's."""

    async def run(self, task: Task[P, R], *args: P.args, **kwargs: P.kwargs) -> TaskRun[R]:
        """See `run_task`."""
        app, equipment = task.app, task.app.equipment()
        now = app.clock.now()
        job = _started(task.prepare(*args, **kwargs).job, self.number, now)
        desk = _Desk(app.clock, self.dependencies)
        ctx = JobContext(job, desk)
        threads = ThreadPool(1)
        given = {kind: _provider(value) for kind, value in self.resources.items()}
        resources = Resources({**equipment.providers, **given})
        executor = Executor(
            equipment.router,
            app.clock,
            threads,
            ProcessPool(0),
            equipment.middleware,
            resources.of,
        )
        try:
            outcome = await executor.run(_here(task.handler, desk.watch), ctx)
        finally:
            threads.close()
            await resources.close()
        assert outcome is not None, "only a lost lease has no outcome, and here is none"
        change = settle(job, outcome, app.clock.now(), _CHANCE, DEFAULTS)
        after = written(job, change.cases[0].write, 2)
        assert after is not None
        for function in ctx.after:
            following: object = function(ctx, Applied(after))
            if isinstance(following, Awaitable):
                await following
        return TaskRun(task, outcome, after, desk)


class _Desk:
    """Stands for the worker."""

    def __init__(self, clock: Clock, results: Mapping[str, Any]) -> None:
        self._clock, self._results = clock, results
        self.progress: list[Progress] = []
        self.logs: list[LogEntry] = []
        self.error: BaseException | None = None

    def now(self) -> int:
        return self._clock.now()

    def send(self, change: Change) -> None:
        write = change.cases[0].write
        if isinstance(write.progress, Progress):
            self.progress.append(write.progress)
        self.logs.extend(write.logs)

    def renew(self) -> None:
        """There is no lease."""

    def in_line(self, ctx: JobContext, waiting: bool) -> None:
        """There is no time limit."""

    async def dependencies(self, job: Job) -> Mapping[str, Any]:
        return self._results

    async def watch(self, ctx: JobContext, proceed: Next) -> Any:
        """The innermost middleware: keeps what the handler raised."""
        try:
            return await proceed()
        except BaseException as error:
            self.error = error
            raise


def _started(new: NewJob, number: int, now: int) -> Job:
    """The job as if a worker had claimed it."""
    job = admit(new, Facts(DEFAULTS), now).job
    assert job is not None
    return msgspec.structs.replace(
        job,
        seq=1,
        version=1,
        token=1,
        state=State.ACTIVE,
        tries=number,
        started_at=now,
        worker="test",
    )


def _here(handler: Handler, innermost: Middleware) -> Handler:
    """The same handler in this process."""
    mode = handler.mode
    if mode is Mode.PROCESS:
        mode = Mode.LOOP if inspect.iscoroutinefunction(handler.function) else Mode.THREAD
    return msgspec.structs.replace(handler, mode=mode, middleware=(*handler.middleware, innermost))


def _provider(value: Any) -> Provider:
    make: Callable[[], Any] = lambda: value  # noqa: E731
    return make
