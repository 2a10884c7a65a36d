"""taskiq on NATS JetStream, with results in the object store."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any

from marks import work
from taskiq_nats import PullBasedJetStreamBroker
from taskiq_nats.result_backend import NATSObjectStoreResultBackend

URL = os.environ["RACE_STORE"]
BATCH, TIMEOUT, IN_FLIGHT = 100, 5, 100

broker: Any = PullBasedJetStreamBroker(URL, pull_consume_batch=BATCH, pull_consume_timeout=TIMEOUT)
if os.environ["RACE_RESULTS"] == "on":
    broker = broker.with_result_backend(NATSObjectStoreResultBackend(URL))


@broker.task(task_name="noop")
async def noop(i: int) -> int:
    return work(i)


class Taskiq:
    def versions(self) -> dict[str, str]:
        return {name: version(name) for name in ("taskiq", "taskiq-nats", "nats-py")}

    def worker(self, concurrency: int) -> list[str]:
        command = [sys.executable, "-m", "taskiq", "worker", "with_taskiq:broker"]
        limits = ["--workers", "1", "--max-async-tasks", str(concurrency)]
        return [*command, *limits, "--max-prefetch", str(concurrency), "--log-level", "WARNING"]

    def settings(self, concurrency: int) -> str:
        return (
            f"`taskiq worker --workers 1 --max-async-tasks {concurrency} --max-prefetch"
            f" {concurrency}`, `PullBasedJetStreamBroker(pull_consume_batch={BATCH},"
            f" pull_consume_timeout={TIMEOUT})`, `NATSObjectStoreResultBackend`, uvloop"
        )

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        await broker.startup()
        yield
        await broker.shutdown()

    async def put(self, job: int) -> Any:
        return await noop.kiq(job)

    async def put_many(self, jobs: Sequence[int]) -> Sequence[Any]:
        """It has no call for many: so many are on their way at once."""
        refs: list[Any] = [None] * len(jobs)
        todo = iter(enumerate(jobs))

        async def produce() -> None:
            for place, job in todo:
                refs[place] = await noop.kiq(job)

        await asyncio.gather(*(produce() for _ in range(IN_FLIGHT)))
        return refs

    async def result(self, ref: Any) -> int:
        return (await ref.wait_result(check_interval=0.002, timeout=60)).return_value


CONTESTANT = Taskiq()
