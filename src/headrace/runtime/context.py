"""What a handler sees of its job: `ctx`, by argument or by `current_job()`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any, Protocol

import msgspec

from headrace.core import codec
from headrace.core.change import Answer, Case, Change, Guard, Write
from headrace.core.errors import HeadraceError, InvalidValue, PayloadTooLarge, UnencodableValue
from headrace.core.model import MAX_RESULT, Job, LogEntry, Progress
from headrace.core.names import check_name
from headrace.core.states import EventType, State
from headrace.core.values import milliseconds, number, positive, text

_LEVELS = ("debug", "info", "warn", "error")
_ACTIVE = frozenset({State.ACTIVE})


class Interrupt(Enum):
    """Why a running handler was told to stop."""

    TIMEOUT = "timeout"
    DEADLINE = "deadline"
    CANCEL = "cancel"
    SHUTDOWN = "shutdown"
    LOST = "lost"


class Detached:
    """Returned by a handler whose job goes on outside it; anyone with `token` settles it."""

    def __init__(self, token: str, seconds: float) -> None:
        self.token, self.seconds = token, seconds


class MovedTo:
    """Returned by a handler whose job goes on in another queue or as another type."""

    def __init__(self, queue: str, type: str | None, run_at: int) -> None:
        self.queue, self.type, self.run_at = queue, type, run_at


class Desk(Protocol):
    """What a context needs of the worker around it. Its methods may be called from any thread."""

    def now(self) -> int: ...
    def send(self, change: Change) -> None: ...
    def renew(self) -> None: ...
    def in_line(self, ctx: JobContext, waiting: bool) -> None: ...
    async def dependencies(self, job: Job) -> Mapping[str, Any]: ...


CallAfter = Callable[["JobContext", Answer], object]


_NOTHING: dict[str, Any] = {}


class JobContext:
    """The handler's side of its job. Every method may be called from any thread."""

    # What most handlers never touch is set when it is: one context is made for every job.
    after: Sequence[CallAfter] = ()
    """What `call_after` was given."""
    dependencies: Mapping[str, Any] = _NOTHING
    """The parents' results by id, where the task asked for them (`load_dependencies=True`)."""
    unfit: BaseException | None = None
    """The error that this job's own arguments or result raised: another try would not mend it."""
    interrupted: Interrupt | None = None
    """Why the handler was told to stop; set by the worker."""
    raw_result: msgspec.Raw | None = None
    """What `set_result` was given, encoded."""
    _stopped: threading.Event | None = None
    _reason: str | None = None
    _sent: Progress | None = None

    def __init__(self, job: Job, desk: Desk, time_limit: int | None = None) -> None:
        self.job, self._desk, self._time_limit = job, desk, time_limit

    def now(self) -> datetime:
        """The time by the worker's clock, which a test can move."""
        return datetime.fromtimestamp(self._desk.now() / 1000, UTC)

    @property
    def id(self) -> str:
        return self.job.id

    @property
    def number(self) -> int:
        """Which try this is, from 1."""
        return self.job.tries

    @property
    def deadline(self) -> datetime | None:
        """When this try must be done: the earlier of its time limit and the job's deadline."""
        limit = self._time_limit
        return None if limit is None else datetime.fromtimestamp(limit / 1000, UTC)

    @property
    def cancelled(self) -> bool:
        """Whether the handler should stop: cancelled, out of time, or the worker is leaving."""
        return self.interrupted is not None

    @property
    def cancel_reason(self) -> str | None:
        return self._reason

    def wait_cancelled(self, timeout: float | None = None) -> bool:
        """Blocks a thread until the handler should stop; for loops that sleep between steps."""
        with _making:
            if self._stopped is None:
                self._stopped = threading.Event()
        return self.interrupted is not None or self._stopped.wait(timeout)

    def interrupt(self, why: Interrupt, reason: str | None = None) -> None:
        """Tells the handler to stop; called by the worker."""
        self.interrupted, self._reason = why, reason
        if self._stopped is not None:
            self._stopped.set()

    def in_line(self, waiting: bool) -> None:
        """The handler waits for a place to run, or has it now: only then does its time count.
        Called by the pool."""
        self._desk.in_line(self, waiting)

    def limit(self, moment: int | None) -> None:
        """Sets when this try must be done; called by the worker."""
        self._time_limit = moment

    def progress(
        self,
        step: str | None = None,
        message: str | None = None,
        current: float | None = None,
        total: float | None = None,
    ) -> None:
        """Says how far the handler is. Written in the background, in order, never late for the
        outcome."""
        progress = Progress(
            None if step is None else text("step", step),
            None if message is None else text("message", message),
            None if current is None else number("current", current),
            None if total is None else number("total", total),
        )
        if progress != self._sent:
            self._sent = progress
            self._send(Write(event=EventType.PROGRESS, at=self._desk.now(), progress=progress))

    def log(self, level: str, message: str) -> None:
        """Keeps a line with the job (the newest 1,000 stay)."""
        level = "warn" if level == "warning" else level  # as Python's own logging calls it
        if level not in _LEVELS:
            raise InvalidValue("level", f"{level!r} is not one of {', '.join(_LEVELS)}")
        entry = LogEntry(self._desk.now(), level, text("message", str(message)))
        self._send(Write(event=EventType.LOGGED, at=entry.at, logs=(entry,)))

    def _send(self, write: Write) -> None:
        guard = Guard(states=_ACTIVE, token=self.job.token)
        self._desk.send(Change(self.job, (Case(guard, write),)))

    def heartbeat(self) -> None:
        """Renews the lease now. The worker renews it anyway; this is for handlers that know they
        are about to stop the whole machine."""
        self._desk.renew()

    async def load_dependencies(self) -> Mapping[str, Any]:
        """The parents' results by id."""
        self.dependencies = await self._desk.dependencies(self.job)
        return self.dependencies

    def set_result(self, value: object) -> None:
        """Sets the result so far: what a handler that returns None leaves behind."""
        self.raw_result = self.encoded(value)

    def encoded(self, value: object) -> msgspec.Raw:
        """A result as it is stored; what cannot be one is noted as `unfit`."""
        try:
            result = codec.encode(value, "the result")
            if len(result) > MAX_RESULT:
                raise PayloadTooLarge(len(result), MAX_RESULT, "result")
        except (UnencodableValue, PayloadTooLarge) as error:
            self.unfit = error
            raise
        return msgspec.Raw(result)

    @property
    def result(self) -> Any:
        """The result so far: set here, or by the handler that moved the job here."""
        raw = self.job.result if self.raw_result is None else self.raw_result
        return None if raw is None else codec.decode_any(raw)

    def detach(self, timeout: float | timedelta = 3600.0) -> Detached:
        """`return ctx.detach()` leaves the job active until someone with the token settles it.

        Nobody having done so in `timeout` counts as a failed try.
        """
        return Detached(detached_token(self.job), positive("timeout", timeout) / 1000)

    def move_to(
        self, queue: str, type: str | None = None, *, delay: float | timedelta = 0
    ) -> MovedTo:
        """`return ctx.move_to("deliver")` continues the same job in another queue."""
        check_name("queue", queue)
        if type is not None:
            check_name("type", type)
        if queue == self.job.queue and type in (None, self.job.type):
            raise InvalidValue("queue", f"the job is in {queue!r} as {self.job.type!r} already")
        return MovedTo(queue, type, self._desk.now() + milliseconds("delay", delay))

    def call_after(self, function: CallAfter) -> None:
        """Calls `function(ctx, answer)` once, after the outcome is stored, whatever it is. It runs
        in the worker's event loop and may be async."""
        if not callable(function):
            raise InvalidValue("call_after", f"{function!r} is not callable")
        with _making:
            self.after = (*self.after, function)


_making = threading.Lock()


def detached_token(job: Job) -> str:
    """What the holder of a detached job needs to settle it."""
    return f"{job.id}.{job.token}"


def parse_token(token: str) -> tuple[str, int]:
    """The job and the fencing token that a detached token names."""
    job_id, dot, number = token.rpartition(".")
    if not dot or not number.isascii() or not number.isdigit():
        raise InvalidValue("token", f"{token!r} is not a token of a detached job")
    return check_name("token", job_id), int(number)


running: ContextVar[JobContext] = ContextVar("headrace_job")


def current_job() -> JobContext:
    """The context of the job that is running here."""
    try:
        return running.get()
    except LookupError:
        raise HeadraceError("no job is running here; call this from a handler") from None
