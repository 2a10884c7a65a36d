"""The engine goes away and comes back under load (FEATURES 8.8)."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import apsw
import pytest

from headrace import (
    App,
    EngineUnavailable,
    JobContext,
    JobRef,
    Prepared,
    State,
    StoreBusy,
    StoreFull,
)
from headrace.app.engines import engine_for
from headrace.core.change import Change
from headrace.core.claims import Claimed, ClaimRequest
from headrace.engine.memory import MemoryEngine
from headrace.engine.sqlite import SqliteEngine
from headrace.runtime.worker import WorkerOptions
from headrace.testing import ManualClock, running
from tests.support import Outage, eventually, story, within


@pytest.fixture
async def engine(url: str) -> AsyncIterator[Outage]:
    inner = engine_for(url)
    await inner.open()
    yield Outage(inner)
    await inner.close()


@pytest.fixture
def app(engine: Outage) -> App:
    return App(engine)  # pyright: ignore[reportArgumentType]


async def test_idle_worker_resumes_by_itself(app: App, engine: Outage) -> None:
    task = app.task(type="t")(lambda: "ran")
    async with running(app) as worker:
        await worker.until_idle()
        engine.down = True
        worker.look()
        await eventually(lambda: engine.refused > 2)
        engine.down = False
        ref = await task.enqueue()
        assert await ref.result(15) == "ran"


async def test_finished_work_is_kept_and_written_once_when_it_is_back(
    app: App, engine: Outage
) -> None:
    entered, leave, after = asyncio.Event(), asyncio.Event(), []

    @app.task
    async def work(ctx: JobContext) -> str:
        ctx.call_after(lambda _, answer: after.append(answer.job.state))
        entered.set()
        await leave.wait()
        ctx.progress("end")
        return "kept"

    async with running(app):
        ref = await work.enqueue()
        await within(entered.wait())
        engine.down = True
        leave.set()
        await eventually(lambda: engine.refused > 2)
        assert after == []
        engine.down = False
        assert await ref.result(15) == "kept"
    assert after == [State.COMPLETED]
    assert [str(event) for event in await story(app, ref.id)] == [
        "created",
        "started",
        "progress",
        "completed",
    ]
    assert (await ref.get()).tries == 1


async def test_load_is_worked_off_over_several_outages(app: App, engine: Outage) -> None:
    ran: dict[int, int] = {}

    @app.task
    async def work(n: int) -> int:
        ran[n] = ran.get(n, 0) + 1
        await asyncio.sleep(0.001)
        return n

    answers = await app.enqueue_many(work.prepare(n) for n in range(200))
    async with running(app, concurrency=10):
        for goal in (50, 100, 150):
            await eventually(lambda goal=goal: len(ran) >= goal)
            engine.down, before = True, engine.refused
            await eventually(lambda before=before: engine.refused > before)
            engine.down = False
        for answer in answers:
            assert answer.ref
            await answer.ref.wait(20)
    assert ran == dict.fromkeys(range(200), 1)


async def test_leases_survive_an_outage_shorter_than_they_are(app: App, engine: Outage) -> None:
    entered, leave = asyncio.Event(), asyncio.Event()

    @app.task
    async def work() -> str:
        entered.set()
        await leave.wait()
        return "kept"

    async with running(app, lease=2):
        ref = await work.enqueue()
        await within(entered.wait())
        engine.down = True
        await eventually(lambda: engine.told["extend"] >= 3)
        engine.down = False
        before = (await ref.get()).lease_until or 0
        await eventually(lambda: app.clock.now() > before)
        leave.set()
        assert await ref.result(10) == "kept"
    assert (await ref.get()).tries == 1


async def test_claim_after_an_outage_has_a_whole_lease(clock: ManualClock) -> None:
    """Its time counts from the attempt that worked, not from the first."""
    engine = Outage(MemoryEngine())
    app = App(engine, clock=clock)  # pyright: ignore[reportArgumentType]

    @app.task(timeout=60)
    async def work(ctx: JobContext) -> float:
        assert ctx.deadline
        return (ctx.deadline - clock.time).total_seconds()

    ref = await work.enqueue()
    worker = app.worker(WorkerOptions())
    await worker.start()
    await ref.wait(10)
    engine.down = True
    await eventually(lambda: _refusing(engine, worker))
    clock.advance(3600)
    engine.down = False
    again = await work.enqueue()
    job = await again.wait(15)
    assert await again.result() == 60
    assert job.started_at == clock.now()
    await worker.stop()


def _refusing(engine: Outage, worker) -> bool:
    worker.look()
    return engine.refused > 1


async def test_producer_is_told_and_nothing_is_written(app: App, engine: Outage) -> None:
    task = app.task(type="t")(lambda: None)
    engine.down = True
    with pytest.raises(EngineUnavailable, match="taken the engine away"):
        await task.enqueue()
    engine.down = False
    assert await app.count() == []


async def test_start_without_an_engine_is_an_error(app: App, engine: Outage) -> None:
    worker = app.worker()
    engine.down = True
    with pytest.raises(EngineUnavailable):
        await worker.start()
    await worker.stop()


async def test_outage_is_said_once_not_with_every_attempt(
    app: App, engine: Outage, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "headrace.worker")
    async with running(app) as worker:
        await worker.until_idle()
        engine.down = True
        worker.look()
        await eventually(lambda: engine.refused > 4)
        engine.down = False
        ref = await app.task(type="t")(lambda: None).enqueue()
        await ref.wait(15)
    texts = [record.getMessage() for record in caplog.records if "claiming" in record.getMessage()]
    assert len(texts) == 2, texts
    assert "trying again until it works" in texts[0]
    assert texts[1] == "claiming jobs: works again"


async def test_change_that_the_engine_chokes_on_does_not_take_others_along(app: App) -> None:
    """A bug in one job's write: the others are stored, that job comes back by its lease."""
    engine = await app.engine()
    inner, poisoned = engine.apply, []

    async def choking(changes):
        if any(change.job.id in poisoned for change in changes):
            raise RuntimeError("this one breaks me")
        return await inner(changes)

    object.__setattr__(engine, "apply", choking)
    task = app.task(type="t")(lambda: "fine")
    prepared = [task.prepare() for _ in range(10)]
    poisoned.append(prepared[4].id)
    async with running(app):
        answers = await app.enqueue_many(prepared)
        for number, answer in enumerate(answers):
            assert answer.ref
            if number != 4:
                assert await answer.ref.result(10) == "fine"
        stuck = await app.job(poisoned[0]).get()
        assert stuck.state is State.ACTIVE
        poisoned.clear()


