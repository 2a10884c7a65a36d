"""Files: new, old, too new, foreign, damaged."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import apsw
import pytest

from headrace.core.errors import (
    EngineError,
    EngineUnavailable,
    InvalidValue,
    StoreCorrupt,
    StoreReadOnly,
    StoreTooNew,
)
from headrace.engine.sqlite import SqliteEngine
from headrace.engine.sqlite.location import locate
from headrace.engine.sqlite.schema import APPLICATION_ID, VERSION
from headrace.testing.conformance import Bench


async def created(path: Path) -> None:
    engine = SqliteEngine(path)
    await engine.open()
    await engine.close()


async def test_new_file_gets_our_mark_and_the_newest_layout(path: Path) -> None:
    await created(path)

    store = apsw.Connection(str(path))
    assert store.pragma("application_id") == APPLICATION_ID
    assert store.pragma("user_version") == VERSION
    assert store.pragma("journal_mode") == "wal"


async def test_many_engines_can_create_the_file_at_once(path: Path) -> None:
    engines = [SqliteEngine(path) for _ in range(8)]

    await asyncio.gather(*(engine.open() for engine in engines))

    assert (await Bench(engines[0]).add("a")).id == "a"
    assert await Bench(engines[7]).exists("a")
    await asyncio.gather(*(engine.close() for engine in engines))


async def test_file_of_a_newer_version_is_left_alone(path: Path) -> None:
    await created(path)
    with apsw.Connection(str(path)) as store:
        store.pragma("user_version", VERSION + 1)

    with pytest.raises(StoreTooNew, match=r"jobs\.db.*upgrade Headrace"):
        await SqliteEngine(path).open()


async def test_database_of_another_program_is_left_alone(path: Path) -> None:
    with apsw.Connection(str(path)) as store:
        store.execute("CREATE TABLE users (name)")

    with pytest.raises(StoreCorrupt, match=r"another program.*another path"):
        await SqliteEngine(path).open()

    assert apsw.Connection(str(path)).pragma("journal_mode") == "delete"


def test_file_that_is_no_database_is_left_alone(path: Path) -> None:
    path.write_bytes(b"Dear diary, " * 1000)

    with pytest.raises(StoreCorrupt, match=r"jobs\.db.*not a SQLite database"):
        asyncio.run(SqliteEngine(path).open())

    assert path.read_bytes() == b"Dear diary, " * 1000


async def test_damaged_file_is_reported(path: Path) -> None:
    await created(path)
    with path.open("r+b") as file:
        file.seek(100)
        file.write(b"\xff" * 8000)

    with pytest.raises(StoreCorrupt, match=r"jobs\.db"):
        await SqliteEngine(path).open()


@pytest.mark.parametrize("direct", [True, False])
async def test_nothing_is_confirmed_once_the_file_was_deleted(path: Path, direct: bool) -> None:
    engine = SqliteEngine(path, direct=direct)
    await engine.open()
    await Bench(engine).add("a")
    for each in path.parent.iterdir():
        each.unlink()

    with pytest.raises(EngineError, match=r"jobs\.db: the file was deleted or replaced"):
        await Bench(engine).add("b")

    await engine.close()
    assert list(path.parent.iterdir()) == []


async def test_nothing_is_confirmed_once_a_backup_took_the_file_s_place(path: Path) -> None:
    await created(path)
    backup = path.with_name("backup.db")
    store = apsw.Connection(str(path))
    store.execute("VACUUM INTO ?", (str(backup),))
    store.close()
    engine = SqliteEngine(path)
    await engine.open()
    await Bench(engine).add("a")
    backup.replace(path)

    with pytest.raises(EngineError, match="start this program again"):
        await Bench(engine).add("b")

    await engine.close()


async def test_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreReadOnly, match=r"no/such does not exist; create it"):
        await SqliteEngine(tmp_path / "no/such/jobs.db").open()


async def test_path_that_is_a_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EngineUnavailable, match="cannot be opened"):
        await SqliteEngine(tmp_path).open()


@pytest.mark.parametrize(
    ("where", "path"),
    [
        ("sqlite:jobs.db", "jobs.db"),
        ("sqlite:sub/jobs.db", "sub/jobs.db"),
        ("sqlite:///var/lib/jobs.db", "/var/lib/jobs.db"),
        ("sqlite:/var/lib/jobs.db", "/var/lib/jobs.db"),
        ("sqlite:my%20jobs.db", "my jobs.db"),
        ("jobs.db", "jobs.db"),
        ("/var/lib/jobs?.db", "/var/lib/jobs?.db"),
    ],
)
def test_location_is_a_url_or_a_path(where: str, path: str) -> None:
    assert locate(where).path == os.path.abspath(path)


def test_parameters_come_from_the_url_and_arguments_win() -> None:
    assert locate("sqlite:a.db").synchronous == "full"
    assert locate("sqlite:a.db?synchronous=normal").synchronous == "normal"
    assert locate("sqlite:a.db?synchronous=normal", "full").synchronous == "full"
    assert locate("sqlite:a.db?busy_timeout=2.5").busy_timeout == 2.5


@pytest.mark.parametrize(
    "where",
    [
        "sqlite:a.db?sync=normal",
        "sqlite:a.db?synchronous=off",
        "sqlite:a.db?busy_timeout=soon",
        "sqlite://host/a.db",
        "sqlite:",
        ":memory:",
    ],
)
def test_unknown_parameters_and_places_are_refused(where: str) -> None:
    with pytest.raises(InvalidValue):
        SqliteEngine(where)
