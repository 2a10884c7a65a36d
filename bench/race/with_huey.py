"""huey on SQLite."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import sys
import time
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from contestant import nothing_to_open
from huey import SqliteHuey
from marks import work

huey = SqliteHuey(
    "race",
    results=os.environ["RACE_RESULTS"] == "on",
    filename=os.environ["RACE_STORE"],
    fsync=True,
)

POLL = "0.01"
"""Seconds between two looks at the queue. The default, 0.1 growing to 10, is gentler to an idle
machine and ten times slower to start a job."""


@huey.task(name="noop")
def noop(i: int) -> int:
    return work(i)


class Huey:
    def versions(self) -> dict[str, str]:
        return {"huey": version("huey"), "SQLite": sqlite3.sqlite_version}

    def worker(self, concurrency: int) -> list[str]:
        command = [sys.executable, "-m", "huey.bin.huey_consumer", "with_huey.huey"]
        threads = ["-k", "thread", "-w", str(concurrency)]
        return [*command, *threads, "-d", POLL, "-m", POLL, "-q", "-n"]

    def settings(self, concurrency: int) -> str:
        return (
            f"`huey_consumer -k thread -w {concurrency} -d {POLL} -m {POLL}`, WAL, `fsync=True`;"
            " results on (default)"
        )

    opened = staticmethod(nothing_to_open)

    async def put(self, job: int) -> Any:
        return noop(job)

    async def put_many(self, jobs: Sequence[int]) -> Sequence[Any]:
        refs = noop.map(jobs)
        return list(refs) if refs else [None] * len(jobs)

    async def result(self, ref: Any) -> int:
        """Its own blocking `get` looks every 50 ms at first, which would hide the rest."""
        deadline = time.monotonic() + 60
        while not ref.is_ready():
            assert time.monotonic() < deadline, f"no result of {ref.id}"
            await asyncio.sleep(0.002)
        return ref.get(preserve=True)


CONTESTANT = Huey()
