"""Handlers and their routes: which function runs a job of which type."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Awaitable, Callable, Iterator, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from headrace.core.codec import Parameters, storable, type_hints
from headrace.core.errors import InvalidValue, UnknownTask
from headrace.core.names import check_name
from headrace.core.outcome import Problem
from headrace.core.retry import RetryFunction

if TYPE_CHECKING:
    from headrace.runtime.context import JobContext

Next = Callable[[], Awaitable[Any]]
Middleware = Callable[["JobContext", Next], Awaitable[Any]]
"""Wraps the run of a handler: `async def timing(ctx, proceed): … return await proceed()`."""

IsFailure = Callable[[BaseException], bool]


class Mode(Enum):
    """Where a handler runs."""

    LOOP = "loop"
    THREAD = "thread"
    PROCESS = "process"


class Handler(Struct, frozen=True):
    """A function that runs jobs of a type."""

    type: str
    function: Callable[..., Any]
    parameters: Parameters
    mode: Mode
    context_name: str | None = None
    resources: dict[str, Any] = {}
    """Parameter name → the type of the resource that is filled in."""
    retry: RetryFunction | None = None
    terminates_on: tuple[type[BaseException], ...] = ()
    is_failure: IsFailure | None = None
    loads_dependencies: bool = False
    middleware: tuple[Middleware, ...] = ()


class Provided:
    """The default of a parameter that the worker fills in: `db: Database = provided()`."""

    def __repr__(self) -> str:
        return "provided()"


PROVIDED = Provided()


def provided() -> Any:
    """Marks a parameter as a resource, found by its annotation; see `App.resource`."""
    return PROVIDED


def describe(function: Callable[..., Any], type: str, mode: Mode | None = None) -> Handler:
    """A handler for the function: which parameters are payload, and which are filled in."""
    from headrace.runtime.context import Detached, JobContext, MovedTo

    _check_function(function)
    hints = type_hints(function)
    context_name: str | None = None
    resources: dict[str, Any] = {}
    for parameter in inspect.signature(function).parameters.values():
        hint = hints.get(parameter.name)
        if hint is JobContext or (hint is None and _names_context(parameter.annotation)):
            context_name = parameter.name
        elif isinstance(parameter.default, Provided):
            if hint is None:
                raise InvalidValue(
                    parameter.name,
                    "a provided parameter needs an annotation that can be resolved at run time",
                )
            resources[parameter.name] = hint
    filled = frozenset((*resources, context_name) if context_name else resources)
    if mode is None:
        mode = Mode.LOOP if inspect.iscoroutinefunction(function) else Mode.THREAD
    return Handler(
        type=type,
        function=function,
        parameters=Parameters(function, filled, (Detached, MovedTo)),
        mode=mode,
        context_name=context_name,
        resources=resources,
    )


def _check_function(function: Callable[..., Any]) -> None:
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidValue(
            "task", f"{function!r} yields; a handler returns its result, and tells by ctx.progress"
        )
    try:
        inspect.signature(function)
    except (TypeError, ValueError):
        raise InvalidValue(
            "task", f"{function!r} does not tell its parameters; wrap it in a function"
        ) from None


def _names_context(annotation: object) -> bool:
    """Whether an annotation that cannot be resolved (a name imported for type checkers only) is
    the context's."""
    return isinstance(annotation, str) and annotation.rpartition(".")[2] == "JobContext"


def chain(*middleware: Middleware) -> Middleware:
    """Several middleware as one, the first outermost."""
    check_middleware(middleware)

    def composed(ctx: JobContext, proceed: Next) -> Awaitable[Any]:
        return compose(middleware, ctx, proceed)()

    return composed


def compose(middleware: Sequence[Middleware], ctx: JobContext, innermost: Next) -> Next:
    """The call of all of them around `innermost`."""
    call = innermost
    for outer in reversed(middleware):
        call = _around(outer, ctx, call)
    return call


def _around(outer: Middleware, ctx: JobContext, inner: Next) -> Next:
    return lambda: outer(ctx, inner)


def check_middleware(middleware: Sequence[object]) -> None:
    """Raises InvalidValue for anything that cannot be called."""
    for one in middleware:
        if not callable(one):
            raise InvalidValue("middleware", f"{one!r} is not callable")


class Router:
    """Exact type first, then the longest prefix at a `:`, then the catch-all `""`."""

    def __init__(self) -> None:
        self._handlers: dict[str, Handler] = {}
        self._cache: dict[str, Handler | None] = {}

    def add(self, handler: Handler) -> None:
        if handler.type != "":
            check_name("type", handler.type)
        if handler.type in self._handlers:
            taken = self._handlers[handler.type].parameters.name
            raise InvalidValue(
                "type",
                f"{handler.type!r} is registered twice: by {taken} and by"
                f" {handler.parameters.name}; give one of them another name",
            )
        self._handlers[handler.type] = handler
        self._cache.clear()

    def __iter__(self) -> Iterator[Handler]:
        return iter(self._handlers.values())

    def route(self, type: str) -> Handler:
        """The handler of a type, or UnknownTask."""
        if type not in self._cache:
            if len(self._cache) > 10_000:
                self._cache.clear()
            self._cache[type] = self._find(type)
        handler = self._cache[type]
        if handler is None:
            raise UnknownTask(
                f"{type!r} is not registered in this worker; import its module, or add a"
                ' catch-all with type ""'
            )
        return handler

    def _find(self, type: str) -> Handler | None:
        prefix = type
        while prefix:
            if prefix in self._handlers:
                return self._handlers[prefix]
            prefix = prefix.rpartition(":")[0]
        return self._handlers.get("")


def problem_of(error: BaseException) -> Problem:
    """An exception as it is stored with the job."""
    try:
        message = str(error)
    except Exception as broken:
        message = f"<its text cannot be read: {broken!r}>"
    text = "".join(traceback.format_exception(error))
    return Problem(_name_of(type(error)), storable(message), storable(text))


def _name_of(kind: type[BaseException]) -> str:
    """As one would import it: our own are named as users know them, not by where they live."""
    if kind.__module__ == "builtins":
        return kind.__qualname__
    package = "headrace" if kind.__module__.startswith("headrace.") else kind.__module__
    return f"{package}.{kind.__qualname__}"
