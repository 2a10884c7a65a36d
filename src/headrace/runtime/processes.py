"""Child processes for CPU-bound handlers: recycled, and killed when a job's time is up.

Parent and child talk over the child's stdin and stdout: frames of a length (4 bytes, big endian)
and that many bytes of JSON. What the handler prints goes to stderr.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec import Struct

from headrace.core import codec, outcome
from headrace.core.errors import HeadraceError, InvalidValue
from headrace.core.model import Job, Progress
from headrace.core.outcome import Outcome, Problem
from headrace.runtime.context import Detached, JobContext, MovedTo, detached_token

RECYCLE_AFTER = 100
"""A child runs so many jobs, so that what they leak goes with it."""


_NOTHING = msgspec.Raw(b"null")
"""JSON for no result: a raw value cannot be optional within a message."""


class Order(Struct, frozen=True):
    """A job for a child; its result so far travels beside it."""

    target: str
    job: Job
    result: msgspec.Raw
    time_limit: int | None
    dependencies: msgspec.Raw
    now: int
    """The worker's time; the child's goes on from it."""

    def whole_job(self) -> Job:
        return msgspec.structs.replace(self.job, result=_some(self.result))


class Report(Struct, frozen=True, omit_defaults=True):
    """A message from a child: progress, a log line, or at last the outcome."""

    progress: Progress | None = None
    log: tuple[str, str] | None = None
    outcome: Outcome | None = None
    result: msgspec.Raw = _NOTHING

    @classmethod
    def of(cls, answer: Outcome) -> Report:
        """An outcome with its result beside it."""
        if isinstance(answer, outcome.Completed | outcome.Moved):
            bare = msgspec.structs.replace(answer, result=None)
            return cls(outcome=bare, result=answer.result or _NOTHING)
        return cls(outcome=answer)

    def whole_outcome(self) -> Outcome | None:
        if isinstance(self.outcome, outcome.Completed | outcome.Moved):
            return msgspec.structs.replace(self.outcome, result=_some(self.result))
        return self.outcome


def _some(raw: msgspec.Raw) -> msgspec.Raw | None:
    return None if raw == _NOTHING else raw


class ChildFailed(HeadraceError):
    """The handler did not return; `outcome` is what the child made of it."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(str(outcome))
        self.outcome = outcome


def target_of(function: Callable[..., Any]) -> str:
    """How a child finds the function: `module:qualname`, or `path:qualname` for a script."""
    name, module = getattr(function, "__qualname__", ""), getattr(function, "__module__", "")
    if not name or "<" in name:
        raise InvalidValue(
            "cpu", f"{name or function!r} cannot be found by a child process; define it in a module"
        )
    if module == "__main__":
        main = sys.modules["__main__"]
        spec = getattr(main, "__spec__", None)
        module = spec.name if spec else os.path.abspath(inspect.getfile(function))
    return f"{module}:{name}"


class ProcessPool:
    """Up to `limit` children; idle ones are used again."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._idle: list[Child] = []
        self._slots = asyncio.Semaphore(limit)

    async def call(self, function: Callable[..., Any], ctx: JobContext) -> Any:
        """Runs the job in a child. A cancelled caller means the child is killed."""
        waits = self._slots.locked()
        if waits:
            ctx.in_line(True)
        async with self._slots:
            if waits:
                ctx.in_line(False)
            child = self._reuse() or await Child.start()
            try:
                answer = await child.run(target_of(function), ctx)
            except BaseException:
                await child.kill()
                raise
            if child.runs < RECYCLE_AFTER:
                self._idle.append(child)
            else:
                await child.leave()
        return _value(answer, ctx)

    def _reuse(self) -> Child | None:
        """An idle child that lives."""
        while self._idle:
            child = self._idle.pop()
            if child.lives:
                return child
        return None

    async def close(self) -> None:
        children, self._idle = self._idle, []
        await asyncio.gather(*(child.leave() for child in children))


def _value(answer: Outcome, ctx: JobContext) -> Any:
    """What the handler returned, for the middleware around it; raises what it raised."""
    match answer:
        case outcome.Completed(result=result):
            return result
        case outcome.Moved(queue=queue, type=type, run_at=run_at, result=result):
            if result is not None:
                ctx.set_result(codec.decode_any(result))
            return MovedTo(queue, type, run_at)
        case outcome.Detached(until=until):
            seconds = until / 1000 - ctx.now().timestamp()
            return Detached(detached_token(ctx.job), max(seconds, 0.001))
        case _:
            raise ChildFailed(answer)


class Child:
    """One child process."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self.runs = 0

    @classmethod
    async def start(cls) -> Child:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "headrace.runtime.child",
            *sys.argv,  # for scripts that look at them when they are run again by a child
            stdin=PIPE,
            stdout=PIPE,
            env=_environment(),
            start_new_session=True,  # Ctrl-C is for the worker, which then stops its children
        )
        return cls(process)

    async def run(self, target: str, ctx: JobContext) -> Outcome:
        assert self._process.stdin
        assert self._process.stdout
        self.runs += 1
        dependencies = msgspec.Raw(codec.encode(ctx.dependencies, "a dependency's result"))
        limit = ctx.deadline and round(ctx.deadline.timestamp() * 1000)
        bare = msgspec.structs.replace(ctx.job, result=None)
        now = round(ctx.now().timestamp() * 1000)
        order = Order(target, bare, ctx.job.result or _NOTHING, limit, dependencies, now)
        try:
            self._process.stdin.write(frame(order))
            await self._process.stdin.drain()
            while True:
                report = await self._read(self._process.stdout)
                if report.progress is not None:
                    p = report.progress
                    ctx.progress(p.step, p.message, p.current, p.total)
                elif report.log is not None:
                    ctx.log(*report.log)
                elif (answer := report.whole_outcome()) is not None:
                    return answer
        except (asyncio.IncompleteReadError, ConnectionError):
            code = await self._process.wait()
            text = f"the child process ended with {_ending(code)} before the job was done"
            raise ChildFailed(outcome.Failed(Problem("ChildDied", text))) from None

    @staticmethod
    async def _read(stream: asyncio.StreamReader) -> Report:
        size = int.from_bytes(await stream.readexactly(4), "big")
        return msgspec.json.decode(await stream.readexactly(size), type=Report)

    @property
    def lives(self) -> bool:
        return self._process.returncode is None

    async def kill(self) -> None:
        """Kills the child and what it has started: its session is its own."""
        if self.lives:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        await asyncio.shield(self._process.wait())

    async def leave(self) -> None:
        """Closing its stdin asks an idle child to go."""
        assert self._process.stdin
        self._process.stdin.close()
        try:
            async with asyncio.timeout(2):
                await self._process.wait()
        except TimeoutError:
            await self.kill()


def frame(message: Struct) -> bytes:
    body = msgspec.json.encode(message)
    return len(body).to_bytes(4, "big") + body


def _ending(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit status {code}"


def _environment() -> Mapping[str, str]:
    """The child imports what the parent can import."""
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    return {**os.environ, "PYTHONPATH": path}
