"""The writer: one commit for many, one failure for one, and nothing lost in between."""

from __future__ import annotations

import asyncio
import errno
import multiprocessing
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

from headrace.core.admission import Outcome
from headrace.core.errors import EngineUnavailable, StoreBusy, StoreFull
from headrace.engine.sqlite import SqliteEngine, wake
from headrace.engine.sqlite.lane import Ask, Lane, send
from headrace.testing.conformance import Bench


class Gate:
    """Counts commits, and holds the first until everything else has been asked."""

    def __init__(self, engine: SqliteEngine) -> None:
        self.commits = 0
        self._open = threading.Event()
        self._engine = engine
        engine.fault = self._reach

    def _reach(self, point: str) -> None:
        if point == "begin":
            assert self._open.wait(10)
        elif point == "after_commit":
            self.commits += 1

    async def together(self, *asks: Awaitable[Any]) -> list[Any]:
        """Asks all at once; all but the first share a commit."""
        waiting = [asyncio.ensure_future(ask) for ask in asks]
        for _ in range(3):
            await asyncio.sleep(0)
        self._open.set()
        return await asyncio.gather(*waiting, return_exceptions=True)


class Crash(Exception):
    """The process died here."""


def crash_once(engine: SqliteEngine, at: str) -> None:
    def fault(point: str) -> None:
        if point == at:
            engine.fault = None
            raise Crash(at)

    engine.fault = fault


async def test_what_is_asked_meanwhile_shares_a_commit(engine: SqliteEngine) -> None:
    bench, gate = Bench(engine), Gate(engine)

    jobs = await gate.together(*(bench.add(f"j{n}") for n in range(50)))

    assert [job.id for job in jobs] == [f"j{n}" for n in range(50)]
    assert gate.commits <= 2


async def test_operation_that_fails_takes_no_other_with_it(engine: SqliteEngine) -> None:
    bench, gate = Bench(engine), Gate(engine)

    first, bad, good = await gate.together(
        bench.add("first"), bench.add("bad", run_at=1 << 80), bench.add("good")
    )

    assert (first.id, good.id) == ("first", "good")
    assert isinstance(bad, OverflowError)
    assert not await bench.exists("bad")
    assert await bench.exists("good")
    assert sum((await bench.counts()).values()) == 2


async def test_refused_group_leaves_what_shares_its_commit(engine: SqliteEngine) -> None:
    bench, gate = Bench(engine), Gate(engine)
    await asyncio.sleep(0)

    _, group, claimed, after = await gate.together(
        bench.add("a"),
        bench.insert(bench.new("b"), bench.new("c", depends_on=("nobody",))),
        bench.claim(10),
        bench.add("d"),
    )

    assert [verdict.outcome for verdict in group] == [Outcome.REJECTED, Outcome.REJECTED]
    assert [job.id for job in claimed] == ["a"]
    assert after.id == "d"
    assert not await bench.exists("b")


async def test_refused_group_does_not_bring_back_what_its_commit_deleted(
    engine: SqliteEngine,
) -> None:
    bench = Bench(engine)
    parent = await bench.add("parent")
    gate = Gate(engine)

    _, _, _, child = await gate.together(
        bench.add("first"),
        bench.delete(parent),
        bench.insert(bench.new("a"), bench.new("b", depends_on=("nobody",))),
        bench.submit("child", depends_on=("parent",)),
    )

    assert (child.outcome, child.reason) == (Outcome.REJECTED, "unknown-parent")


async def test_operations_in_one_commit_see_each_other(engine: SqliteEngine) -> None:
    bench, gate = Bench(engine), Gate(engine)

    async def whole_life(id: str) -> None:
        await bench.add(id)

    _, _, claimed, again = await gate.together(
        whole_life("a"), whole_life("b"), bench.claim(10), bench.claim(10)
    )

    assert [job.id for job in claimed] == ["a", "b"]
    assert again == []
    assert [job.tries for job in await asyncio.gather(bench.job("a"), bench.job("b"))] == [1, 1]


async def test_crash_before_the_commit_leaves_nothing(engine: SqliteEngine) -> None:
    bench = Bench(engine)
    crash_once(engine, "before_commit")

    with pytest.raises(Crash):
        await bench.add("a")

    assert not await bench.exists("a")
    assert (await bench.add("a")).seq == 1


async def test_write_whose_answer_was_lost_can_be_repeated(engine: SqliteEngine) -> None:
    bench = Bench(engine)
    new = bench.new("a")
    crash_once(engine, "after_commit")
    with pytest.raises(Crash):
        await bench.insert(new)

    (verdict,) = await bench.insert(new)

    assert verdict.outcome is Outcome.ACCEPTED
    assert len(await bench.events("a")) == 1


