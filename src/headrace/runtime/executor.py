"""The executor: one job from its payload to its outcome, as a pipeline of named steps.

route → decode → middleware → run → outcome. It never raises for what a handler, middleware or
hook does; whatever happens is an outcome.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from headrace.core import outcome, signals
from headrace.core.errors import UndecodablePayload, UnknownTask
from headrace.core.outcome import Outcome, Problem
from headrace.core.retry import Custom
from headrace.core.values import from_now, moment
from headrace.runtime.clock import Clock
from headrace.runtime.context import Detached, Interrupt, JobContext, MovedTo, running
from headrace.runtime.handler import Handler, Middleware, Mode, Router, compose, problem_of
from headrace.runtime.processes import ChildFailed, ProcessPool
from headrace.runtime.threads import ThreadPool

log = logging.getLogger("headrace.worker")

Resolve = Callable[[Handler], Awaitable[Mapping[str, Any]]]
"""Finds the resources that a handler asks for."""


class Executor:
    """Runs jobs; knows nothing of leases, slots or the engine."""

    def __init__(
        self,
        router: Router,
        clock: Clock,
        threads: ThreadPool,
        processes: ProcessPool,
        middleware: list[Middleware],
        resolve: Resolve,
    ) -> None:
        self._router, self._clock = router, clock
        self._threads, self._processes = threads, processes
        self._middleware, self._resolve = middleware, resolve

    def handler(self, type: str) -> Handler | None:
        """The handler of a type, None for one that nobody here takes."""
        try:
            return self._router.route(type)
        except UnknownTask:
            return None

    async def run(self, handler: Handler | None, ctx: JobContext) -> Outcome | None:
        """The outcome; None where the lease was lost and nothing may be written."""
        try:
            if handler is None:
                handler = self._router.route(ctx.job.type)
            returned = await self._call(handler, ctx)
            return self._returned(returned, ctx)
        except asyncio.CancelledError:
            return self.interrupted(ctx)
        except BaseException as error:
            if ctx.interrupted is not None:
                return self.interrupted(ctx)
            if isinstance(error, KeyboardInterrupt | SystemExit):
                log.warning("job %s raised %s; taken as a failure", ctx.id, type(error).__name__)
            try:
                return self._raised(error, handler, ctx)
            except Exception as broken:  # a signal with a value that makes no sense
                broken.__cause__ = error
                return outcome.Failed(problem_of(broken))

    def _call(self, handler: Handler, ctx: JobContext) -> Awaitable[Any]:
        try:
            args, kwargs = handler.parameters.decode(ctx.job.spec.payload)
        except UndecodablePayload as error:
            ctx.unfit = error
            raise
        if handler.context_name is not None:
            kwargs[handler.context_name] = ctx
        running.set(ctx)
        if handler.resources or handler.loads_dependencies:
            return self._furnish(handler, ctx, args, kwargs)
        if self._middleware or handler.middleware:
            return self._wrap(handler, ctx, args, kwargs)
        return self._invoke(handler, ctx, args, kwargs)

    async def _furnish(
        self, handler: Handler, ctx: JobContext, args: list[Any], kwargs: dict[str, Any]
    ) -> Any:
        """Fetches first what the handler asks for."""
        if handler.resources:
            kwargs.update(await self._resolve(handler))
        if handler.loads_dependencies and not ctx.dependencies:
            await ctx.load_dependencies()
        return await self._wrap(handler, ctx, args, kwargs)

    def _wrap(
        self, handler: Handler, ctx: JobContext, args: list[Any], kwargs: dict[str, Any]
    ) -> Awaitable[Any]:
        """Puts the middleware around."""

        def proceed() -> Awaitable[Any]:
            return self._invoke(handler, ctx, args, kwargs)

        return compose((*self._middleware, *handler.middleware), ctx, proceed)()

    def _invoke(
        self, handler: Handler, ctx: JobContext, args: list[Any], kwargs: dict[str, Any]
    ) -> Awaitable[Any]:
        match handler.mode:
            case Mode.LOOP:
                return handler.function(*args, **kwargs)
            case Mode.THREAD:
                return _whole(self._threads.call(handler.function, args, kwargs))
            case Mode.PROCESS:
                return self._processes.call(handler.function, ctx)

    def _returned(self, value: Any, ctx: JobContext) -> Outcome | None:
        # Also with a lost lease: the token guards the write, and the journal tells of it.
        if ctx.interrupted is Interrupt.DEADLINE:
            return outcome.Expired()
        if value is None:
            return outcome.Completed(ctx.raw_result)
        if isinstance(value, Detached):
            return outcome.Detached(self._clock.now() + round(value.seconds * 1000))
        if isinstance(value, MovedTo):
            return outcome.Moved(value.queue, value.type, value.run_at, ctx.raw_result)
        return outcome.Completed(ctx.encoded(value))

    def interrupted(self, ctx: JobContext) -> Outcome | None:
        """What an interruption amounts to."""
        match ctx.interrupted:
            case Interrupt.LOST:
                return None
            case Interrupt.SHUTDOWN:
                return outcome.Returned()
            case Interrupt.DEADLINE:
                return outcome.Expired()
            case Interrupt.CANCEL:
                return outcome.Cancelled(ctx.cancel_reason or "")
            case Interrupt.TIMEOUT:
                return outcome.Failed(Problem("TimeoutError", ctx.cancel_reason or "out of time"))
            case None:
                return outcome.Failed(Problem("CancelledError", "the handler cancelled itself"))

    def _raised(self, error: BaseException, handler: Handler | None, ctx: JobContext) -> Outcome:
        if isinstance(error, ChildFailed):
            return error.outcome
        problem = problem_of(error)
        if error is ctx.unfit:
            return outcome.Terminated(problem)
        match error:
            case signals.Terminate():
                return outcome.Terminated(problem)
            case signals.Retry(after=after) if after is not None:
                return outcome.Failed(problem, from_now("after", after))
            case signals.Snooze(until=until, seconds=seconds):
                return outcome.Snoozed(
                    self._clock.now() + from_now("seconds", seconds or 0)
                    if until is None
                    else moment("until", until)
                )
            case signals.Cancel():
                return outcome.Cancelled(str(error))
            case _:
                pass
        if handler is None:
            return outcome.Failed(problem)
        if isinstance(error, handler.terminates_on):
            return outcome.Terminated(problem)
        after = _asked_delay(handler, ctx, error)
        if not isinstance(error, signals.Retry) and not _counts(handler, error):
            return outcome.Uncounted(problem, after)
        return outcome.Failed(problem, after)


async def _whole(call: Awaitable[Any]) -> Any:
    """What a sync function returned; a decorator may have made it of an async one."""
    value = await call
    return await value if inspect.isawaitable(value) else value


def _asked_delay(handler: Handler, ctx: JobContext, error: BaseException) -> int | None:
    """The delay by the task's own callable; a callable that fails is passed over."""
    if handler.retry is None or not isinstance(ctx.job.spec.retry, Custom | None):
        return None  # the job brought a policy of its own
    try:
        return outcome.custom_delay(handler.retry, ctx.number, error)
    except Exception:
        log.exception("the retry function of %r failed; its default policy is used", handler.type)
        return None


def _counts(handler: Handler, error: BaseException) -> bool:
    if handler.is_failure is None:
        return True
    try:
        return bool(handler.is_failure(error))
    except Exception:
        log.exception("is_failure of %r failed; the try is counted", handler.type)
        return True
