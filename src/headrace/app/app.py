"""App: the service's tasks, its engine, and everything a user does with jobs."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import os
import random
from collections import deque
from collections.abc import (
    Awaitable,
    Callable,
    Generator,
    Iterable,
    Sequence,
)
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager
from itertools import islice
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    ParamSpec,
    Self,
    TypeVar,
    Unpack,
    cast,
    overload,
)

import msgspec

from headrace.app import building, options
from headrace.app.engines import engine_of
from headrace.app.jobref import JobRef
from headrace.app.looking import Looking
from headrace.app.options import JobOptions
from headrace.app.task import BATCH, Prepared, Submission, Task, submission, unwrap
from headrace.core import codec
from headrace.core.admission import IN_GROUP, Verdict
from headrace.core.errors import AppClosed, InvalidValue, PartlyEnqueued
from headrace.core.ids import ulid
from headrace.core.model import MAX_PAYLOAD, NewJob
from headrace.core.names import check_name
from headrace.core.values import Check, flag, whole
from headrace.core.version import VERSION
from headrace.engine.protocol import Engine
from headrace.runtime.clock import Clock, SystemClock
from headrace.runtime.handler import (
    Handler,
    IsFailure,
    Middleware,
    Mode,
    Router,
    check_middleware,
    describe,
)
from headrace.runtime.processes import target_of
from headrace.runtime.resources import Provider

# What only a worker needs is imported when one is made: most processes only enqueue.
if TYPE_CHECKING:
    from headrace.app.blocking import BlockingApp
    from headrace.app.workers import WorkerChoices
    from headrace.runtime.context import JobContext
    from headrace.runtime.worker import Equipment, Hook, Worker, WorkerOptions

P = ParamSpec("P")
R = TypeVar("R")

_Writing = asyncio.Future[list[tuple[Verdict, ...]]]


class TaskOptions(JobOptions, total=False):
    """What `@app.task` takes besides the job options."""

    type: str
    """The type's name; the function's name unless set."""
    cpu: bool
    """Run in a child process that is killed when its time is up."""
    terminates_on: Sequence[type[BaseException]]
    """Exceptions that fail the job at once, with no retry."""
    is_failure: IsFailure
    """Whether an exception counts as a failed try."""
    middleware: Sequence[Middleware]
    load_dependencies: bool
    """Load the parents' results before the handler runs."""


def _listed(field: str, value: object) -> Sequence[object]:
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        raise InvalidValue(field, f"{value!r} is not a list")
    return cast(Sequence[object], value)


def _exceptions(field: str, value: object) -> None:
    for one in _listed(field, value):
        if not (isinstance(one, type) and issubclass(one, BaseException)):
            raise InvalidValue(field, f"{one!r} is not an exception class")


def _hook(field: str, value: object) -> None:
    if not callable(value):
        raise InvalidValue(field, f"{value!r} is not callable")


_TASK_CHECKS: dict[str, Check] = {
    "cpu": flag,
    "terminates_on": _exceptions,
    "is_failure": _hook,
    "middleware": lambda field, value: check_middleware(_listed(field, value)),
    "load_dependencies": flag,
}

_TASK_ONLY = frozenset(TaskOptions.__annotations__) - frozenset(JobOptions.__annotations__)


class _Stranger:
    """For type checkers: a function that takes it first takes anything there (`Any`, `object`, no
    annotation), so that nothing can be said of its parameters; it does not ask for `ctx`."""


class Decorator:
    """What `@app.task(…)` returns; knows the function's parameters without `ctx`."""

    def __init__(self, register: Callable[[Callable[..., Any]], Task[..., Any]]) -> None:
        self._register = register

    @overload
    def __call__(
        self, function: Callable[Concatenate[_Stranger, ...], Awaitable[R]], /
    ) -> Task[..., R]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[JobContext, P], Awaitable[R]], /
    ) -> Task[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, Awaitable[R]], /) -> Task[P, R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[_Stranger, ...], R], /) -> Task[..., R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[JobContext, P], R], /) -> Task[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R]: ...
    def __call__(self, function: Callable[..., Any], /) -> Task[..., Any]:
        return self._register(function)


