"""One run: set up, faults under load, quiet, evidence, verdict."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random

import msgspec

from headrace.app.app import App
from headrace.core.errors import EngineUnavailable
from headrace.core.states import FINAL, State
from headrace.testing.lab import evidence, workload
from headrace.testing.lab.checker import violations
from headrace.testing.lab.crew import Crew
from headrace.testing.lab.deployment import Deployment
from headrace.testing.lab.faults import FAULTS
from headrace.testing.lab.handlers import open_app
from headrace.testing.lab.history import History, Plan, QueueRules
from headrace.testing.lab.nemesis import Nemesis
from headrace.testing.lab.notes import Notes
from headrace.testing.lab.panel import Panel
from headrace.testing.lab.scene import Kind, Scene
from headrace.testing.lab.violation import Violation

NOTHING_MORE = frozenset({*FINAL, State.BLOCKED})
"""A blocked job that nothing else waits before is left to the checker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What a run is to be like."""

    seed: int
    seconds: float = 30.0
    jobs: int = 0
    """So many jobs end before the faults are over, if need be after a longer time, but not for
    ever: where nothing ends any more, the checker shall say so."""
    workers: int = 3
    producers: int = 2
    concurrency: int = 8
    lease: float = 1.5
    quiet: float = 120.0
    """Seconds without the end of a job, once the faults are over, after which the others are taken
    to be stuck."""
    kinds: Mapping[str, Kind] | None = None
    """Other faults than all that there are."""
    equip: str | None = None


@dataclass(slots=True)
class Outcome:
    """What a run came to."""

    history: History
    violations: list[Violation]


Progress = Callable[[str], None]


async def run(
    deployment: Deployment, setup: Setup, folder: Path, progress: Progress | None = None
) -> Outcome:
    """Runs in the folder, which keeps the evidence. Whatever was started is ended."""
    tell = progress or _silent
    (folder / "notes").mkdir(parents=True)
    (folder / "logs").mkdir()
    url = await deployment.start(folder)
    notes = Notes(folder / "notes" / "lab.jsonl")
    panel = Panel(folder / "panel")
    crew = Crew(folder, notes)
    try:
        plan = Plan(
            engine=deployment.name,
            url=url,
            seed=setup.seed,
            lease=round(setup.lease * 1000),
            concurrency=setup.concurrency,
            mono=time.monotonic_ns(),
            wall=time.time_ns() // 1_000_000,
            queues=workload.QUEUES,
            equip=setup.equip,
            unavailable_is_unwritten=deployment.unavailable_is_unwritten,
        )
        (folder / "plan.json").write_bytes(msgspec.json.encode(plan))
        async with open_app(plan, panel) as app:
            await set_queues(app)
            crew.hire("worker", setup.workers)
            crew.hire("producer", setup.producers)
            scene = Scene(plan, crew, panel, notes, Random(f"{setup.seed}/nemesis"))
            nemesis = Nemesis(scene, setup.kinds or {**FAULTS, **deployment.faults})
            telling = asyncio.create_task(_tell_now_and_then(app, nemesis, tell))
            try:
                await nemesis.run(setup.seconds)
                latest = time.monotonic() + setup.quiet
                while time.monotonic() < latest and await _ended(app) < setup.jobs:
                    await nemesis.run(1.0)
            finally:
                telling.cancel()
                await asyncio.gather(telling, return_exceptions=True)
            tell("faults are over; waiting for every job to end")
            panel.calm = True
            crew.tend()
            await asyncio.to_thread(crew.leave, "producer")
            await _until_quiet(app, crew, setup.quiet)
            await asyncio.to_thread(crew.leave, "worker")
            await evidence.gather(app, folder)
    finally:
        crew.close()
        panel.close()
        notes.close()
        await deployment.stop()
    tell("checking the history")
    history = await asyncio.to_thread(evidence.load, folder)
    return Outcome(history, await asyncio.to_thread(violations, history))


async def set_queues(app: App) -> None:
    """Gives the queues of the workload what it promises of them."""
    for name, rules in workload.QUEUES.items():
        await app.queue(name).set(force=True, **_settings(rules))


def _settings(rules: QueueRules) -> dict[str, object]:
    settings: dict[str, object] = {
        "max_active": rules.max_active,
        "dead_letters": rules.dead_letters,
        "retention": dict.fromkeys(rules.forgets, 0),
    }
    if rules.rate is not None:
        count, period, burst = rules.rate
        settings["rate"] = f"{count}/{period // 1000}s+{burst}"
    return settings


async def _ended(app: App) -> int:
    """How many jobs have ended, as far as is known."""
    try:
        return sum(one.jobs for one in await app.count() if one.state in FINAL)
    except EngineUnavailable:
        return 0


async def _until_quiet(app: App, crew: Crew, patience: float) -> None:
    """Waits until nothing runs or will run; what does not end is the checker's to find. The
    patience is for jobs that are stuck: as long as others end, the machine may be as slow as it
    likes."""
    deadline = time.monotonic() + patience
    looks, fewest = 0, sys.maxsize
    while looks < 2 and time.monotonic() < deadline:
        crew.tend()
        try:
            await app.queue(workload.PAUSED).resume()
            await app.release_key("tenant", workload.BLOCKING, reason="released by the lab")
            counted = [one for one in await app.count() if one.state not in FINAL]
            looks = looks + 1 if {one.state for one in counted} <= NOTHING_MORE else 0
            left = sum(one.jobs for one in counted)
            if left < fewest:
                fewest, deadline = left, time.monotonic() + patience
        except EngineUnavailable:
            looks = 0
        await asyncio.sleep(0.1)


async def _tell_now_and_then(app: App, nemesis: Nemesis, tell: Progress) -> None:
    began = time.monotonic()
    while True:
        await asyncio.sleep(5)
        try:
            counted = await app.count()
        except EngineUnavailable:
            tell("the store cannot be reached")
            continue
        jobs = sum(one.jobs for one in counted)
        done = sum(one.jobs for one in counted if one.state in FINAL)
        seconds = time.monotonic() - began
        tell(f"{seconds:3.0f} s, {jobs:,} jobs, {done:,} ended, {nemesis.done} faults")


def _silent(_: str) -> None:
    """Nobody wants to know."""
