"""Migrations of a store: versioned, whole or not at all, and safe while workers run (FEATURES
10.7)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import apsw
import pytest

from headrace import App
from headrace.core.errors import InvalidValue, StoreTooNew
from headrace.core.model import Filter
from headrace.core.queue import QueueSettings
from headrace.core.states import State
from headrace.engine.sqlite import SqliteEngine, schema
from headrace.testing import running
from headrace.testing.conformance import Bench
from tests.support import within

NEXT = "ALTER TABLE jobs ADD COLUMN colour TEXT NOT NULL DEFAULT 'blue';"
"""A migration that cannot be made twice."""
OLD = schema.VERSION

Upgrade = Callable[..., None]


@pytest.fixture
def upgrade(monkeypatch: pytest.MonkeyPatch) -> Upgrade:
    """Makes what is opened from now on a newer Headrace, with these migrations beside its own."""

    def to(*further: str) -> None:
        monkeypatch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS[:OLD], *further))
        monkeypatch.setattr(schema, "VERSION", OLD + len(further))

    return to


async def with_jobs(path: Path) -> None:
    engine = SqliteEngine(path)
    await engine.open()
    bench = Bench(engine)
    await bench.add("done")
    await bench.run(result={"n": 1})
    await bench.add("waiting")
    await engine.close()


def layout(path: Path) -> int:
    with apsw.Connection(str(path)) as store:
        return store.pragma("user_version")


def migrated_by_another(path: Path, change: str = NEXT) -> None:
    """What a newer Headrace in another process does when it opens the store."""
    store = apsw.Connection(str(path))
    store.set_busy_timeout(10_000)
    store.execute(f"BEGIN IMMEDIATE; {change} PRAGMA user_version = {OLD + 1}; COMMIT")
    store.close()


async def test_store_of_an_older_version_is_migrated_and_its_jobs_survive(
    path: Path, upgrade: Upgrade
) -> None:
    await with_jobs(path)
    upgrade(NEXT, "CREATE TABLE paints (colour TEXT PRIMARY KEY) WITHOUT ROWID;")

    engine = SqliteEngine(path)
    await engine.open()
    bench = Bench(engine)

    assert layout(path) == OLD + 2
    assert await bench.states("done", "waiting") == [State.COMPLETED, State.PENDING]
    assert (await bench.run()).id == "waiting"
    await engine.close()


async def test_migration_that_fails_leaves_the_store_as_it_was(
    path: Path, upgrade: Upgrade
) -> None:
    await with_jobs(path)
    upgrade(NEXT, "UPDATE jobs SET colour = 'red'; INSERT INTO nowhere VALUES (1);")

    with pytest.raises(apsw.SQLError, match="nowhere"):
        await SqliteEngine(path).open()

    assert layout(path) == OLD
    upgrade()
    engine = SqliteEngine(path)
    await engine.open()
    assert await Bench(engine).states("done", "waiting") == [State.COMPLETED, State.PENDING]
    await engine.close()


async def test_of_many_that_open_the_store_at_once_one_migrates_it(
    path: Path, upgrade: Upgrade
) -> None:
    await with_jobs(path)
    upgrade(NEXT)

    engines = [SqliteEngine(path) for _ in range(8)]
    await asyncio.gather(*(engine.open() for engine in engines))

    assert layout(path) == OLD + 1
    for number, engine in enumerate(engines):
        await Bench(engine).add(f"new{number}")
    assert (await Bench(engines[0]).counts())["q", State.PENDING] == 9
    await asyncio.gather(*(engine.close() for engine in engines))


async def test_migration_waits_for_who_is_writing(path: Path, upgrade: Upgrade) -> None:
    await with_jobs(path)
    upgrade(NEXT)
    writing = apsw.Connection(str(path))
    writing.execute("BEGIN IMMEDIATE; UPDATE jobs SET priority = 3 WHERE id = 'waiting'")
    engine = SqliteEngine(path)

    opening = asyncio.create_task(engine.open())
    await asyncio.wait([opening], timeout=0.1)
    assert not opening.done()
    writing.execute("COMMIT")
    writing.close()
    await within(opening)

    assert layout(path) == OLD + 1
    assert (await Bench(engine).job("waiting")).priority == 3
    await engine.close()


@pytest.fixture
async def engine(path: Path) -> AsyncIterator[SqliteEngine]:
    """One that has a store of this version open."""
    await with_jobs(path)
    engine = SqliteEngine(path)
    await engine.open()
    yield engine
    await engine.close()


async def test_engine_that_is_open_writes_nothing_into_a_store_that_became_too_new(
    path: Path, engine: SqliteEngine
) -> None:
    bench = Bench(engine)
    await bench.add("before")
    migrated_by_another(path)

    for write in (bench.add("after"), bench.claim(), bench.set_queue(QueueSettings())):
        with pytest.raises(StoreTooNew, match=r"jobs\.db.*upgrade Headrace"):
            await write
    caller = apsw.Connection(str(path))
    caller.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreTooNew):
        engine.insert_on(caller, [[bench.new("bound")]], bench.now)
    caller.execute("COMMIT")

    found = caller.execute("SELECT id, state FROM jobs ORDER BY seq").fetchall()
    assert found == [("done", "completed"), ("waiting", "pending"), ("before", "pending")]
    caller.close()


async def test_what_cannot_be_read_because_the_store_became_too_new_is_said_to_be_so(
    path: Path, engine: SqliteEngine
) -> None:
    assert await Bench(engine).state("done") == "completed"
    migrated_by_another(path, "ALTER TABLE jobs RENAME COLUMN state TO condition;")

    for read in (engine.get(["done"]), engine.find(Filter())):
        with pytest.raises(StoreTooNew, match=r"jobs\.db.*upgrade Headrace"):
            await read
    with pytest.raises(InvalidValue, match="cursor"):
        await engine.find(Filter(), cursor="nonsense")


async def test_idle_worker_whose_store_became_too_new_ends_with_that_error(path: Path) -> None:
    async with App(path) as app:
        worker = app.worker()
        await worker.start()
        await worker.until_idle()

        migrated_by_another(path)
        worker.look()

        with pytest.raises(StoreTooNew, match="upgrade Headrace"):
            await within(worker.wait())
        await worker.stop()


async def test_job_of_a_worker_whose_store_became_too_new_runs_under_the_new_version(
    path: Path, upgrade: Upgrade
) -> None:
    entered, leave = asyncio.Event(), asyncio.Event()
    async with App(path) as old:

        @old.task
        async def work() -> str:
            entered.set()
            await leave.wait()
            return "by the old one"

        ref = await work.enqueue()
        working = asyncio.create_task(old.work(lease=1, grace=0))
        await within(entered.wait())
        migrated_by_another(path)
        leave.set()
        with pytest.raises(StoreTooNew, match="upgrade Headrace"):
            await within(working)

    upgrade(NEXT)
    async with App(path) as new:
        new.task(type="work")(lambda: "by the new one")
        async with running(new):
            assert await new.job(ref.id).result(15) == "by the new one"
