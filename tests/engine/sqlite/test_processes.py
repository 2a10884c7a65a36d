"""Several processes on one file."""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from multiprocessing.context import SpawnContext
from pathlib import Path
from typing import Any

import apsw
import pytest

from headrace.core.states import State
from headrace.engine.protocol import work_topic
from headrace.engine.sqlite import SqliteEngine, wake
from headrace.testing.conformance import Bench
from headrace.testing.conformance.bench import rings


@pytest.fixture
def processes() -> SpawnContext:
    return multiprocessing.get_context("spawn")


def _insert_when_told(path: str, told: Any) -> None:
    async def main() -> None:
        engine = SqliteEngine(path)
        await engine.open()
        await asyncio.to_thread(told.wait, 20)
        await Bench(engine).add("a")
        await engine.close()

    asyncio.run(main())


async def test_commit_wakes_another_process(
    engine: SqliteEngine, path: Path, processes: SpawnContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wake, "POLL", 60.0)  # so that only the socket can be it
    bell = engine.listen(frozenset({work_topic("svc", "q")}))
    other = engine.listen(frozenset({work_topic("svc", "elsewhere")}))
    told = processes.Event()
    child = processes.Process(target=_insert_when_told, args=(str(path), told))
    child.start()

    told.set()

    assert await rings(bell)
    assert not await other.wait(0)
    await asyncio.to_thread(child.join)


async def test_silent_commit_of_a_stranger_is_noticed(engine: SqliteEngine, path: Path) -> None:
    bench = Bench(engine)
    bell = engine.listen(frozenset({work_topic("svc", "q")}))
    stranger = apsw.Connection(str(path))
    stranger.execute("BEGIN IMMEDIATE")
    engine.insert_on(stranger, [[bench.new("a")]], bench.now)
    stranger.execute("COMMIT")

    assert await rings(bell)


async def test_own_commits_ring_only_whom_they_concern(
    engine: SqliteEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = asyncio.Semaphore(0)
    loop, look = asyncio.get_running_loop(), wake.Ear._look  # pyright: ignore[reportPrivateUsage]

    def seen(self: wake.Ear, store: Any, version: int) -> int:
        version = look(self, store, version)
        loop.call_soon_threadsafe(looks.release)
        return version

    monkeypatch.setattr(wake, "POLL", 0.01)
    monkeypatch.setattr(wake.Ear, "_look", seen)
    bell = engine.listen(frozenset({work_topic("svc", "elsewhere")}))

    await Bench(engine).add("a")

    for _ in range(5):
        await asyncio.wait_for(looks.acquire(), 10)
    assert not await bell.wait(0)


async def test_socket_goes_with_the_engine(path: Path) -> None:
    engine = SqliteEngine(path)
    await engine.open()
    engine.listen(frozenset({"journal"}))
    folder = wake.directory(str(path))
    assert folder is not None
    assert len(list(folder.glob(f"*{wake.SUFFIX}"))) == 1

    await engine.close()

    assert not list(folder.glob(f"*{wake.SUFFIX}"))


async def test_socket_of_a_dead_process_is_cleared_away(engine: SqliteEngine, path: Path) -> None:
    folder = wake.directory(str(path))
    assert folder is not None
    dead = folder / f"1-1{wake.SUFFIX}"
    with wake._datagram() as socket:  # pyright: ignore[reportPrivateUsage]
        socket.bind(str(dead))

    await Bench(engine).add("a")
    await engine.close()

    assert not dead.exists()


def _work(path: str, number: int, jobs: int, said: Any) -> None:
    """Inserts jobs and runs whatever it can claim, until all of everybody's are done."""

    async def main() -> list[str]:
        engine = SqliteEngine(path)
        await engine.open()
        bench = Bench(engine)
        ran: list[str] = []

        async def insert() -> None:
            for n in range(jobs):
                await bench.add(f"p{number}-{n}")

        async def run() -> None:
            deadline = time.monotonic() + 60
            while time.monotonic() < deadline:
                claimed = await bench.claim(5, worker=f"w{number}")
                for job in claimed:
                    ran.append(job.id)
                    await bench.complete(job)
                counts = await bench.counts()
                if counts == {("q", State.COMPLETED): _PROCESSES * jobs}:
                    return

        await asyncio.gather(insert(), run())
        await engine.close()
        return ran

    said.put(asyncio.run(main()))


_PROCESSES = 4


@pytest.mark.slow
async def test_many_processes_insert_and_claim_without_losing_or_doubling_a_job(
    path: Path, processes: SpawnContext
) -> None:
    said = processes.Queue()
    crew = [
        processes.Process(target=_work, args=(str(path), number, 25, said))
        for number in range(_PROCESSES)
    ]
    for one in crew:
        one.start()
    ran = [id for _ in crew for id in await asyncio.to_thread(said.get, True, 90)]
    for one in crew:
        await asyncio.to_thread(one.join)

    assert sorted(ran) == sorted(
        f"p{number}-{n}" for number in range(_PROCESSES) for n in range(25)
    )
