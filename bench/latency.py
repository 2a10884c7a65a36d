"""Times: idle pick-up, start-up, import; and the size of an idle worker."""

from __future__ import annotations

import asyncio
import compileall
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import psutil
from figure import Figure, Say, Stolen, bound, percentile
from raw_nats import RawPickUp
from target import Target

import headrace
from headrace import App, WorkerOptions

HERE = Path(__file__).parent


def compile_ours() -> None:
    """As pip does when it installs a package: what is measured is not the compiler."""
    compileall.compile_dir(str(Path(headrace.__file__).parent), quiet=1)


def spawn_worker(url: str) -> subprocess.Popen[bytes]:
    """A worker process of the command line."""
    env = {**os.environ, "HEADRACE_URL": url, "PYTHONPATH": str(HERE)}
    command = [sys.executable, "-m", "headrace", "worker", "tasks:app"]
    return subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


async def figures(target: Target, say: Say, *, prefix: str = "") -> list[Figure]:
    """Only pick-up in one process is promised of every engine; the rest is of the default one,
    and of others shown. `prefix` is put before the names of what is no engine's own."""
    compile_ours()
    say(f"{target.name}: idle pick-up in one process")
    async with target.store("here") as url, target.raw_pickup("here") or nullcontext() as raw:
        stolen = Stolen()
        here, beside = await _pick_up_here(url, raw)
        note = f"one process{stolen.note()}"
    say(f"{target.name}: idle pick-up across processes, start-up, idle worker")
    async with target.store("across") as url:
        across = await _across(url)
    wanted = None if prefix else 1.0
    name, ours = target.name, percentile(here, 0.5)
    found = [
        bound(f"{name}.pickup_p50", ours, target.pickup, "ms", note),
        bound(
            f"{name}.pickup_across_p50",
            percentile(across.pickups, 0.5),
            5.0,
            "ms",
            "two processes",
            wanted=wanted,
        ),
        bound(
            f"{name}.pickup_across_p99",
            percentile(across.pickups, 0.99),
            20.0,
            "ms",
            "two processes",
            wanted=wanted,
        ),
        bound(
            f"{prefix}worker.first_job",
            percentile(across.starts, 0.5),
            0.7,
            "s",
            "process start to first job",
            wanted=wanted,
        ),
        bound(f"{prefix}worker.idle_memory", across.size, 60.0, "MB", "resident", wanted=wanted),
        bound(
            f"{prefix}worker.idle_cpu",
            across.cpu,
            1.0,
            "%",
            "of one core, over 5 s",
            wanted=wanted,
        ),
    ]
    if beside:
        limit, note = percentile(beside, 0.5), "against the same two round trips without job logic"
        found.insert(1, bound(f"{name}.pickup_vs_raw", ours, limit, "ms", note, wanted=None))
    return found if prefix else [*found, _import_time()]


async def _pick_up_here(url: str, raw: RawPickUp | None) -> tuple[list[float], list[float]]:
    """Ours, and the raw ones in between. The producer waits for the handler only: to follow a
    result is work of its own, which would be done in the same event loop at the same time."""
    beside: list[float] = []
    async with (app := App(url)):
        started: asyncio.Queue[int] = asyncio.Queue()

        @app.task
        async def latency(sent: int) -> None:
            started.put_nowait(time.perf_counter_ns() - sent)

        async def measured() -> int:
            if raw is not None:
                beside.append(await raw.measured() * 1000)
                await asyncio.sleep(0.003)
            await latency.enqueue(time.perf_counter_ns())
            return await started.get()

        worker = app.worker(WorkerOptions())
        await worker.start()
        times = await _measure(measured)
        await worker.stop()
    return times, beside


async def _measure(measured: Callable[[], Awaitable[int]], count: int = 300) -> list[float]:
    """Milliseconds; before each the worker has come to rest."""
    times: list[float] = []
    for n in range(count + 20):
        taken = await measured()
        if n >= 20:
            times.append(taken / 1e6)
        await asyncio.sleep(0.003)
    return times


@dataclass(frozen=True)
class _Across:
    """What was seen of a worker in a process of its own."""

    pickups: list[float]
    """Milliseconds."""
    starts: list[float]
    """Seconds."""
    size: float
    """Megabytes."""
    cpu: float
    """Per cent of a core."""


async def _across(url: str) -> _Across:
    async with (app := App(url)):

        @app.task
        async def noop(n: int) -> None: ...

        @app.task
        async def latency(sent: int) -> int: ...

        starts: list[float] = []
        for _ in range(5):
            ref = await noop.enqueue(1)
            begun = time.perf_counter()
            process = spawn_worker(url)
            await ref.result(timeout=30)
            starts.append(time.perf_counter() - begun)
            process.terminate()
            process.wait(timeout=30)
        process = spawn_worker(url)
        try:
            await (await noop.enqueue(1)).result(timeout=30)

            async def measured() -> int:
                ref = await latency.enqueue(time.perf_counter_ns())
                return await ref.result(timeout=10)

            times = await _measure(measured)
            size, cpu = await _idle(process.pid)
        finally:
            process.terminate()
            process.wait(timeout=30)
    return _Across(times, starts, size, cpu)


async def _idle(pid: int) -> tuple[float, float]:
    """Megabytes and per cent of a core."""
    process = psutil.Process(pid)
    await asyncio.sleep(1)
    before = process.cpu_times()
    await asyncio.sleep(5)
    after = process.cpu_times()
    spent = after.user + after.system - before.user - before.system
    return process.memory_info().rss / 1e6, max(spent / 5 * 100, 0.001)


def _import_time() -> Figure:
    def best(code: str) -> float:
        times: list[float] = []
        for _ in range(8):
            start = time.perf_counter()
            subprocess.run([sys.executable, "-c", code], check=True)
            times.append(time.perf_counter() - start)
        return min(times)

    took = (best("import headrace") - best("pass")) * 1000
    return bound("import_headrace", took, 150.0, "ms", "best of 8, interpreter start taken off")
