"""Rates: enqueue and drain, ours and raw, interleaved."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

from figure import Figure, Say, rate
from raw_sqlite import RawStore, drain_rate, enqueue_rate

from headrace import App, WorkerOptions
from headrace.core.model import Filter
from headrace.core.states import State

ROUNDS = 5
BATCH = 100
DRAIN = 20_000


async def figures(folder: Path, say: Say) -> list[Figure]:
    """All rates of the SQLite engine."""
    return [
        await _enqueue_many(folder, say),
        await _enqueue_one(folder, say),
        await _enqueue_together(folder, say),
        await _drain(folder, say),
    ]


def _paths(folder: Path, name: str) -> Iterator[tuple[Path, Path]]:
    for number in range(ROUNDS):
        yield folder / f"{name}{number}.db", folder / f"{name}{number}.raw"


def _app(path: Path) -> App:
    app = App(f"sqlite:{path}")

    @app.task
    async def noop(n: int) -> None:
        """Does nothing."""

    app.noop = noop  # type: ignore[attr-defined]
    return app


async def _enqueue_many(folder: Path, say: Say) -> Figure:
    count, ours, raw = 10_000, list[float](), list[float]()
    for path, raw_path in _paths(folder, "many"):
        say(f"enqueue_many, round {len(raw) + 1} of {ROUNDS}")
        raw.append(enqueue_rate(RawStore(raw_path), count, BATCH))
        async with (app := _app(path)):
            noop = app.noop  # type: ignore[attr-defined]
            start = time.perf_counter()
            await app.enqueue_many((noop.prepare(n) for n in range(count)), batch=BATCH)
            ours.append(count / (time.perf_counter() - start))
    return rate("sqlite.enqueue_many", ours, raw, 0.35, "batches of 100")


async def _enqueue_one(folder: Path, say: Say) -> Figure:
    count, ours, raw = 1000, list[float](), list[float]()
    for path, raw_path in _paths(folder, "one"):
        say(f"enqueue_one, round {len(raw) + 1} of {ROUNDS}")
        raw.append(enqueue_rate(RawStore(raw_path), count, 1))
        async with (app := _app(path)):
            start = time.perf_counter()
            for n in range(count):
                await app.noop.enqueue(n)  # type: ignore[attr-defined]
            ours.append(count / (time.perf_counter() - start))
    return rate("sqlite.enqueue_one", ours, raw, 0.5, "one awaited call at a time")


async def _enqueue_together(folder: Path, say: Say) -> Figure:
    producers, each, ours, raw = 50, 100, list[float](), list[float]()
    for path, raw_path in _paths(folder, "together"):
        say(f"enqueue_50, round {len(raw) + 1} of {ROUNDS}")
        raw.append(enqueue_rate(RawStore(raw_path), producers * each, producers))
        async with (app := _app(path)):

            async def produce(app: App = app) -> None:
                for n in range(each):
                    await app.noop.enqueue(n)  # type: ignore[attr-defined]

            start = time.perf_counter()
            await asyncio.gather(*(produce() for _ in range(producers)))
            ours.append(producers * each / (time.perf_counter() - start))
    return rate("sqlite.enqueue_50", ours, raw, 0.35, "50 producers, raw in batches of 50")


async def _drain(folder: Path, say: Say) -> Figure:
    ours, raw = list[float](), list[float]()
    for path, raw_path in _paths(folder, "drain"):
        say(f"drain, round {len(raw) + 1} of {ROUNDS}")
        store = RawStore(raw_path)
        for _ in range(DRAIN // 500):
            store.insert(500)
        raw.append(drain_rate(store, BATCH))
        async with (app := _app(path)):
            noop = app.noop  # type: ignore[attr-defined]
            await app.enqueue_many([noop.prepare(n) for n in range(DRAIN)])
            ours.append(DRAIN / await _work_off(app))
    return rate("sqlite.drain", ours, raw, 0.30, f"{DRAIN:,} no-op jobs, concurrency {BATCH}")


async def _work_off(app: App) -> float:
    """Seconds from the start of a worker to the last completion in the store."""
    worker = app.worker(WorkerOptions(concurrency=BATCH))
    start = time.perf_counter()
    await worker.start()
    while True:
        await asyncio.sleep(0.005)
        if worker.idle:
            break
    spent = time.perf_counter() - start
    await worker.stop()
    engine = await app.engine()
    left = await engine.find(Filter(states=frozenset(State) - {State.COMPLETED}), limit=1)
    counted = {one.state: one.jobs for one in await app.count()}
    assert not left.jobs, f"a job was not completed: {left.jobs[0].id}"
    assert counted == {State.COMPLETED: DRAIN}, counted
    return spent
