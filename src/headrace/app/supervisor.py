"""The supervisor: keeps worker processes running, and is right as PID 1.

It runs no job and imports no task. Its children ignore what a terminal sends to all of them at
once (Ctrl-C, hanging up) and are told by it; and they hold the reading end of a pipe, its
lifeline, which closes when the supervisor is gone, however it went.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field

from msgspec import Struct

from headrace.app.workers import ECHO

log = logging.getLogger("headrace.supervisor")

LIFELINE = "HEADRACE_LIFELINE"
"""The variable with the file descriptor of the lifeline."""
PROCESS = "HEADRACE_PROCESS"
"""The variable with the number of the worker process, from 1, where there are several."""

CANNOT_START = 2
"""The exit code of a worker that was called wrongly: starting it again would not help."""

FIRST_DELAY, LONGEST_DELAY = 0.5, 30.0
STEADY = 10.0
"""A process that lived so many seconds starts the back-off afresh."""
WATCH_EVERY = 0.5
KILL_AFTER = 10.0
"""Seconds beyond the grace period after which a process is killed."""

Watch = Callable[[], Sequence[str]]
"""Names the files that changed since it was last asked."""


class Plan(Struct, frozen=True, kw_only=True):
    """What to keep running."""

    command: tuple[str, ...]
    processes: int = 1
    grace: float = 25.0
    """Seconds that a worker takes to stop in order."""


@dataclass(slots=True)
class _Seat:
    """The place of one worker process."""

    number: int
    process: subprocess.Popen[bytes] | None = None
    started: float = 0.0
    failures: int = 0
    start_at: float | None = 0.0
    """When to start it; None while it runs, or waits for a changed file."""
    kill_at: float | None = None
    reloading: bool = False


@dataclass(slots=True)
class Supervisor:
    """Starts the processes, starts those anew that die, and passes signals on."""

    plan: Plan
    watch: Watch | None = None
    _seats: list[_Seat] = field(default_factory=list[_Seat], init=False)
    _told: list[int] = field(default_factory=list[int], init=False)
    _last_told: float = field(default=-ECHO, init=False)
    _heard: int = field(default=0, init=False)
    _code: int = field(default=0, init=False)
    _stopping: bool = field(default=False, init=False)
    _next_watch: float = field(default=0.0, init=False)

    def run(self) -> int:
        """Works until told to stop; the exit code."""
        self._seats = [_Seat(number + 1) for number in range(self.plan.processes)]
        reading, writing = os.pipe()
        try:
            with self._signals() as bell:
                while not (self._stopping and all(seat.process is None for seat in self._seats)):
                    self._reap()
                    self._obey()
                    self._look()
                    self._start_due(reading)
                    self._kill_overdue()
                    self._rest(bell)
        finally:
            os.close(reading)
            os.close(writing)
        return self._code

    # Signals

    @contextlib.contextmanager
    def _signals(self) -> Generator[int, None, None]:
        """Handlers that only take note, and a file descriptor that tells of any signal."""
        reading, writing = os.pipe()
        os.set_blocking(reading, False)
        os.set_blocking(writing, False)
        handlers = {
            signal.SIGINT: self._note,
            signal.SIGTERM: self._note,
            signal.SIGCHLD: _ignore,
        }
        before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        wakeup = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        try:
            yield reading
        finally:
            signal.set_wakeup_fd(wakeup)
            for number, handler in before.items():
                signal.signal(number, handler)
            os.close(reading)
            os.close(writing)

    def _note(self, number: int, _: object) -> None:
        now = time.monotonic()
        if now - self._last_told >= ECHO:
            self._last_told = now
            self._told.append(number)

    def _obey(self) -> None:
        """Passes signals on, always as SIGTERM: to SIGINT the children are deaf."""
        while self._heard < len(self._told):
            number = self._told[self._heard]
            self._heard += 1
            name = signal.Signals(number).name
            if self._heard == 1:
                log.info("%s: stopping the worker processes", name)
            else:
                log.warning("%s again: leaving now", name)
                self._code = 128 + number
            self._stop(signal.SIGTERM if self._heard <= 2 else signal.SIGKILL)

    def _stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        self._stopping = True
        for seat in self._seats:
            seat.start_at = None
            self._send(seat, number)

    def _send(self, seat: _Seat, number: signal.Signals) -> None:
        if seat.process is not None:
            # The process is ours to reap, so its id cannot have gone to another.
            with contextlib.suppress(ProcessLookupError):
                os.kill(seat.process.pid, number)
            seat.kill_at = seat.kill_at or time.monotonic() + self.plan.grace + KILL_AFTER

    # Processes

    def _start_due(self, lifeline: int) -> None:
        now = time.monotonic()
        for seat in self._seats:
            if seat.start_at is not None and seat.start_at <= now:
                self._start(seat, lifeline)

    def _start(self, seat: _Seat, lifeline: int) -> None:
        environment = {**os.environ, LIFELINE: str(lifeline)}
        if self.plan.processes > 1:
            environment[PROCESS] = str(seat.number)
        seat.process = subprocess.Popen(
            self.plan.command,
            stdin=subprocess.DEVNULL,
            env=environment,
            pass_fds=(lifeline,),
            preexec_fn=_deaf,
        )
        seat.started, seat.start_at, seat.kill_at = time.monotonic(), None, None
        log.info("worker process %d started, pid %d", seat.number, seat.process.pid)

    def _reap(self) -> None:
        """Takes in every child that ended: as PID 1, also those that others left behind."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            for seat in self._seats:
                if seat.process is not None and seat.process.pid == pid:
                    code = os.waitstatus_to_exitcode(status)
                    seat.process.returncode = code  # or subprocess would wait for it too
                    seat.process = None
                    self._ended(seat, pid, code)

    def _ended(self, seat: _Seat, pid: int, code: int) -> None:
        who = f"worker process {seat.number} (pid {pid})"
        if self._stopping:
            log.log(logging.INFO if code == 0 else logging.WARNING, "%s %s", who, _ending(code))
        elif seat.reloading:
            seat.reloading, seat.start_at = False, 0.0
        elif code == CANNOT_START and self.watch is None:
            log.error("%s cannot start; see above", who)
            self._code = CANNOT_START
            self._stop()
        elif code == CANNOT_START:
            log.error("%s cannot start; waiting for a changed file", who)
        else:
            self._restart(seat, who, code)

    def _restart(self, seat: _Seat, who: str, code: int) -> None:
        now = time.monotonic()
        seat.failures = 1 if now - seat.started >= STEADY else seat.failures + 1
        delay = min(LONGEST_DELAY, FIRST_DELAY * 2 ** (seat.failures - 1))
        seat.start_at = now + delay
        log.warning("%s %s; starting it again in %g s", who, _ending(code), delay)

    def _kill_overdue(self) -> None:
        for seat in self._seats:
            if seat.process and seat.kill_at is not None and seat.kill_at <= time.monotonic():
                log.error("worker process %d does not stop; killing it", seat.number)
                self._send(seat, signal.SIGKILL)
                seat.kill_at = time.monotonic() + KILL_AFTER

    # Changed files

    def _look(self) -> None:
        if self.watch is None or self._stopping or time.monotonic() < self._next_watch:
            return
        changed = self.watch()
        self._next_watch = time.monotonic() + WATCH_EVERY
        if not changed:
            return
        more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
        log.info("%s%s changed; restarting", changed[0], more)
        for seat in self._seats:
            seat.failures = 0
            if seat.process is None:
                seat.start_at = 0.0
            elif not seat.reloading:
                seat.reloading = True
                self._send(seat, signal.SIGTERM)

    def _rest(self, bell: int) -> None:
        """Until a signal comes, or something is due."""
        due = [seat.start_at for seat in self._seats if seat.start_at is not None]
        due += [seat.kill_at for seat in self._seats if seat.process and seat.kill_at]
        if self.watch is not None and not self._stopping:
            due.append(self._next_watch)
        timeout = max(0.0, min(due) - time.monotonic()) if due else None
        if self._stopping and all(seat.process is None for seat in self._seats):
            return
        if self._heard == len(self._told):
            select.select([bell], [], [], timeout)
        with contextlib.suppress(BlockingIOError):
            os.read(bell, 4096)


def _deaf() -> None:
    """In a child before it becomes a worker: what is ignored here stays ignored."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


def _ignore(_: int, __: object) -> None:
    """SIGCHLD needs a handler, or it would not wake the supervisor."""


def _ending(code: int) -> str:
    if code == 0:
        return "ended"
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"died with exit code {code}"


def hold_lifeline() -> None:
    """In a worker process: stops it in order when its supervisor is gone."""
    text = os.environ.pop(LIFELINE, None)
    if text is None:
        return
    lifeline = int(text)
    os.set_inheritable(lifeline, False)

    def wait() -> None:
        os.read(lifeline, 1)
        log.warning("the supervisor is gone; stopping")
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, name="headrace-lifeline", daemon=True).start()
