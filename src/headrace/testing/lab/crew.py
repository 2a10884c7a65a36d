"""The crew: the lab's processes by their roles. Those that die are replaced."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from headrace.testing.lab.notes import Left, Notes

LEAVE_WITHIN = 20.0
"""Seconds within which a process that is asked to leave is gone."""


@dataclass(slots=True, eq=False)
class Member:
    """One place in the crew, and the process that holds it now."""

    role: str
    index: int
    process: subprocess.Popen[bytes]
    incarnation: int = 0
    frozen: int = 0
    """How many faults hold it."""
    leaving: bool = False
    absent: bool = False
    """Killed, and whoever did it sees to its return."""

    @property
    def name(self) -> str:
        return f"{self.role}-{self.index}"

    @property
    def alive(self) -> bool:
        return self.process.poll() is None


class Crew:
    """Producers and workers of one run."""

    def __init__(self, folder: Path, notes: Notes) -> None:
        self._folder, self._notes = folder, notes
        self.members: list[Member] = []

    def hire(self, role: str, count: int) -> None:
        """Adds members."""
        for index in range(count):
            self.members.append(Member(role, index, self._spawn(role, index, 0)))

    def of(self, role: str) -> list[Member]:
        """The members of a role that live."""
        return [member for member in self.members if member.role == role and member.alive]

    def _spawn(self, role: str, index: int, incarnation: int) -> subprocess.Popen[bytes]:
        order = [sys.executable, "-m", "headrace.testing.lab.process", role, str(index)]
        order += [str(incarnation), str(self._folder), str(os.getpid())]
        path = self._folder / "logs" / f"{role}-{index}-{incarnation}.log"
        with path.open("wb") as log:
            return subprocess.Popen(order, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    # What faults do to members

    def kill(self, member: Member) -> None:
        """At once, wherever it is."""
        if member.alive:
            member.leaving = member.absent = True
            member.process.kill()
            self._bury(member)

    def dismiss(self, member: Member) -> None:
        """Asks it to leave in an orderly way."""
        member.leaving = True
        member.process.terminate()

    def replace(self, member: Member) -> None:
        """Starts the next incarnation of a member that is gone."""
        member.incarnation += 1
        member.frozen, member.leaving, member.absent = 0, False, False
        member.process = self._spawn(member.role, member.index, member.incarnation)

    def freeze(self, member: Member) -> None:
        member.frozen += 1
        member.process.send_signal(signal.SIGSTOP)

    def thaw(self, member: Member, process: subprocess.Popen[bytes]) -> None:
        """Lets the process go on, unless another fault still holds it or it is gone."""
        if member.process is process:
            member.frozen = max(0, member.frozen - 1)
            if member.frozen == 0 and member.alive:
                process.send_signal(signal.SIGCONT)

    def limit_files(self, member: Member, size: int | None) -> None:
        """No file may grow beyond `size`; None takes the limit away."""
        limit = resource.RLIM_INFINITY if size is None else size
        if member.alive:
            _, hard = resource.prlimit(member.process.pid, resource.RLIMIT_FSIZE)
            resource.prlimit(member.process.pid, resource.RLIMIT_FSIZE, (limit, hard))

    # Care

    def tend(self) -> None:
        """Replaces whoever is gone."""
        for member in self.members:
            if not member.alive and not member.absent:
                self._bury(member)
                self.replace(member)

    def _bury(self, member: Member) -> None:
        code = member.process.wait()
        expected = member.leaving and code in (0, -signal.SIGKILL)
        if code == -signal.SIGTERM and member.leaving:
            expected = not self._began(member)  # it was not yet there to hear it
        self._notes.write(Left(victim=member.process.pid, code=code, killed=expected))

    def _began(self, member: Member) -> bool:
        """Whether the process has come so far as to write its first note."""
        name = f"{member.name}-{member.incarnation}.jsonl"
        path = self._folder / "notes" / name
        return path.exists() and path.stat().st_size > 0

    def leave(self, role: str) -> None:
        """Asks all members of a role to leave, and waits until they have."""
        leaving = [member for member in self.members if member.role == role]
        for member in leaving:
            if member.alive:
                self.dismiss(member)
        deadline = time.monotonic() + LEAVE_WITHIN
        for member in leaving:
            try:
                member.process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                member.leaving = False  # that it had to be killed is worth a word
                member.process.kill()
            self._bury(member)
            self.members.remove(member)

    def close(self) -> None:
        """Ends whatever is left."""
        for member in self.members:
            if member.alive:
                os.kill(member.process.pid, signal.SIGKILL)
            member.process.wait()
        self.members.clear()
