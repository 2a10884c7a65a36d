"""The worker processes: started, killed, and in the end stopped in order."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

LEASE = 2
"""Seconds after which a killed worker's jobs run elsewhere; 30 unless a worker is told."""

COMMAND = f"-m headrace worker tasks:app --concurrency 8 --lease {LEASE}s --grace 5s".split()


class WorkerDied(Exception):
    """A worker ended that nobody had killed."""


class WorkerProcess:
    """One `headrace worker`."""

    def __init__(self, number: int, folder: Path) -> None:
        self.number, self.name = number, f"worker {number}"
        self.log = folder / f"worker{number}.log"
        self.killed_at: float | None = None
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, *COMMAND],
                cwd=Path(__file__).parent,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for the demo, which then stops its workers
            )
        self.pid = self._process.pid

    @property
    def state(self) -> str:
        if self.killed_at is not None:
            return "killed"
        return "here" if self._process.poll() is None else "gone"

    def kill(self) -> None:
        """As a power cut would: no warning, no clean-up."""
        if self._process.poll() is None:
            self.killed_at = time.monotonic()
        self._process.kill()
        self._process.wait()

    def ask_to_stop(self) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)

    def wait(self, seconds: float) -> None:
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(self.pid, signal.SIGKILL)
            self._process.wait()


class Crew:
    """All workers of the demo."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.workers: list[WorkerProcess] = []

    def start(self) -> WorkerProcess:
        worker = WorkerProcess(len(self.workers) + 1, self._folder)
        self.workers.append(worker)
        return worker

    def by_pid(self, pid: int) -> WorkerProcess | None:
        return next((worker for worker in self.workers if worker.pid == pid), None)

    def check(self) -> None:
        """Raises WorkerDied, with the last lines of its log."""
        for worker in self.workers:
            if worker.state == "gone":
                last = worker.log.read_text(errors="replace").splitlines()[-12:]
                raise WorkerDied("\n".join([f"worker {worker.number} ended by itself:", *last]))

    def stop(self) -> None:
        """Every worker finishes what it runs; one that takes too long is killed."""
        for worker in self.workers:
            worker.ask_to_stop()
        for worker in self.workers:
            worker.wait(8)

    def disband(self) -> None:
        """However the demo ends, no worker outlives it; a further Ctrl-C is not patient."""
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        try:
            self.stop()
        except KeyboardInterrupt:
            for worker in self.workers:
                worker.kill()
