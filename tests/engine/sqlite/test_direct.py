"""Committing in the event loop itself: only while nobody has to wait for it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import apsw
import pytest

from headrace.core.errors import EngineUnavailable, InvalidValue
from headrace.engine.sqlite import SqliteEngine
from headrace.engine.sqlite.location import locate
from headrace.engine.sqlite.pace import QUICK, Pace
from headrace.testing.conformance import Bench


@pytest.fixture
async def engine(path: Path) -> AsyncIterator[SqliteEngine]:
    engine = SqliteEngine(path)
    await engine.open()
    yield engine
    await engine.close()


class Commits:
    """In which threads an engine committed."""

    def __init__(self, engine: SqliteEngine) -> None:
        self.threads: list[threading.Thread] = []
        engine.fault = self._reach

    def _reach(self, point: str) -> None:
        if point == "after_commit":
            self.threads.append(threading.current_thread())


async def test_small_commit_is_made_in_the_event_loop(engine: SqliteEngine) -> None:
    commits = Commits(engine)

    await Bench(engine).add("a")

    assert commits.threads == [threading.current_thread()]
    assert await Bench(engine).exists("a")


async def test_large_commit_is_left_to_the_writer(engine: SqliteEngine) -> None:
    bench, commits = Bench(engine), Commits(engine)

    await bench.insert(*(bench.new(f"j{n}") for n in range(500)))

    assert [thread.name for thread in commits.threads] == ["headrace-writer"]


async def test_engine_can_be_told_never_to_commit_in_the_event_loop(path: Path) -> None:
    engine = SqliteEngine(f"sqlite:{path}?direct=off")
    await engine.open()
    commits = Commits(engine)

    await Bench(engine).add("a")

    assert [thread.name for thread in commits.threads] == ["headrace-writer"]
    await engine.close()


async def test_what_is_asked_in_one_round_shares_a_commit(engine: SqliteEngine) -> None:
    bench, commits = Bench(engine), Commits(engine)

    jobs = await asyncio.gather(*(bench.add(f"j{n}") for n in range(50)))

    assert [job.id for job in jobs] == [f"j{n}" for n in range(50)]
    assert len(commits.threads) == 1


async def test_event_loop_never_waits_for_a_lock(engine: SqliteEngine, path: Path) -> None:
    commits = Commits(engine)
    stranger = apsw.Connection(str(path))
    stranger.execute("BEGIN IMMEDIATE")

    adding = asyncio.ensure_future(Bench(engine).add("a"))
    for _ in range(5):
        await asyncio.sleep(0)  # would be over only after the busy timeout
    assert not adding.done()
    stranger.execute("COMMIT")

    assert (await adding).id == "a"
    assert [thread.name for thread in commits.threads] == ["headrace-writer"]


async def test_crash_in_the_event_loop_s_commit_leaves_nothing(engine: SqliteEngine) -> None:
    def crash(point: str) -> None:
        if point == "before_commit":
            engine.fault = None
            raise EngineUnavailable("crashed")

    engine.fault = crash
    with pytest.raises(EngineUnavailable, match="crashed"):
        await Bench(engine).add("a")

    assert not await Bench(engine).exists("a")
    assert (await Bench(engine).add("a")).id == "a"


async def test_closing_commits_what_was_asked_in_the_same_round(path: Path) -> None:
    engine = SqliteEngine(path)
    await engine.open()

    adding = [asyncio.ensure_future(Bench(engine).add(f"j{n}")) for n in range(3)]
    closing = asyncio.ensure_future(engine.close())
    await asyncio.gather(*adding, closing)

    await engine.open()
    assert await Bench(engine).exists("j2")
    await engine.close()


def test_slow_commits_are_left_to_the_writer() -> None:
    pace = Pace()
    assert pace.quick

    for _ in range(100):
        pace.took(QUICK * 2)

    assert not pace.quick


def test_one_slow_commit_among_quick_ones_changes_nothing() -> None:
    pace = Pace()

    for _ in range(10):
        pace.took(QUICK / 4)
    pace.took(QUICK * 100)

    assert pace.quick


def test_direct_is_on_or_off() -> None:
    assert locate("sqlite:jobs.db").direct
    with pytest.raises(InvalidValue, match="not one of on, off"):
        locate("sqlite:jobs.db?direct=maybe")
