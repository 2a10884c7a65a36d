"""Jobs in a transaction of the caller."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

from headrace.core.admission import Outcome
from headrace.core.errors import InvalidValue, StoreBusy
from headrace.engine.protocol import job_topic, work_topic
from headrace.engine.sqlite import SqliteEngine
from headrace.testing.conformance import Bench
from headrace.testing.conformance.bench import rings


@pytest.fixture
def connection(engine: SqliteEngine, path: Path) -> apsw.Connection:
    connection = apsw.Connection(str(path))
    connection.execute("CREATE TABLE orders (id)")
    return connection


async def test_job_is_there_when_the_caller_commits(
    engine: SqliteEngine, connection: apsw.Connection
) -> None:
    bench = Bench(engine)
    connection.execute("BEGIN IMMEDIATE; INSERT INTO orders VALUES (1)")
    ((verdict,),) = engine.insert_on(connection, [[bench.new("a", tags=("t",))]], bench.now)

    assert verdict.outcome is Outcome.ACCEPTED
    assert not await bench.exists("a")
    connection.execute("COMMIT")

    assert (await bench.start()).id == "a"
    assert (await bench.job("a")).seq == 1


async def test_job_is_not_there_when_the_caller_rolls_back(
    engine: SqliteEngine, connection: apsw.Connection
) -> None:
    bench = Bench(engine)
    connection.execute("BEGIN IMMEDIATE; INSERT INTO orders VALUES (1)")
    engine.insert_on(connection, [[bench.new("a")]], bench.now)
    connection.execute("ROLLBACK")

    assert not await bench.exists("a")
    assert await bench.counts() == {}
    assert (await bench.add("b")).seq == 1


async def test_refused_group_leaves_the_transaction_usable(
    engine: SqliteEngine, connection: apsw.Connection
) -> None:
    bench = Bench(engine)
    connection.execute("BEGIN IMMEDIATE; INSERT INTO orders VALUES (1)")
    groups = [
        [bench.new("a")],
        [bench.new("b"), bench.new("c", depends_on=("nobody",))],
        [bench.new("d", depends_on=("a",))],
    ]
    verdicts = engine.insert_on(connection, groups, bench.now)
    connection.execute("COMMIT")

    outcomes = [[verdict.outcome for verdict in group] for group in verdicts]
    assert outcomes == [
        [Outcome.ACCEPTED],
        [Outcome.REJECTED, Outcome.REJECTED],
        [Outcome.ACCEPTED],
    ]
    assert await bench.states("a", "d") == ["pending", "blocked"]
    assert not await bench.exists("b")


async def test_error_takes_back_all_of_it_and_nothing_else(
    engine: SqliteEngine, connection: apsw.Connection
) -> None:
    bench = Bench(engine)
    connection.execute("BEGIN IMMEDIATE; INSERT INTO orders VALUES (1)")
    groups = [[bench.new("a")], [bench.new("b", run_at=1 << 80)]]
    with pytest.raises(OverflowError):
        engine.insert_on(connection, groups, bench.now)
    connection.execute("COMMIT")

    assert not await bench.exists("a")
    assert connection.execute("SELECT count(*) FROM orders").fetchone() == (1,)


async def test_announcing_wakes_whoever_waits(
    engine: SqliteEngine, connection: apsw.Connection
) -> None:
    bench = Bench(engine)
    bells = [bench.listen(work_topic("svc", "q")), bench.listen(job_topic("a"))]
    connection.execute("BEGIN IMMEDIATE")
    verdicts = engine.insert_on(connection, [[bench.new("a")]], bench.now)
    connection.execute("COMMIT")

    engine.announce(verdicts)

    assert [await rings(bell) for bell in bells] == [True, True]


async def test_connection_needs_a_transaction(
    engine: SqliteEngine, connection: apsw.Connection
) -> None:
    bench = Bench(engine)

    with pytest.raises(InvalidValue, match="begin one"):
        engine.insert_on(connection, [[bench.new("a")]], bench.now)


async def test_connection_must_be_on_the_same_file(engine: SqliteEngine, tmp_path: Path) -> None:
    bench = Bench(engine)
    other = apsw.Connection(str(tmp_path / "other.db"))
    other.execute("BEGIN IMMEDIATE")

    with pytest.raises(InvalidValue, match=r"other\.db.*not on.*jobs\.db"):
        engine.insert_on(other, [[bench.new("a")]], bench.now)


async def test_outdated_transaction_is_busy(
    engine: SqliteEngine, connection: apsw.Connection
) -> None:
    bench = Bench(engine)
    connection.execute("BEGIN; SELECT * FROM orders").fetchall()
    await bench.add("meanwhile")

    with pytest.raises(StoreBusy):
        engine.insert_on(connection, [[bench.new("a")]], bench.now)
    connection.execute("ROLLBACK")
