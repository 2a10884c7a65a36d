"""The main program of a child process: runs one job after the other until its stdin ends.

The end of stdin means that the worker is gone or wants the child to go: it goes at once, also in
the middle of a job.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import os
import queue
import runpy
import sys
import threading
from collections.abc import Mapping
from typing import Any, BinaryIO

import msgspec

from headrace.core import codec
from headrace.core.change import Change
from headrace.core.errors import HeadraceError
from headrace.core.model import Job
from headrace.core.outcome import Failed, Outcome, Problem
from headrace.core.states import EventType
from headrace.runtime.clock import SystemClock
from headrace.runtime.context import CallAfter, JobContext
from headrace.runtime.executor import Executor
from headrace.runtime.handler import Handler, Mode, Router, describe, problem_of
from headrace.runtime.processes import Order, ProcessPool, Report, frame
from headrace.runtime.threads import ThreadPool


class _Pipe:
    """Stands for the worker: what the context sends goes up the pipe."""

    def __init__(self, out: BinaryIO) -> None:
        self._out = out
        self.clock = _WorkersClock(0)
        self.loaded: Mapping[str, Any] = {}

    def now(self) -> int:
        return self.clock.now()

    def in_line(self, ctx: JobContext, waiting: bool) -> None:
        """The child has its place already."""

    def report(self, report: Report) -> None:
        self._out.write(frame(report))
        self._out.flush()

    def send(self, change: Change) -> None:
        write = change.cases[0].write
        if write.event is EventType.PROGRESS and write.progress:
            self.report(Report(progress=write.progress))
        for entry in write.logs:
            self.report(Report(log=(entry.level, entry.message)))

    def renew(self) -> None:
        """The worker's keeper renews the lease; a child need not."""

    async def dependencies(self, job: Job) -> Mapping[str, Any]:
        if job.spec.depends_on and not self.loaded:
            raise HeadraceError(
                "a handler in a child process cannot ask for its parents' results; set"
                " load_dependencies=True at its task"
            )
        return self.loaded


class _WorkersClock(SystemClock):
    """The worker's time, which a test may have set."""

    def __init__(self, now: int) -> None:
        self._ahead = now - super().now()

    def now(self) -> int:
        return super().now() + self._ahead


class _ChildContext(JobContext):
    """A context without what only the worker's own process can do."""

    def call_after(self, function: CallAfter) -> None:
        raise HeadraceError(
            "a handler in a child process cannot use call_after; put it into a middleware, which"
            " runs in the worker"
        )


def _find(target: str) -> Any:
    """The task or function that the parent means."""
    place, _, name = target.rpartition(":")
    if place.endswith(".py") or os.sep in place:
        value: Any = _Names(runpy.run_path(place, run_name="__headrace_child__"))
    else:
        value = importlib.import_module(place)
    for part in name.split("."):
        value = getattr(value, part)
    return value


class _Names:
    def __init__(self, names: dict[str, Any]) -> None:
        self.__dict__.update(names)


def _handler(target: str) -> Handler:
    found = _find(target)
    handler = getattr(found, "handler", None)
    if not isinstance(handler, Handler):
        handler = describe(found, "")
    mode = Mode.LOOP if inspect.iscoroutinefunction(handler.function) else Mode.THREAD
    return msgspec.structs.replace(handler, mode=mode, middleware=(), loads_dependencies=False)


async def _run(
    order: Order, pipe: _Pipe, handlers: dict[str, Handler], threads: ThreadPool
) -> Outcome:
    if order.target not in handlers:
        handlers[order.target] = _handler(order.target)
    pipe.clock = _WorkersClock(order.now)
    ctx = _ChildContext(order.whole_job(), pipe, order.time_limit)
    ctx.dependencies = pipe.loaded = codec.decode_any(order.dependencies)
    executor = Executor(Router(), pipe.clock, threads, ProcessPool(0), [], _no_resources)
    answer = await executor.run(handlers[order.target], ctx)
    assert answer is not None
    return answer


async def _no_resources(handler: Handler) -> Mapping[str, Any]:
    return {}


class _Orders:
    """Reads orders in a thread of its own, so that the end of stdin is seen during a job."""

    def __init__(self, source: BinaryIO) -> None:
        self._source = source
        self._queue: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._busy = False
        threading.Thread(target=self._read, name="headrace-orders", daemon=True).start()

    def _read(self) -> None:
        while head := self._source.read(4):
            self._busy = True
            self._queue.put(self._source.read(int.from_bytes(head, "big")))
        if self._busy:
            os._exit(1)
        self._queue.put(None)

    def done(self) -> None:
        """Said before the answer goes up: no other order comes before that."""
        self._busy = False

    def next(self) -> Order | None:
        body = self._queue.get()
        return None if body is None else msgspec.json.decode(body, type=Order)


def main() -> None:
    # Handlers read, print, and start programs that do; the pipes carry nothing but frames.
    source, out = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(2, 1)
    del sys.argv[0]  # what is left are the worker's
    orders, pipe = _Orders(source), _Pipe(out)
    handlers, threads = dict[str, Handler](), ThreadPool(1)
    while order := orders.next():
        try:
            answer = asyncio.run(_run(order, pipe, handlers, threads))
        except Exception as error:
            answer = Failed(problem_of(error))
        except BaseException as error:
            answer = Failed(Problem(type(error).__name__, str(error)))
        orders.done()
        pipe.report(Report.of(answer))


if __name__ == "__main__":
    main()
