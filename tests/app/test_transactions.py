"""Transactional enqueue on SQLite: jobs commit or roll back with the caller's rows (1.8)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import apsw
import pytest

from headrace import App, DuplicateJob, InvalidValue, JobNotFound
from headrace.core.errors import StoreBusy
from headrace.testing import jobs, run_until_idle, running


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[App]:
    async with App(tmp_path / "jobs.db") as app:

        @app.task
        async def work(n: int = 0) -> int:
            return n

        yield app


@pytest.fixture
def own(app: App, tmp_path: Path) -> Iterator[apsw.Connection]:
    connection = apsw.Connection(str(tmp_path / "jobs.db"))
    connection.set_busy_timeout(10_000)
    connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
    yield connection
    connection.close()


def orders(own: apsw.Connection) -> int:
    return own.execute("SELECT count(*) FROM orders").get


def prepared(app: App, n: int = 0, **options):
    return app.prepare("work", {"n": n}, **options)


async def test_jobs_commit_with_the_caller_s_rows(app: App, own: apsw.Connection) -> None:
    with own, app.bind(own):
        own.execute("INSERT INTO orders VALUES (1)")
        (answer,) = await app.enqueue_many([prepared(app, 7)])
    assert answer.ref
    assert orders(own) == 1
    await run_until_idle(app)
    assert await answer.ref.result() == 7


async def test_jobs_roll_back_with_the_caller_s_rows(app: App, own: apsw.Connection) -> None:
    job = prepared(app)

    async def order() -> None:
        with own, app.bind(own):
            own.execute("INSERT INTO orders VALUES (1)")
            (answer,) = await app.enqueue_many([job])
            assert answer.accepted
            raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        await order()
    assert orders(own) == 0
    assert await jobs(app) == []
    with pytest.raises(JobNotFound):
        await app.job(job.id).get()


async def test_task_enqueue_joins_the_transaction(app: App, own: apsw.Connection) -> None:
    task = app.task(type="other")(lambda: "fine")
    own.execute("BEGIN")
    with app.bind(own):
        ref = await task.enqueue()
        assert await jobs(app) == [], "not before the commit"
        own.execute("COMMIT")
    await run_until_idle(app)
    assert await ref.result() == "fine"


async def test_blocking_enqueue_joins_the_transaction(app: App, own: apsw.Connection) -> None:
    task = app.task(type="other")(lambda: "fine")
    with own, app.bind(own):
        ref = task.blocking.enqueue()
    await run_until_idle(app)
    assert await app.job(ref.id).result() == "fine"


async def test_waiting_worker_is_woken_after_the_commit(app: App, own: apsw.Connection) -> None:
    async with running(app) as worker:
        await worker.until_idle()
        with app.bind(own), own:
            (answer,) = await app.enqueue_many([prepared(app, 3)])
        assert answer.ref
        assert await answer.ref.result(5) == 3


async def test_what_others_write_meanwhile_is_waited_out(app: App, own: apsw.Connection) -> None:
    task = app.task(type="other")(lambda: None)
    others = asyncio.create_task(_enqueue_all(task.enqueue))
    for n in range(40):
        with own, app.bind(own):
            await app.enqueue_many([prepared(app, n)])
        await asyncio.sleep(0)
    await others
    assert len(await jobs(app)) == 80


async def _enqueue_all(enqueue: Callable[[], Awaitable[object]]) -> None:
    for _ in range(40):
        await enqueue()


async def test_transaction_that_read_before_others_wrote_is_told_how_to_begin(
    app: App, own: apsw.Connection
) -> None:
    with own, app.bind(own):
        assert orders(own) == 0
        with apsw.Connection(str(own.filename)) as other:
            other.execute("INSERT INTO orders VALUES (1)")
        with pytest.raises(StoreBusy, match="begin it with BEGIN IMMEDIATE"):
            await app.enqueue_many([prepared(app)])


async def test_refusals_are_seen_inside_the_transaction(app: App, own: apsw.Connection) -> None:
    task = app.task(type="other")(lambda: None)
    with own, app.bind(own):
        await task.options(id="one").enqueue()
        with pytest.raises(DuplicateJob):
            await task.options(id="one").enqueue()
        await task.options(id="two").enqueue()
    assert [job.id for job in await jobs(app)] == ["one", "two"]


async def test_group_with_parents_is_one_step(app: App, own: apsw.Connection) -> None:
    parent = prepared(app, 1)
    with own, app.bind(own):
        await app.enqueue_group([parent, prepared(app, 2, depends_on=[parent.id])])
    assert (await run_until_idle(app)).completed == 2


async def test_outside_the_binding_the_engine_is_used(app: App, own: apsw.Connection) -> None:
    own.execute("BEGIN")
    with app.bind(own):
        pass
    own.execute("ROLLBACK")
    await app.enqueue_many([prepared(app)])
    assert len(await jobs(app)) == 1


async def test_binding_is_of_one_task_only(app: App, own: apsw.Connection) -> None:
    """Another task of the same program does not fall into the transaction."""
    entered, go = asyncio.Event(), asyncio.Event()

    async def other() -> None:
        entered.set()
        await go.wait()
        await app.enqueue_many([prepared(app, 2)])

    beside = asyncio.create_task(other())
    await entered.wait()
    own.execute("BEGIN")
    with app.bind(own):
        go.set()
        await asyncio.sleep(0)
        own.execute("ROLLBACK")
    await beside
    assert len(await jobs(app)) == 1


async def test_connection_without_a_transaction_is_refused(app: App, own) -> None:
    with pytest.raises(InvalidValue, match=r"^connection: has no transaction"), app.bind(own):
        await app.enqueue_many([prepared(app)])
    assert await jobs(app) == []


async def test_connection_to_another_file_is_refused(app: App, tmp_path: Path) -> None:
    other = apsw.Connection(str(tmp_path / "other.db"))
    with pytest.raises(InvalidValue, match=r"^connection: is open on"), other, app.bind(other):
        await app.enqueue_many([prepared(app)])
    other.close()


def test_engine_without_transactions_says_so() -> None:
    with pytest.raises(InvalidValue, match=r"^bind: the engine of .* has no transactions"):
        App("memory:").bind(object())