class App(Looking):
    """One service: `app = App("sqlite:jobs.db")`.

    The engine is opened at first use, or by `async with app:`, and stays open until `close`.
    """

    def __init__(
        self,
        url: str | os.PathLike[str] | Engine | None = None,
        *,
        service: str = "default",
        clock: Clock | None = None,
        max_payload: int = MAX_PAYLOAD,
    ) -> None:
        self.service = check_name("service", service)
        self.clock: Clock = clock or SystemClock()
        self.max_payload = whole("max_payload", max_payload)
        self._engine = engine_of(url)
        self._opened = 0
        """The process in which the engine is open: one that was forked has to open it anew."""
        self._closed = False
        self._router = Router()
        self._tasks: dict[str, Task[..., Any]] = {}
        self._middleware: list[Middleware] = []
        self._providers: dict[Any, Provider] = {}
        self._on_start: list[Hook] = []
        self._on_stop: list[Hook] = []

    def __repr__(self) -> str:
        return f"<App {self.service!r} on {self._engine.url}>"

    @property
    def url(self) -> str:
        """Where the jobs are."""
        return self._engine.url

    # Life

    async def engine(self) -> Engine:
        """The engine, open."""
        if self._opened == os.getpid():
            return self._engine
        if self._closed:
            raise AppClosed(f"{self!r} is closed; open it again with `await app.open()`")
        await self.open()
        return self._engine

    async def open(self) -> Self:
        """Opens the engine. Opening twice is harmless."""
        await self._engine.open()
        self._opened, self._closed = os.getpid(), False
        return self

    async def close(self) -> None:
        """Commits what was accepted and closes the engine."""
        self._opened, self._closed = 0, True
        await self._engine.close()

    @contextmanager
    def using(self, engine: Engine, clock: Clock | None = None) -> Generator[Self]:
        """Inside `with app.using(engine):`, the app works on another engine, by another clock;
        for tests of modules that have an app of their own."""
        before, closed = (self._engine, self.clock, self._opened), self._closed
        self._engine, self.clock = engine, clock or self.clock
        self._opened, self._closed = 0, False
        try:
            yield self
        finally:
            (self._engine, self.clock, self._opened), self._closed = before, closed

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # Registration

    @overload
    def task(
        self, function: Callable[Concatenate[_Stranger, ...], Awaitable[R]], /
    ) -> Task[..., R]: ...
    @overload
    def task(
        self, function: Callable[Concatenate[JobContext, P], Awaitable[R]], /
    ) -> Task[P, R]: ...
    @overload
    def task(self, function: Callable[P, Awaitable[R]], /) -> Task[P, R]: ...
    @overload
    def task(self, function: Callable[Concatenate[_Stranger, ...], R], /) -> Task[..., R]: ...
    @overload
    def task(self, function: Callable[Concatenate[JobContext, P], R], /) -> Task[P, R]: ...
    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R]: ...
    @overload
    def task(self, /, **given: Unpack[TaskOptions]) -> Decorator: ...
    def task(self, function: Callable[..., Any] | None = None, /, **given: Any) -> Any:
        """Registers a function as a task: bare, or with options."""
        if function is not None:
            return self._register(function, {})
        return Decorator(lambda function: self._register(function, given))

    def _register(self, function: Callable[..., Any], given: dict[str, Any]) -> Task[..., Any]:
        if not callable(function):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidValue("task", f"{function!r} is not a function")
        own = cast(TaskOptions, {name: given[name] for name in given if name in _TASK_ONLY})
        job_options = options.check({n: v for n, v in given.items() if n not in _TASK_ONLY})
        type = own["type"] if "type" in own else getattr(function, "__name__", None)
        if type is None:
            raise InvalidValue("type", f"{function!r} has no name; give it a type")
        for name, checker in _TASK_CHECKS.items():
            if name in given:
                checker(name, given[name])
        handler = describe(function, type)
        policy = job_options.get("retry")
        handler = msgspec.structs.replace(
            handler,
            mode=_mode(handler, own.get("cpu", False)),
            retry=policy if callable(policy) else None,
            terminates_on=tuple(own.get("terminates_on", ())),
            is_failure=own.get("is_failure"),
            middleware=tuple(own.get("middleware", ())),
            loads_dependencies=own.get("load_dependencies", False),
        )
        self._router.add(handler)
        self._tasks[handler.type] = Task(self, handler, job_options)
        return self._tasks[handler.type]

    def use(self, *middleware: Middleware) -> None:
        """Wraps every handler; the first is outermost."""
        check_middleware(middleware)
        self._middleware.extend(middleware)

    def resource(self, provider: Callable[..., Any]) -> Callable[..., Any]:
        """Registers what makes a resource; handlers ask for it by its type.

        `@app.resource def db() -> Database: …`, then `async def f(db: Database = provided())`.
        """
        made = _made_by(provider)
        if made in self._providers:
            raise InvalidValue("resource", f"{made!r} is provided twice")
        self._providers[made] = provider
        return provider

    def on_start(self, hook: Hook) -> Hook:
        """Called when a worker starts; an exception aborts the start."""
        _hook("on_start", hook)
        self._on_start.append(hook)
        return hook

    def on_stop(self, hook: Hook) -> Hook:
        """Called when a worker has stopped; exceptions are logged."""
        _hook("on_stop", hook)
        self._on_stop.append(hook)
        return hook

    @property
    def types(self) -> list[str]:
        """The registered types."""
        return sorted(handler.type for handler in self._router)

    @property
    def task_queues(self) -> list[str]:
        """The queues that the tasks enqueue into: `default`, and those they name."""
        return sorted({"default", *(task.queue for task in self._tasks.values())})

    def registered(self, type: str) -> Task[..., Any] | None:
        """The task of exactly this type, if there is one."""
        return self._tasks.get(type)

    # Enqueue

    def check_options(self, given: dict[str, Any]) -> JobOptions:
        """Raises InvalidValue for options that make no sense."""
        return options.check(given)

    def build(
        self,
        handler: Handler,
        chosen: JobOptions,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> NewJob:
        """The job of a call, checked and encoded."""
        if not handler.type:
            raise InvalidValue(
                "type", "the catch-all takes every type and has none; use app.prepare(type, …)"
            )
        payload = handler.parameters.encode(args, kwargs)
        return building.assemble(
            handler.type, payload, self.service, chosen, self.clock.now(), self.max_payload
        )

    def prepare(self, type: str, payload: Any = None, **given: Unpack[JobOptions]) -> Prepared[Any]:
        """A job of any type, for callers that do not have the function."""
        check_name("type", type)
        body = codec.encode({} if payload is None else payload, "the payload")
        if not body.startswith(b"{"):
            raise InvalidValue("payload", "must be a JSON object of the arguments by name")
        chosen = options.travelling(options.check(given))
        job = building.assemble(
            type, body, self.service, chosen, self.clock.now(), self.max_payload
        )
        return Prepared(job, codec.Decoder(Any))

    async def enqueue_many(
        self, jobs: Iterable[Prepared[Any]], *, batch: int = BATCH
    ) -> list[Submission[Any]]:
        """Enqueues jobs of different tasks in order and answers for each separately.

        A generator is taken as it comes: the next jobs are prepared while the last are written.
        Where it fails after some were confirmed, PartlyEnqueued carries the answers for those.
        """
        whole("batch", batch)
        answers: list[Submission[Any]] = []
        writing: deque[tuple[list[Prepared[Any]], _Writing]] = deque()
        source = iter(jobs)
        try:
            while chunk := list(islice(source, batch)):
                written = asyncio.ensure_future(
                    self.insert([(job,) for job in unwrap(chunk, self.service)])
                )
                writing.append((chunk, written))
                await asyncio.sleep(0)  # hands the chunk over before the next is prepared
                if len(writing) > 1:
                    answers += self._written(writing[0][0], await writing[0][1])
                    writing.popleft()
            while writing:
                answers += self._written(writing[0][0], await writing[0][1])
                writing.popleft()
        except BaseException as error:
            answers += await self._rest(writing)
            if answers and isinstance(error, Exception):
                raise PartlyEnqueued(answers, error) from error
            raise
        return answers

    def _written(
        self, chunk: list[Prepared[Any]], verdicts: list[tuple[Verdict, ...]]
    ) -> list[Submission[Any]]:
        return [
            submission(self, one, verdict) for one, (verdict,) in zip(chunk, verdicts, strict=True)
        ]

    async def _rest(
        self, writing: Iterable[tuple[list[Prepared[Any]], _Writing]]
    ) -> list[Submission[Any]]:
        """The answers to those of the chunks under way that are written."""
        answers: list[Submission[Any]] = []
        chunks = list(writing)
        written = await asyncio.gather(*(one for _, one in chunks), return_exceptions=True)
        for (chunk, _), verdicts in zip(chunks, written, strict=True):
            if not isinstance(verdicts, BaseException):
                answers += self._written(chunk, verdicts)
        return answers

    async def enqueue_group(self, jobs: Iterable[Prepared[Any]]) -> list[JobRef[Any]]:
        """Enqueues all of the jobs or none: a graph whose parents come before their dependents."""
        prepared = list(jobs)
        if not prepared:
            return []
        (verdicts,) = await self.insert([tuple(unwrap(prepared, self.service))])
        answers = [
            submission(self, one, verdict) for one, verdict in zip(prepared, verdicts, strict=True)
        ]
        refused = [answer.error for answer in answers if answer.error and answer.reason != IN_GROUP]
        refused += [answer.error for answer in answers if answer.error]
        if refused:
            raise refused[0]
        return [answer.ref for answer in answers if answer.ref is not None]

    def insert(self, groups: Sequence[Sequence[NewJob]]) -> Awaitable[list[tuple[Verdict, ...]]]:
        """Hands jobs to the engine, or to the transaction that is bound here."""
        if bound_transaction.get() is None and self._opened == os.getpid():
            return self._engine.insert(groups, self.clock.now())
        return self._insert(groups)

    async def _insert(self, groups: Sequence[Sequence[NewJob]]) -> list[tuple[Verdict, ...]]:
        bound = bound_transaction.get()
        if bound is not None and bound.app is self:
            return bound.insert(groups)
        engine = await self.engine()
        return await engine.insert(groups, self.clock.now())

    def bound_here(self) -> bool:
        """Whether a caller's transaction is bound here; see `bind`."""
        bound = bound_transaction.get()
        return bound is not None and bound.app is self

    def submit_bound(self, prepared: Prepared[R]) -> Submission[R]:
        """Enqueues in the bound transaction, without an event loop."""
        bound = bound_transaction.get()
        assert bound is not None
        ((verdict,),) = bound.insert(((prepared.job,),))
        return submission(self, prepared, verdict)

    def bind(self, connection: Any) -> AbstractContextManager[None]:
        """Inside `with app.bind(connection):`, jobs are enqueued in the connection's own
        transaction: they commit or roll back with the caller's rows."""
        from headrace.app.binding import Binding

        return Binding(self, self._engine, connection)

    # Work

    def equipment(self) -> Equipment:
        """What the app lends to its workers."""
        from headrace.runtime.worker import Equipment

        return Equipment(
            router=self._router,
            middleware=self._middleware,
            providers=self._providers,
            on_start=self._on_start,
            on_stop=self._on_stop,
            version=VERSION,
        )

    def worker(self, chosen: WorkerOptions | None = None) -> Worker:
        """A bare worker on this app's engine, not yet started; the app must be open.

        It does no upkeep: nobody rescues the jobs of dead workers, unless another worker does.
        `working` is what a service wants that runs a worker beside something else.
        """
        from headrace.runtime.worker import Worker, WorkerOptions

        identity = f"w-{ulid(self.clock.now(), random.getrandbits(80))}"
        return Worker(
            self._engine,
            self.clock,
            self.service,
            identity,
            self.equipment(),
            chosen or WorkerOptions(),
        )

    def working(self, **chosen: Unpack[WorkerChoices]) -> AbstractAsyncContextManager[Worker]:
        """`async with app.working(queues="mail"):` runs a worker with its upkeep beside whatever
        else the event loop does, such as a web service."""
        from headrace.app.workers import worker_options, working

        return working(self, worker_options({"queues": self.task_queues, **chosen}))

    async def work(self, **chosen: Unpack[WorkerChoices]) -> None:
        """Opens the app and works until cancelled; serves the queues of its tasks unless told."""
        from headrace.app.workers import work, worker_options

        await work(self, worker_options({"queues": self.task_queues, **chosen}))

    def run_worker(self, **chosen: Unpack[WorkerChoices]) -> None:
        """Works until the process is told to stop (SIGINT, SIGTERM)."""
        from headrace.app.workers import run_worker, worker_options

        run_worker(self, worker_options({"queues": self.task_queues, **chosen}))

    @property
    def blocking(self) -> BlockingApp:
        """The same for code without an event loop."""
        from headrace.app.blocking import BlockingApp

        return BlockingApp(self)


def _mode(handler: Handler, cpu: bool) -> Mode:
    if not cpu:
        return handler.mode
    if handler.resources:
        raise InvalidValue("cpu", "a handler in a child process cannot be given resources")
    target_of(handler.function)
    return Mode.PROCESS


def _made_by(provider: Callable[..., Any]) -> Any:
    hints = codec.type_hints(provider)
    made = hints.get("return")
    if made is None:
        raise InvalidValue("resource", f"{provider!r} needs a return annotation")
    if inspect.isgeneratorfunction(provider) or inspect.isasyncgenfunction(provider):
        made = made.__args__[0]
    return made


if TYPE_CHECKING:
    from headrace.app.binding import Binding

bound_transaction: contextvars.ContextVar[Binding | None] = contextvars.ContextVar(
    "headrace_bound", default=None
)
