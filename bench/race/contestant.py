"""A contestant's side of the race: a process that produces jobs when it is told to.

It reads one JSON object a line and answers each with one. Nothing but the standard library, so that
a contestant has only its own packages in its interpreter.

    {"do": "describe", "concurrency": 100}    versions, the worker's command, settings in words
    {"do": "single", "first": 0, "count": 9}  seconds; one call after the other
    {"do": "bulk", "first": 0, "count": 9}    seconds; its fastest way to enqueue many
    {"do": "settle", "jobs": [8, 9]}          when the results of these are stored
    {"do": "pickup", "first": 0, "count": 9}  milliseconds from each call to the handler's start
    {"do": "trip", "first": 0, "count": 9}    milliseconds from each call to its result in hand
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

from marks import VARIABLE, Marks

PAUSE = (0.005, 0.03)
"""Seconds between two jobs of an idle worker: at random, so that a poll is met at any moment."""

PATIENCE = 60.0


class Contestant(Protocol):
    """What a script has to offer. Producing happens in one event loop."""

    def versions(self) -> dict[str, str]: ...

    def worker(self, concurrency: int) -> list[str]:
        """The command of a worker, with one process for handlers."""
        ...

    def settings(self, concurrency: int) -> str:
        """How it was tuned, in a few words."""
        ...

    def opened(self) -> Any:
        """An async context manager around all producing."""
        ...

    async def put(self, job: int) -> Any:
        """Enqueues one job, durably, and returns something to ask for it by."""
        ...

    async def put_many(self, jobs: Sequence[int]) -> Sequence[Any]: ...

    async def result(self, ref: Any) -> int:
        """Waits for a result."""
        ...


@asynccontextmanager
async def nothing_to_open() -> AsyncIterator[None]:
    yield


async def serve(contestant: Contestant) -> None:
    """Does what it is told until its input ends."""
    producing = _Producing(contestant)
    async with contestant.opened():
        for line in iter(sys.stdin.readline, ""):
            order = json.loads(line)
            answer = await getattr(producing, order.pop("do"))(**order)
            sys.stdout.write(json.dumps(answer) + "\n")
            sys.stdout.flush()


class _Producing:
    def __init__(self, contestant: Contestant) -> None:
        self._contestant = contestant
        self._marks = Marks(Path(os.environ[VARIABLE]))
        self._refs: dict[int, Any] = {}

    async def describe(self, concurrency: int) -> dict[str, Any]:
        return {
            "versions": self._contestant.versions(),
            "worker": self._contestant.worker(concurrency),
            "settings": self._contestant.settings(concurrency),
        }

    async def single(self, first: int, count: int) -> float:
        start = time.monotonic()
        for job in range(first, first + count):
            self._refs[job] = await self._contestant.put(job)
        return time.monotonic() - start

    async def bulk(self, first: int, count: int) -> float:
        jobs = range(first, first + count)
        start = time.monotonic()
        refs = await self._contestant.put_many(jobs)
        spent = time.monotonic() - start
        self._refs.update(zip(jobs, refs, strict=True))
        return spent

    async def settle(self, jobs: Sequence[int]) -> float:
        for job in jobs:
            assert await self._contestant.result(self._refs[job]) == job
        return time.monotonic()

    async def pickup(self, first: int, count: int) -> list[float]:
        times: list[float] = []
        for job in range(first, first + count):
            await asyncio.sleep(random.uniform(*PAUSE))
            start = time.monotonic()
            self._refs[job] = await self._contestant.put(job)
            times.append((await self._started(job) - start) * 1000)
        return times

    async def trip(self, first: int, count: int) -> list[float]:
        times: list[float] = []
        for job in range(first, first + count):
            await asyncio.sleep(random.uniform(*PAUSE))
            start = time.monotonic()
            assert await self._contestant.result(await self._contestant.put(job)) == job
            times.append((time.monotonic() - start) * 1000)
        return times

    async def _started(self, job: int) -> float:
        deadline = time.monotonic() + PATIENCE
        while not self._marks[job]:
            assert time.monotonic() < deadline, f"job {job} did not start"
            await asyncio.sleep(0.0005)
        return self._marks[job]
