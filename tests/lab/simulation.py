"""Valid histories by the hundred: the lab's producer and pretended workers over the memory engine,
by a clock that is moved by hand."""

from __future__ import annotations

import asyncio
import random
from random import Random
from typing import Any

import msgspec

from headrace import App
from headrace.core.change import Applied
from headrace.core.claims import ClaimRequest, Share
from headrace.core.model import Job
from headrace.core.outcome import (
    Completed,
    Detached,
    Failed,
    Moved,
    Outcome,
    Problem,
    Returned,
    Snoozed,
    Terminated,
    Uncounted,
    settle,
)
from headrace.core.queue import DEFAULTS, QueueSettings
from headrace.core.states import FINAL, State
from headrace.engine.memory import MemoryEngine
from headrace.testing import ManualClock
from headrace.testing.lab import workload
from headrace.testing.lab.evidence import stored
from headrace.testing.lab.history import Entry, History, Plan
from headrace.testing.lab.notes import AnyNote, End, Notes, Settled, Start
from headrace.testing.lab.producer import Producer
from headrace.testing.lab.run import set_queues
from headrace.upkeep.expiry import expire_overdue
from headrace.upkeep.rescue import rescue

LEASE = 2000
CONCURRENCY = 4


class Notebook(Notes):
    """Notes in memory, by the simulated time."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock, self._wall = clock, clock.now()
        self.notes: list[AnyNote] = []

    def write(self, note: AnyNote, pid: int = 1) -> None:
        passed = (self._clock.now() - self._wall) * 1_000_000
        mono = passed + 1 + len(self.notes)  # in order, also within one millisecond
        self.notes.append(msgspec.structs.replace(note, mono=mono, pid=pid))

    def first(self, note: AnyNote) -> None:
        self.write(note)


class Simulation:
    """One run."""

    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)
        self.clock = ManualClock()
        self.engine = MemoryEngine()
        self.app = App(self.engine, service="lab", clock=self.clock)
        self.notes = Notebook(self.clock)
        self.plan = Plan(
            engine="memory",
            url="memory:",
            seed=seed,
            lease=LEASE,
            concurrency=CONCURRENCY,
            mono=0,
            wall=self.clock.now(),
            queues=workload.QUEUES,
        )
        self.held: dict[str, list[Job]] = {"w1": [], "w2": [], "w3": []}
        self.settings: dict[str, QueueSettings] = {}
        self.calm = False

    async def run(self, steps: int = 150) -> History:
        async with self.app:
            await set_queues(self.app)
            for queue in workload.QUEUES:
                self.settings[queue] = await self.app.queue(queue).settings()
            producer = Producer(self.app, self.notes, self.chance)
            acts: list[Any] = [producer.act, self.claim, self.settle, self.upkeep, self.crash]
            for _ in range(steps):
                self.tick(self.chance.choice((0, 1, 20, 200)))
                await self.chance.choices(acts, (40, 25, 40, 5, 2))[0]()
            await self.drain()
            entries = [Entry.of(entry.event) async for entry in self.app.events()]
            jobs = {job.id: stored(job) async for job in self.app.find(limit=None)}
        return History(self.plan, entries, jobs, self.notes.notes)

    def tick(self, milliseconds: int) -> None:
        self.clock.advance(milliseconds / 1000)

    async def claim(self) -> None:
        worker = self.chance.choice(list(self.held))
        free = CONCURRENCY - len(self.held[worker])
        request = ClaimRequest(
            service="lab",
            worker=worker,
            shares=tuple(Share(queue, free) for queue in workload.QUEUES),
            limit=free,
            lease=LEASE,
            now=self.clock.now(),
        )
        for job in (await self.engine.claim(request)).jobs if free else ():
            note = Start(job=job.id, number=job.tries, token=job.token, worker=worker)
            self.notes.write(note, _pid(worker))
            self.held[worker].append(job)

    async def settle(self) -> None:
        """By the owner, or by one who has lost the job without knowing it."""
        worker = self.chance.choice(list(self.held))
        if not self.held[worker]:
            return
        job = self.held[worker].pop(self.chance.randrange(len(self.held[worker])))
        self.notes.write(End(job=job.id, token=job.token, how="done"), _pid(worker))
        chosen = self.settings.get(job.queue, DEFAULTS)
        change = settle(job, self.outcome(job), self.clock.now(), self.chance.random(), chosen)
        (answer,) = await self.engine.apply([change])
        made = isinstance(answer, Applied)
        told = Settled(
            job=job.id,
            token=job.token,
            applied=made,
            event=str(answer.job.event) if made else "",
            version=answer.job.version if made else 0,
        )
        self.notes.write(told, _pid(worker))

    def outcome(self, job: Job) -> Outcome:
        now = self.clock.now()
        problem = Problem("Error", "simulated")
        done = Completed(msgspec.Raw(msgspec.json.encode({"token": job.token})))
        others = (
            Failed(problem),
            Uncounted(problem),
            Terminated(problem),
            Snoozed(now + 100),
            Returned(),
            Detached(now + 500),
            Moved("main" if job.queue != "main" else "side", run_at=now + 50),
        )
        if self.calm or self.chance.random() < 0.6:
            return done
        return self.chance.choice(others)

    async def upkeep(self) -> None:
        now = self.clock.now()
        await rescue(self.engine, "lab", now, lambda job: self.settings.get(job.queue, DEFAULTS))
        await expire_overdue(self.engine, now)

    async def crash(self) -> None:
        """A worker is gone; another takes its place, under another name."""
        worker = self.chance.choice(list(self.held))
        del self.held[worker]
        self.held[f"w{len(self.notes.notes) + 10}"] = []

    async def drain(self) -> None:
        self.calm = True
        for _ in range(400):
            self.tick(300)
            await self.app.release_key("tenant", workload.BLOCKING)
            await self.upkeep()
            for _ in range(12):
                await self.claim()
                await self.settle()
            left = {counted.state for counted in await self.app.count()}
            if left <= {*FINAL, State.BLOCKED} and not any(self.held.values()):
                return


def _pid(worker: str) -> int:
    return 1000 + int(worker[1:])


def simulate(seed: int, steps: int = 150) -> History:
    """The same history for the same seed: ids and jitter are drawn from it too."""
    before = random.getstate()
    random.seed(seed)
    try:
        return asyncio.run(Simulation(seed).run(steps))
    finally:
        random.setstate(before)