@pytest.mark.parametrize("direct", [False, True])
async def test_commit_that_cannot_be_announced_is_answered(
    path: Path, direct: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine = SqliteEngine(path, direct=direct)
    await engine.open()
    bench = Bench(engine)
    folder = wake.directory(str(path))
    assert folder
    (folder / "1-1.ear").touch()

    def no_more(*_: object) -> object:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(wake.socket, "socket", no_more)
        for id in "ab":
            assert (await asyncio.wait_for(bench.add(id), 10)).id == id

    assert caplog.text.count("other processes are not told of commits") == 1
    assert (await asyncio.wait_for(bench.add("c"), 10)).id == "c"
    await engine.close()


@pytest.mark.parametrize("here", [False, True])
async def test_lane_that_fails_answers_with_a_typed_error_and_goes_on(here: bool) -> None:
    wrong: list[BaseException] = [ValueError("odd"), ValueError("again")]

    def serve(asks: list[Ask[int]]) -> bool:
        if wrong:
            raise wrong.pop()
        send([(ask, ask.work(7), None) for ask in asks])
        return True

    lane = Lane[int]("lane", lambda asks: serve(asks) and None, serve if here else None)
    for _ in range(2):
        with pytest.raises(EngineUnavailable, match="lane failed: ValueError"):
            await asyncio.wait_for(lane.ask(lambda n: n), 10)
    assert await asyncio.wait_for(lane.ask(lambda n: n), 10) == 7
    await asyncio.to_thread(lane.stop)


async def test_store_held_by_a_stranger_is_busy_and_then_free(path: Path) -> None:
    engine = SqliteEngine(path, busy_timeout=0.05)
    await engine.open()
    bench = Bench(engine)
    stranger = apsw.Connection(str(path))
    stranger.execute("BEGIN IMMEDIATE")

    with pytest.raises(StoreBusy, match=r"jobs\.db: another program holds the write lock"):
        await bench.add("a")
    stranger.execute("ROLLBACK")

    assert (await bench.add("a")).seq == 1
    await engine.close()


async def test_reads_do_not_wait_for_the_write_lock(engine: SqliteEngine, path: Path) -> None:
    await Bench(engine).add("a")
    stranger = apsw.Connection(str(path))
    stranger.execute("BEGIN IMMEDIATE")

    assert await asyncio.wait_for(Bench(engine).exists("a"), 5)
    stranger.execute("ROLLBACK")


async def test_full_disk_writes_nothing_and_passes(engine: SqliteEngine) -> None:
    bench = Bench(engine)
    await bench.add("before")
    await with_store(engine, lambda store: store.execute("PRAGMA max_page_count = 1"))

    with pytest.raises(StoreFull, match=r"jobs\.db: the disk is full"):
        await bench.add("big", payload="x" * 500_000)

    assert not await bench.exists("big")
    await with_store(engine, lambda store: store.execute("PRAGMA max_page_count = 1000000"))
    assert (await bench.add("big", payload="x" * 500_000)).id == "big"


async def with_store(engine: SqliteEngine, work: Callable[[Any], None]) -> None:
    """Runs `work` on the writer's own connection, between two commits."""
    writer = engine._home.session().writer  # pyright: ignore[reportPrivateUsage]
    assert writer._store is not None  # pyright: ignore[reportPrivateUsage]
    work(writer._store)  # pyright: ignore[reportPrivateUsage]


async def test_closing_commits_what_was_asked(path: Path) -> None:
    engine = SqliteEngine(path)
    await engine.open()
    bench = Bench(engine)
    waiting = [asyncio.ensure_future(bench.add(f"j{n}")) for n in range(20)]
    await asyncio.sleep(0)

    await engine.close()

    assert len(await asyncio.gather(*waiting)) == 20
    await engine.open()
    assert await bench.counts() == {("q", "pending"): 20}
    await engine.close()


async def test_closed_engine_says_so_and_can_be_opened_again(path: Path) -> None:
    engine = SqliteEngine(path)
    with pytest.raises(EngineUnavailable, match="not open"):
        await Bench(engine).add("a")
    await engine.open()
    await engine.open()
    await engine.close()
    await engine.close()
    with pytest.raises(EngineUnavailable, match="not open"):
        await Bench(engine).add("a")

    await engine.open()

    assert (await Bench(engine).add("a")).id == "a"
    await engine.close()


async def test_twin_leaves_the_engine_open(engine: SqliteEngine) -> None:
    twin = engine.twin()
    await twin.open()

    await twin.close()

    assert (await Bench(engine).add("a")).id == "a"


async def test_engine_serves_several_event_loops(engine: SqliteEngine) -> None:
    def elsewhere() -> str:
        return asyncio.run(Bench(engine.twin()).add("b")).id

    ids = await asyncio.gather(
        asyncio.to_thread(elsewhere), asyncio.ensure_future(Bench(engine).exists("a"))
    )

    assert ids[0] == "b"
    assert await Bench(engine).exists("b")


def _in_child(engine: SqliteEngine, said: Any) -> None:
    async def main() -> None:
        try:
            await Bench(engine).add("from-child")
        except EngineUnavailable as error:
            said.put(str(error))
        await engine.open()
        said.put((await Bench(engine).add("reopened")).id)
        await engine.close()

    asyncio.run(main())


async def test_forked_child_opens_the_engine_for_itself(engine: SqliteEngine) -> None:
    await Bench(engine).add("a")
    context = multiprocessing.get_context("fork")
    said = context.Queue()
    child = context.Process(target=_in_child, args=(engine, said))

    child.start()
    refusal = await asyncio.to_thread(said.get, True, 20)
    id = await asyncio.to_thread(said.get, True, 20)
    await asyncio.to_thread(child.join)

    assert "not open in this process" in refusal
    assert id == "reopened"
    assert await Bench(engine).exists("reopened")
    assert (await Bench(engine).add("b")).id == "b"