async def test_file_that_is_locked_by_a_stranger_is_waited_for(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path / 'jobs.db'}?busy_timeout=0.05"
    async with App(url) as app:
        task = app.task(type="t")(lambda: "ran")
        ref = await task.enqueue()
        stranger = apsw.Connection(str(tmp_path / "jobs.db"))
        stranger.execute("BEGIN IMMEDIATE")
        worker, engine, refused = app.worker(), await app.engine(), asyncio.Event()
        claim = engine.claim

        async def noting(request: ClaimRequest, changes: Sequence[Change] = ()) -> Claimed:
            try:
                return await claim(request, changes)
            except EngineUnavailable:
                refused.set()
                raise

        engine.claim = noting  # pyright: ignore[reportAttributeAccessIssue]
        with pytest.raises(EngineUnavailable):
            await task.enqueue()
        await worker.start()
        await within(refused.wait())
        assert (await ref.get()).state is State.PENDING
        stranger.execute("ROLLBACK")
        stranger.close()
        assert await ref.result(15) == "ran"
        await worker.stop()


class TestSqliteUnderLoad:
    """What takes a file away for real, while jobs come, run and end."""

    @pytest.fixture
    async def load(self, tmp_path: Path) -> AsyncIterator[Load]:
        async with App(f"sqlite:{tmp_path / 'jobs.db'}?busy_timeout=0.05") as app:
            load = Load(app)
            async with running(app, concurrency=10):
                load.producing = asyncio.create_task(load.produce())
                yield load

    async def test_every_job_runs_once_though_a_stranger_locks_the_file_again_and_again(
        self, load: Load, tmp_path: Path
    ) -> None:
        stranger = apsw.Connection(str(tmp_path / "jobs.db"))
        stranger.set_busy_timeout(10_000)
        for goal in (30, 100, 200):
            await eventually(lambda goal=goal: len(load.ran) >= goal)
            stranger.execute("BEGIN IMMEDIATE")
            await load.told(StoreBusy)
            stranger.execute("ROLLBACK")
        stranger.close()
        await load.check()

    async def test_every_job_runs_once_though_the_disk_is_full_for_a_while(
        self, load: Load
    ) -> None:
        engine = await load.app.engine()
        assert isinstance(engine, SqliteEngine)
        writer = engine._home.session().writer  # pyright: ignore[reportPrivateUsage]
        room: list[int] = []

        def resize(point: str) -> None:
            """Done by the writer: nobody else may use its connection meanwhile."""
            if point == "begin" and room:
                assert writer._store is not None  # pyright: ignore[reportPrivateUsage]
                writer._store.execute(f"PRAGMA max_page_count = {room.pop()}")  # pyright: ignore[reportPrivateUsage]

        engine.fault = resize
        for goal in (30, 150):
            await eventually(lambda goal=goal: len(load.ran) >= goal)
            room.append(1)
            await load.told(StoreFull)
            room.append(1_000_000)
        await load.check()


class Load:
    """A producer that tries again, and what its jobs did."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.ran: Counter[int] = Counter()
        self.errors: list[type[EngineUnavailable]] = []
        self.refs: list[JobRef[int]] = []
        self.enough = False
        self.producing: asyncio.Task[None] | None = None

        @app.task
        async def work(n: int, padding: str) -> int:
            self.ran[n] += 1
            await asyncio.sleep(0)
            return n

        self._work = work

    async def produce(self) -> None:
        while not self.enough:
            prepared = self._work.prepare(len(self.refs), "x" * 3000)
            while (ref := await self._accepted(prepared)) is None:
                continue
            self.refs.append(ref)

    async def _accepted(self, prepared: Prepared[int]) -> JobRef[int] | None:
        try:
            return (await self.app.enqueue_many([prepared]))[0].ref
        except EngineUnavailable as error:
            self.errors.append(type(error))
            return None

    async def told(self, error: type[EngineUnavailable]) -> None:
        """Returns when the producer was refused with this error once more."""
        before = self.errors.count(error)
        await eventually(lambda: self.errors.count(error) > before)

    async def check(self) -> None:
        """Every job that was taken has run once."""
        assert self.producing
        self.enough = True
        await within(self.producing)
        count = len(self.refs)
        assert [await ref.result(15) for ref in self.refs] == list(range(count))
        assert self.ran == Counter(range(count))
