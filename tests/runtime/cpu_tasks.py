"""Handlers for child processes: a child must be able to import them."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec

from headrace import App, Detached, JobContext, Retry, Snooze, Terminate, current_job
from headrace.runtime.context import MovedTo

app = App("memory:")


class Point(msgspec.Struct):
    x: int


@app.task(cpu=True)
def square(n: int) -> int:
    return n * n


@app.task(cpu=True)
async def square_async(n: int) -> int:
    await asyncio.sleep(0)
    return n * n


@app.task(cpu=True)
def where() -> list[int]:
    return [os.getpid(), os.getppid()]


@app.task(cpu=True)
def typed(point: Point, data: bytes) -> Point:
    assert isinstance(point, Point)
    return Point(point.x + len(data))


@app.task(cpu=True, max_tries=1)
def fails(text: str) -> None:
    raise ValueError(text)


@app.task(cpu=True, max_tries=1, terminates_on=[KeyError])
def raises(kind: str) -> None:
    match kind:
        case "terminate":
            raise Terminate("no")
        case "listed":
            raise KeyError("k")
        case "retry":
            raise Retry(after=50)
        case "snooze":
            raise Snooze(seconds=60)
        case _:
            sys.exit(3)


@app.task(cpu=True, retry=lambda number, error: 77)
def own_retry() -> None:
    raise ValueError


@app.task(cpu=True, max_tries=1)
def dies(how: str) -> None:
    if how == "exit":
        os._exit(7)
    os.kill(os.getpid(), signal.SIGKILL)


@app.task(cpu=True)
def big(size: int, filling: str = "") -> str:
    return "x" * (size - 2)


@app.task(cpu=True)
def odd_result() -> object:
    return object()


@app.task(cpu=True)
def spin(beacon: str) -> None:
    """Burns the processor without ever giving way, and has a child of its own that sleeps."""
    sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    Path(beacon).write_text(f"{os.getpid()} {sleeper.pid}")
    while True:
        sum(range(10_000))


@app.task(cpu=True)
def chatty(ctx: JobContext) -> str:
    print("on the way")  # noqa: T201
    subprocess.run(
        [sys.executable, "-c", "import sys; print('more', sys.stdin.read())"], check=True
    )
    ctx.progress("half", "message", 1, 2)
    ctx.log("info", f"try {current_job().number}")
    assert ctx.deadline
    ctx.set_result("set")
    return str(ctx.result)


@app.task(cpu=True, load_dependencies=True)
def total(ctx: JobContext) -> int:
    return sum(ctx.dependencies.values())


@app.task(cpu=True, max_tries=1)
async def asks_late(ctx: JobContext) -> int:
    return len(await ctx.load_dependencies())


@app.task(cpu=True, max_tries=1)
def calls_after(ctx: JobContext) -> None:
    ctx.call_after(lambda *_: None)


@app.task(cpu=True)
def leaves(ctx: JobContext) -> Detached:
    time.sleep(0.2)
    return ctx.detach(timeout=60)


@app.task(cpu=True)
def moves(ctx: JobContext) -> MovedTo:
    ctx.set_result([1])
    return ctx.move_to("other", "arrived", delay=30)


@app.task
def arrived(ctx: JobContext) -> object:
    return ctx.result


@app.task(cpu=True)
def nap(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


@app.task(cpu=True)
def pid_after(seconds: float) -> int:
    time.sleep(seconds)
    return os.getpid()


@app.task(cpu=True)
def threads() -> int:
    return threading.active_count()
