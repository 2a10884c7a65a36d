"""Runs the contestants: stores, producers and workers, each in a process of its own."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import psutil
from marks import VARIABLE, Marks

from headrace.testing.nats import NatsServer

HERE = Path(__file__).parent
LIMIT = 120.0
"""Seconds for anything that is asked of a contestant."""

SYNC = "1s"
"""How often the NATS server syncs its files, for everybody."""

LAST = 300
"""So many of the jobs that started last are asked for their results when a drain ends."""

NO_RESULTS = "the same, peer without results"

LEAST = 0.1
"""Per cent of a core; less is not told apart."""

Store = Literal["SQLite", "NATS"]


@dataclass(frozen=True)
class Contestant:
    """One who takes part, and the package without which it cannot."""

    name: str
    module: str
    package: str

    @property
    def installed(self) -> bool:
        return importlib.util.find_spec(self.package) is not None


HEADRACE = Contestant("Headrace", "with_headrace", "headrace")
HUEY = Contestant("huey", "with_huey", "huey")
TASKIQ = Contestant("taskiq-nats", "with_taskiq", "taskiq_nats")


@dataclass(frozen=True)
class Race:
    """Two who run on the same kind of store."""

    store: Store
    peer: Contestant

    @property
    def contestants(self) -> tuple[Contestant, Contestant]:
        return HEADRACE, self.peer


RACES = (Race("SQLite", HUEY), Race("NATS", TASKIQ))


@dataclass(frozen=True)
class Sizes:
    """How many jobs each part takes."""

    single: int = 500
    bulk: int = 5_000
    serial: int = 1_000
    """Those that are drained one at a time."""
    idle: int = 200
    wide: int = 100
    """How many jobs run at a time in the wide drain, and in everything else."""
    rest: float = 3.0
    """Seconds for which a worker is watched that has nothing to do."""


class Failed(Exception):
    """A contestant did not do what it was asked."""


class Producer:
    """The process that enqueues."""

    def __init__(self, ground: Ground, module: str) -> None:
        self._ground = ground
        self._process = ground.spawn([sys.executable, str(HERE / "produce.py"), module], pipes=True)
        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            self._lines.put(line.decode())
        self._lines.put("")

    def ask(self, do: str, **what: Any) -> Any:
        assert self._process.stdin
        try:
            self._process.stdin.write(json.dumps({"do": do, **what}).encode() + b"\n")
            self._process.stdin.flush()
            line = self._lines.get(timeout=LIMIT)
        except (queue.Empty, OSError) as error:
            raise Failed(f"{do} {what}: no answer; {self._ground.log()}") from error
        if not line:
            raise Failed(f"{do} {what}: the process ended; {self._ground.log()}")
        return json.loads(line)

    def close(self) -> None:
        assert self._process.stdin
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        _end(self._process, gently=False)


class Worker:
    """The processes that run handlers."""

    def __init__(self, ground: Ground, command: list[str]) -> None:
        self.begun = time.monotonic()
        self._process = ground.spawn(command)

    def memory(self) -> tuple[float, int]:
        """Megabytes that are resident, in all of its processes, and how many these are."""
        sizes: list[int] = []
        for process in self._all():
            with contextlib.suppress(psutil.NoSuchProcess):
                sizes.append(process.memory_info().rss)
        return sum(sizes) / 1e6, len(sizes)

    def spent(self) -> float:
        """Seconds of processor time of all of its processes."""
        found = 0.0
        for process in self._all():
            with contextlib.suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                found += times.user + times.system
        return found

    def _all(self) -> list[psutil.Process]:
        try:
            parent = psutil.Process(self._process.pid)
            return [parent, *parent.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def alive(self) -> bool:
        return self._process.poll() is None

    def close(self) -> None:
        _end(self._process, gently=True)


class Ground:
    """A store that nobody has used, and what runs on it."""

    def __init__(self, folder: Path, url: str, module: str, results: bool) -> None:
        self._folder, self._url, self.results = folder, url, results
        self.marks = Marks(folder / "marks")
        self._own = contextlib.ExitStack()
        self.module = module

    def spawn(self, command: list[str], *, pipes: bool = False) -> subprocess.Popen[bytes]:
        env = {
            **os.environ,
            VARIABLE: str(self._folder / "marks"),
            "RACE_STORE": self._url,
            "RACE_RESULTS": "on" if self.results else "off",
            "PYTHONPATH": str(HERE),
            "XDG_CACHE_HOME": str(self._folder),
        }
        pipe = subprocess.PIPE if pipes else subprocess.DEVNULL
        with (self._folder / "log").open("ab") as log:
            return subprocess.Popen(
                command,
                env=env,
                cwd=self._folder,
                stdin=pipe,
                stdout=pipe if pipes else log,
                stderr=log,
                start_new_session=True,
            )

    def log(self) -> str:
        return (self._folder / "log").read_text("utf-8", "replace")[-2000:]

    def producer(self) -> Producer:
        producer = Producer(self, self.module)
        self._own.callback(producer.close)
        return producer

    def worker(self, producer: Producer, concurrency: int) -> Worker:
        command = producer.ask("describe", concurrency=concurrency)["worker"]
        worker = Worker(self, command)
        self._own.callback(worker.close)
        return worker

    def close(self) -> None:
        self._own.close()

    def ran(self, jobs: range, worker: Worker) -> tuple[list[float], float]:
        """Waits until all of the jobs have run; when they did, and the most memory meanwhile."""
        most, deadline = 0.0, time.monotonic() + LIMIT
        while True:
            times = list(self.marks.times(jobs))
            most = max(most, worker.memory()[0])
            if all(times):
                return times, most
            if not worker.alive() or time.monotonic() > deadline:
                done = sum(map(bool, times))
                raise Failed(f"{done} of {len(jobs)} jobs ran; {self.log()}")
            time.sleep(0.05)


@contextlib.contextmanager
def ground(store: Store, module: str, *, results: bool = True) -> Iterator[Ground]:
    """A fresh store; whatever was started on it is ended. Only peers can do without results."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headrace-race-")))
        if store == "NATS":
            url = stack.enter_context(NatsServer(folder / "nats", sync=SYNC)).url
        elif module == HEADRACE.module:
            url = f"sqlite:{folder / 'jobs.db'}"
        else:
            url = str(folder / "jobs.db")
        found = Ground(folder, url, module, results)
        stack.callback(found.close)
        yield found


