"""The processes of the crash tests: `python -m tests.crash.program ROLE STORE DIARY SEED`.

What they do they write to the diary, one line with one write: the order of the lines is the order
of things. A line never comes before what it tells, and never after somebody could act on it.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import threading
from pathlib import Path

from headrace import App, JobContext
from headrace.core.change import Applied
from headrace.engine.sqlite import SqliteEngine

KEYS = 5
MAX_ACTIVE = 2
LEASE = 2.0


class Diary:
    """A file that many processes append to."""

    def __init__(self, path: str | Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def note(self, *words: object) -> None:
        os.write(self._file, (" ".join(map(str, words)) + "\n").encode())


def make(store: str, diary: Diary, deadly: random.Random | None = None) -> App:
    """The app that all processes share."""
    engine = SqliteEngine(store, synchronous="normal")
    if deadly is not None:
        engine.fault = lambda point: _perhaps_die(deadly, point)
    app = App(engine)
    pid = os.getpid()

    @app.task(key=("k", "/key"), max_active=MAX_ACTIVE, max_tries=1000)
    async def work(ctx: JobContext, key: int) -> str:
        ctx.call_after(
            lambda _, answer: (
                diary.note("done", ctx.id, pid) if isinstance(answer, Applied) else None
            )
        )
        diary.note("start", ctx.id, pid, key)
        await asyncio.sleep(random.uniform(0, 0.01))
        diary.note("end", ctx.id, pid, key)
        return ctx.id

    @app.on_start
    def tell() -> None:
        diary.note("ready", pid)

    @app.task
    def slow(ctx: JobContext, folder: str) -> str:
        """Goes on until it is told, whatever happens to its lease."""
        Path(folder, f"try-{ctx.number}").touch()
        while not Path(folder, f"go-{ctx.number}").exists():
            threading.Event().wait(0.01)
        return f"try {ctx.number}"

    return app


def _perhaps_die(deadly: random.Random, point: str) -> None:
    """Dies at a point of a commit: before it, in it, or after it but before anybody knows."""
    if deadly.random() < 0.004:
        os.kill(os.getpid(), signal.SIGKILL)


async def produce(app: App, diary: Diary, chance: random.Random) -> None:
    """Enqueues for ever: one by one, many at once, and parents with children."""
    async with app:
        while True:
            key = {"key": chance.randrange(KEYS)}
            match chance.randrange(3):
                case 0:
                    jobs = [app.prepare("work", key, **OPTIONS)]
                    answers = await app.enqueue_many(jobs)
                    accepted = [answer.ref.id for answer in answers if answer.ref]
                case 1:
                    jobs = [app.prepare("work", key, **OPTIONS) for _ in range(5)]
                    answers = await app.enqueue_many(jobs)
                    accepted = [answer.ref.id for answer in answers if answer.ref]
                case _:
                    parent = app.prepare("work", key, **OPTIONS)
                    child = app.prepare("work", key, depends_on=[parent.id], **OPTIONS)
                    accepted = [ref.id for ref in await app.enqueue_group([parent, child])]
            for job_id in accepted:
                diary.note("accepted", job_id)
            await asyncio.sleep(chance.uniform(0, 0.02))


OPTIONS = {"key": ("k", "/key"), "max_active": MAX_ACTIVE, "max_tries": 1000}


def main(role: str, store: str, path: str, seed: str) -> None:
    diary, chance = Diary(path), random.Random(seed)
    deadly = chance if role.startswith("deadly") else None
    app = make(store, diary, deadly)
    if role.endswith("producer"):
        asyncio.run(produce(app, diary, chance))
    else:
        app.run_worker(lease=LEASE, concurrency=8, grace=1.0)


if __name__ == "__main__":
    main(*sys.argv[1:])
