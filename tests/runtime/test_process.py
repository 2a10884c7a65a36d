"""A worker as a process: `app.run_worker()` and signals (FEATURES 8.1, 8.5)."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from headrace import App, State
from headrace.app.workers import ECHO
from tests.support import eventually

PROGRAM = """
import asyncio, signal, sys, threading, time
from headrace import App

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have it ignored
app = App(sys.argv[1])

@app.task
async def quick(n: int) -> int:
    return n

@app.task
async def long(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return "finished"

@app.task
def stubborn() -> None:
    threading.Event().wait(600)

@app.task
async def blocks() -> None:
    time.sleep(600)

@app.task(cpu=True, max_tries=1)
def heavy(seconds: float) -> float:
    time.sleep(seconds)
    return seconds

if __name__ == "__main__":
    app.run_worker(grace=float(sys.argv[2]))
    print("left in order")
"""


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[App]:
    async with App(tmp_path / "jobs.db") as app:
        yield app


class Program:
    def __init__(self, folder: Path, grace: float) -> None:
        script = folder / "worker.py"
        script.write_text(PROGRAM)
        self._process = subprocess.Popen(
            [sys.executable, str(script), str(folder / "jobs.db"), str(grace)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def tell(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def end(self, limit: float = 20) -> tuple[int, str]:
        output, _ = self._process.communicate(timeout=limit)
        return self._process.returncode, output

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def programs() -> Iterator[list[Program]]:
    started: list[Program] = []
    yield started
    for program in started:
        program.kill()


async def start(app: App, tmp_path: Path, programs: list[Program], grace: float = 20.0) -> Program:
    program = Program(tmp_path, grace)
    programs.append(program)
    await eventually(app.workers)
    return program


async def active(app: App, type: str, **arguments: object):
    (answer,) = await app.enqueue_many([app.prepare(type, arguments)])
    assert answer.ref
    ref = answer.ref
    await eventually(lambda: _is(ref, State.ACTIVE))
    return ref


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_first_signal_lets_handlers_finish(
    app: App, tmp_path: Path, programs: list[Program], number: signal.Signals
) -> None:
    program = await start(app, tmp_path, programs)
    ref = await active(app, "long", seconds=0.5)
    program.tell(number)
    assert program.end() == (0, "left in order\n")
    assert await ref.result(0) == "finished"
    assert await app.workers() == []


async def test_after_the_grace_jobs_are_given_back(
    app: App, tmp_path: Path, programs: list[Program]
) -> None:
    program = await start(app, tmp_path, programs, grace=0.2)
    ref = await active(app, "long", seconds=600)
    program.tell(signal.SIGTERM)
    assert program.end() == (0, "left in order\n")
    job = await ref.get()
    assert (job.state, job.tries) == (State.PENDING, 0)


async def test_cpu_handlers_run_and_are_killed_under_uvloop_too(
    app: App, tmp_path: Path, programs: list[Program]
) -> None:
    program = await start(app, tmp_path, programs)
    quick, slow = await app.enqueue_many(
        [
            app.prepare("heavy", {"seconds": 0.01}),
            app.prepare("heavy", {"seconds": 600}, timeout=1, max_tries=1),
        ]
    )
    assert quick.ref
    assert await quick.ref.result(20) == 0.01
    assert slow.ref
    assert (await slow.ref.wait(20)).state is State.DEAD
    program.tell(signal.SIGTERM)
    assert program.end() == (0, "left in order\n")


async def test_handler_that_cannot_be_interrupted_does_not_keep_the_process(
    app: App, tmp_path: Path, programs: list[Program]
) -> None:
    program = await start(app, tmp_path, programs, grace=0.1)
    ref = await active(app, "stubborn")
    program.tell(signal.SIGTERM)
    assert program.end() == (0, "left in order\n")
    job = await ref.get()
    assert (job.state, job.tries) == (State.PENDING, 0)


@pytest.mark.parametrize("type", ["long", "stubborn"])
async def test_second_signal_leaves_now_and_gives_jobs_back(
    app: App, tmp_path: Path, programs: list[Program], type: str
) -> None:
    program = await start(app, tmp_path, programs, grace=600)
    ref = await active(app, type, **({"seconds": 600} if type == "long" else {}))
    program.tell(signal.SIGTERM)
    await eventually(lambda: _stopping(app))
    await asyncio.sleep(2 * ECHO)
    begun = time.monotonic()
    program.tell(signal.SIGTERM)
    assert program.end() == (0, "left in order\n")
    assert time.monotonic() - begun < 2
    job = await ref.get()
    assert (job.state, job.tries) == (State.PENDING, 0)


async def test_second_signal_ends_even_a_worker_whose_loop_is_blocked(
    app: App, tmp_path: Path, programs: list[Program]
) -> None:
    program = await start(app, tmp_path, programs)
    await active(app, "blocks")
    program.tell(signal.SIGTERM)
    await asyncio.sleep(2 * ECHO)
    program.tell(signal.SIGTERM)
    code, output = program.end(10)
    assert code != 0
    assert output == ""


async def _is(ref, state: State) -> bool:
    return (await ref.get()).state is state


async def _stopping(app: App) -> bool:
    """The worker has heard: it claims nothing any more."""
    (answer,) = await app.enqueue_many([app.prepare("quick", {"n": 1})])
    assert answer.ref
    try:
        await answer.ref.wait(0.2)
    except TimeoutError:
        return True
    return False
