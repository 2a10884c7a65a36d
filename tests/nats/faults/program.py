"""The processes of the fault tests: `python -m tests.nats.faults.program ROLE URL DIARY`.

What they do they write to the diary, one line with one write, with the time of a clock that all
processes of the machine share.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

from headrace import App, EngineUnavailable, JobContext
from headrace.core.change import Applied
from headrace.core.model import NewJob

KEYS = 4
LEASE = 6.0


class Diary:
    """A file that many processes append to."""

    def __init__(self, path: str | Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def note(self, *words: object) -> None:
        line = " ".join(map(str, (time.monotonic_ns(), *words)))
        os.write(self._file, (line + "\n").encode())


def make(url: str, diary: Diary) -> App:
    """The app that all processes share."""
    app = App(url)
    pid = os.getpid()

    def begun(ctx: JobContext, key: object) -> None:
        ctx.call_after(
            lambda _, answer: (
                diary.note("done", ctx.id, pid) if isinstance(answer, Applied) else None
            )
        )
        diary.note("start", ctx.id, pid, key, ctx.job.token)

    @app.task(max_tries=1000)
    async def plain(ctx: JobContext) -> None:
        begun(ctx, "-")
        diary.note("end", ctx.id, pid, "-")

    @app.task(key=("k", "/key"), max_active=1, max_tries=1000)
    async def keyed(ctx: JobContext, key: int) -> None:
        begun(ctx, key)
        await asyncio.sleep(random.uniform(0, 0.01))
        diary.note("end", ctx.id, pid, key)

    @app.task(key=("slow", "/key"), max_active=1, max_tries=1000)
    async def slow(ctx: JobContext, key: int, seconds: float) -> None:
        begun(ctx, f"slow{key}")
        await asyncio.sleep(seconds)
        diary.note("end", ctx.id, pid, f"slow{key}")

    return app


def some_jobs(app: App, chance: random.Random) -> list[NewJob]:
    """The next jobs of a producer: plain ones, keyed ones, and a delayed one now and then."""
    jobs = [app.prepare("plain", {}, max_tries=1000) for _ in range(chance.randrange(3))]
    jobs += [keyed_job(app, chance.randrange(KEYS)) for _ in range(chance.randrange(1, 3))]
    if chance.random() < 0.1:
        jobs.append(app.prepare("plain", {}, max_tries=1000, delay=0.2))
    return jobs


def keyed_job(app: App, key: int, **more: Any) -> NewJob:
    return app.prepare(
        "keyed", {"key": key}, key=("k", "/key"), max_active=1, max_tries=1000, **more
    )


async def produce(app: App, diary: Diary) -> None:
    """Enqueues for ever. What was not confirmed is enqueued again, as it is."""
    chance = random.Random(os.getpid())
    async with app:
        while True:
            await enqueue(app, some_jobs(app, chance), diary)
            await asyncio.sleep(chance.uniform(0.005, 0.02))


async def enqueue(app: App, jobs: list[NewJob], diary: Diary) -> None:
    """Goes on until it is confirmed."""
    try:
        answers = await app.enqueue_many(jobs)
    except EngineUnavailable as error:
        diary.note("unsure", type(error).__name__, str(error).replace(" ", "_"))
        await asyncio.sleep(0.05)
        await enqueue(app, jobs, diary)
        return
    for job, answer in zip(jobs, answers, strict=True):
        assert answer.ref, f"{job.id}: {answer}"
        diary.note("accepted", job.id)


def main(role: str, url: str, path: str) -> None:
    logging.basicConfig(format=f"{os.getpid()} %(asctime)s %(name)s %(message)s")
    logging.getLogger("headrace").setLevel(logging.INFO)
    diary = Diary(path)
    app = make(url, diary)
    if role == "producer":
        asyncio.run(produce(app, diary))
    else:
        app.run_worker(lease=LEASE, concurrency=40, grace=1.0)


if __name__ == "__main__":
    main(*sys.argv[1:])
