"""Headrace, on SQLite with a plain function and on NATS with an async one, as its peers have."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any

from marks import work

from headrace import App, JobRef

URL = os.environ["RACE_STORE"]
ON_NATS = URL.startswith("nats")

app = App(URL)

if ON_NATS:

    @app.task
    async def noop(i: int) -> int:
        return work(i)

else:

    @app.task
    def noop(i: int) -> int:
        return work(i)


class Headrace:
    def versions(self) -> dict[str, str]:
        import apsw

        store = {} if ON_NATS else {"SQLite": apsw.sqlite_lib_version()}
        return {"headrace": version("headrace"), **store}

    def worker(self, concurrency: int) -> list[str]:
        command = [sys.executable, "-m", "headrace", "worker", "with_headrace:app"]
        return [*command, "--concurrency", str(concurrency), "--log-level", "warning"]

    def settings(self, concurrency: int) -> str:
        kind = "async handler" if ON_NATS else "plain function, in threads; every commit synced"
        return f"`headrace worker --concurrency {concurrency}`, {kind}; results on (default)"

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        async with app:
            yield

    async def put(self, job: int) -> JobRef[int]:
        return await noop.enqueue(job)

    async def put_many(self, jobs: Sequence[int]) -> Sequence[JobRef[int]]:
        answers = await app.enqueue_many(noop.prepare(job) for job in jobs)
        return [answer.ref for answer in answers if answer.ref]

    async def result(self, ref: Any) -> int:
        return await ref.result(timeout=60)


CONTESTANT = Headrace()
