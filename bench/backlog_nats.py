"""NATS: what enqueueing and draining cost while a million jobs wait, against the same while few do.

Two servers, one with few jobs and one with many, which are put there as raw messages of our own
shape. The rounds alternate between them, each adding some jobs and working off about as many.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from figure import Figure, Say, grown
from raw_nats import RawNats
from target import NatsTarget
from throughput import BATCH

from headrace import App, WorkerOptions

SMALL = 10_000
ROUNDS = 5
COUNT = 4_000
"""Jobs that are added, and worked off, in a round."""
WARM = 500
"""Jobs that a worker runs before it is measured."""


class Backlog:
    """A server on which so many jobs wait."""

    def __init__(self, folder: Path, name: str, size: int) -> None:
        self._target = NatsTarget(folder)
        self._name, self._size = name, size
        self.enqueued: list[float] = []
        self.drained: list[float] = []
        """Microseconds a job."""

    @asynccontextmanager
    async def filled(self, say: Say) -> AsyncIterator[None]:
        with self._target.running():
            raw = await RawNats(self._target.url(self._name)).open()
            for start in range(0, self._size, 50_000):
                say(f"backlog: {start:,} of {self._size:,} jobs")
                await raw.fill(min(50_000, self._size - start))
            await raw.close()
            yield

    async def round(self) -> None:
        async with (app := App(self._target.url(self._name))):
            ran = 0
            enough = asyncio.Event()
            start = end = 0.0

            @app.task
            async def noop(n: int) -> None:
                nonlocal ran, start, end
                ran += 1
                if ran == WARM:
                    start = time.perf_counter()
                elif ran == WARM + COUNT:
                    end = time.perf_counter()
                    enough.set()

            await app.enqueue_many([noop.prepare(n) for n in range(BATCH)])
            begun = time.perf_counter()
            await app.enqueue_many((noop.prepare(n) for n in range(COUNT)), batch=BATCH)
            self.enqueued.append((time.perf_counter() - begun) / COUNT * 1e6)
            worker = app.worker(WorkerOptions(concurrency=BATCH))
            await worker.start()
            async with asyncio.timeout(60):
                await enough.wait()
            self.drained.append((end - start) / COUNT * 1e6)
            await worker.stop()


async def figures(folder: Path, say: Say, large: int) -> list[Figure]:
    few, many = Backlog(folder, "few", SMALL), Backlog(folder, "many", large)
    async with few.filled(say), many.filled(say):
        for number in range(ROUNDS):
            say(f"backlog: measuring, round {number + 1} of {ROUNDS}")
            await few.round()
            await many.round()
    return [
        grown("nats.enqueue_many", (SMALL, few.enqueued), (large, many.enqueued), "µs"),
        grown("nats.drain", (SMALL, few.drained), (large, many.drained), "µs"),
    ]
