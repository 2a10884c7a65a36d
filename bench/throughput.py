"""Rates: enqueue and drain, ours and raw, interleaved."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from figure import Figure, Say, rate
from target import Raw, Target

from headrace import App, WorkerOptions
from headrace.app.task import Task
from headrace.core.model import Filter
from headrace.core.states import State

BATCH = 100
DRAIN = 20_000
KEYED, KEYS, KEYED_WANTED = 3_000, 1_000, 3_000.0
PRODUCERS = 50

Noop = Task[Any, Any]
Ours = Callable[[App, Noop], Awaitable[float]]
Theirs = Callable[[Raw], Awaitable[float]]


async def figures(target: Target, say: Say) -> list[Figure]:
    """The rates that the target asks for."""
    found: list[Figure] = []
    for name, wanted in target.wanted.items():
        ours, theirs, note = RATES[name]
        mine, raw, lean = list[float](), list[float](), list[float]()
        for number in range(target.rounds):
            say(f"{target.name}.{name}, round {number + 1} of {target.rounds}")
            place = f"{name}{number}"
            async with target.raw(place) as loop:
                raw.append(await theirs(loop))
            if name == "drain" and (leaner := target.lean(place)):
                async with leaner as loop:
                    lean.append(await theirs(loop))
            async with target.store(place) as url, _opened(url) as (app, noop):
                mine.append(await ours(app, noop))
        found.append(rate(f"{target.name}.{name}", mine, raw, wanted, note))
        if lean:
            full = f"{target.name}.{name}_vs_two_writes"
            found.append(rate(full, mine, lean, None, "against a leaner log: see raw_nats.RawLog"))
    return found


async def keyed(target: Target, say: Say) -> list[Figure]:
    """Jobs of many keys, none of which waits for its key: how fast a worker works them off, and how
    fast they are enqueued and worked off one after the other."""
    worked: list[float] = []
    both: list[float] = []
    for number in range(3):
        say(f"{target.name}.keyed, round {number + 1} of 3")
        async with target.store(f"keyed{number}") as url, _opened(url) as (app, _):

            @app.task(key=("tenant", "/tenant"), max_active=KEYED // KEYS)
            async def tenants(tenant: int) -> None:
                """Does nothing."""

            jobs = (tenants.prepare(n % KEYS) for n in range(KEYED))
            start = time.perf_counter()
            await app.enqueue_many(jobs, batch=BATCH)
            enqueued = time.perf_counter() - start
            spent = await work_off(app, KEYED)
            worked.append(KEYED / spent)
            both.append(KEYED / (enqueued + spent))
    promised = [KEYED_WANTED] * len(worked)
    note = f"{KEYED:,} jobs of {KEYS:,} keys; the limit is what was promised"
    return [
        rate(f"{target.name}.keyed", worked, promised, 1.0, note),
        rate(f"{target.name}.keyed_and_enqueued", both, promised, None, "enqueued too"),
    ]


@asynccontextmanager
async def _opened(url: str) -> AsyncIterator[tuple[App, Noop]]:
    async with (app := App(url)):

        @app.task
        async def noop(n: int) -> None:
            """Does nothing."""

        yield app, noop


async def _many(app: App, noop: Noop) -> float:
    count = 10_000
    start = time.perf_counter()
    await app.enqueue_many((noop.prepare(n) for n in range(count)), batch=BATCH)
    return count / (time.perf_counter() - start)


async def _one(app: App, noop: Noop) -> float:
    count = 1000
    start = time.perf_counter()
    for n in range(count):
        await noop.enqueue(n)
    return count / (time.perf_counter() - start)


async def _together(app: App, noop: Noop) -> float:
    each = 100

    async def produce() -> None:
        for n in range(each):
            await noop.enqueue(n)

    start = time.perf_counter()
    await asyncio.gather(*(produce() for _ in range(PRODUCERS)))
    return PRODUCERS * each / (time.perf_counter() - start)


async def _drain(app: App, noop: Noop) -> float:
    await app.enqueue_many([noop.prepare(n) for n in range(DRAIN)])
    return DRAIN / await work_off(app, DRAIN)


async def _raw_drain(raw: Raw) -> float:
    await raw.fill(DRAIN)
    return await raw.drain()


RATES: dict[str, tuple[Ours, Theirs, str]] = {
    "enqueue_many": (_many, lambda raw: raw.enqueue(10_000, BATCH), "batches of 100"),
    "enqueue_one": (_one, lambda raw: raw.enqueue(1000, 1), "one awaited call at a time"),
    "enqueue_50": (
        _together,
        lambda raw: raw.enqueue(5000, PRODUCERS),
        "50 producers, raw in batches of 50",
    ),
    "drain": (_drain, _raw_drain, f"{DRAIN:,} no-op jobs, concurrency {BATCH}"),
}


async def work_off(app: App, count: int) -> float:
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
    assert counted == {State.COMPLETED: count}, counted
    return spent