Results = dict[str, float]


def run(store: Store, contestant: Contestant, sizes: Sizes) -> Results:
    """One round of everything."""
    module = contestant.module
    found: Results = {}
    with ground(store, module) as place:
        producer = place.producer()
        spent = producer.ask("single", first=0, count=sizes.single)
        found["enqueue one"] = sizes.single / spent
    with ground(store, module) as place:
        rates, most = _drain(place, sizes.bulk, sizes.wide)
        found |= {"enqueue many": rates[0], f"drain, {sizes.wide} at a time": rates[1]}
        found["memory, working"] = most
        found[NO_RESULTS] = rates[1]
    if contestant is not HEADRACE:
        with ground(store, module, results=False) as place:
            rates, _ = _drain(place, sizes.bulk, sizes.wide)
            found[NO_RESULTS] = rates[1]
    with ground(store, module) as place:
        rates, _ = _drain(place, sizes.serial, 1)
        found["drain, one at a time"] = rates[1]
    with ground(store, module) as place:
        found |= _idle(place, sizes)
    return found


def _drain(place: Ground, count: int, concurrency: int) -> tuple[tuple[float, float], float]:
    """Jobs enqueued and worked off per second, the latter from the first handler's start until
    the last result is stored, or, without results, until the last handler's start; and the most
    memory."""
    producer = place.producer()
    spent = producer.ask("bulk", first=0, count=count)
    worker = place.worker(producer, concurrency)
    times, most = place.ran(range(count), worker)
    end = max(times)
    if place.results:
        last = sorted(range(count), key=times.__getitem__)[-LAST:]
        end = producer.ask("settle", jobs=last)
    return (count / spent, count / (end - min(times))), most


def _idle(place: Ground, sizes: Sizes) -> Results:
    producer = place.producer()
    producer.ask("single", first=0, count=1)
    worker = place.worker(producer, sizes.wide)
    (first,), _ = place.ran(range(1), worker)
    time.sleep(sizes.rest / 3)
    before = worker.spent()
    time.sleep(sizes.rest)
    processor = (worker.spent() - before) / sizes.rest * 100
    memory, processes = worker.memory()
    pickups = producer.ask("pickup", first=1, count=sizes.idle)
    trips = producer.ask("trip", first=1 + sizes.idle, count=sizes.idle)
    return {
        "pick-up p50": percentile(pickups, 0.5),
        "pick-up p99": percentile(pickups, 0.99),
        "round trip p50": percentile(trips, 0.5),
        "round trip p99": percentile(trips, 0.99),
        "memory, idle": memory,
        "processor, idle": max(processor, LEAST),
        "processes": processes,
        "start to first job": first - worker.begun,
    }


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def _end(process: subprocess.Popen[bytes], *, gently: bool) -> None:
    """Ends a process and all that it has started."""
    with contextlib.suppress(ProcessLookupError):
        if gently:
            os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(3)
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe:
            pipe.close()
