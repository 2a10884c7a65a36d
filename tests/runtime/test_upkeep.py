"""The rounds that every worker makes (FEATURES 10.6, 3.7)."""

from __future__ import annotations

import logging

import pytest

from headrace import App, JobNotFound, JobRef
from headrace.core.retention import JOURNAL_AGE, SEEN
from headrace.testing import ManualClock
from headrace.upkeep import rounds
from tests.support import eventually, story


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "PRUNE_EVERY", 0.02)
    monkeypatch.setattr(rounds, "RESCUE_EVERY", 0.02)


async def is_gone(ref: JobRef[object]) -> bool:
    try:
        await ref.get()
    except JobNotFound:
        return True
    return False


async def test_running_worker_deletes_what_its_queue_does_not_keep(
    timed: App, clock: ManualClock
) -> None:
    work = timed.task(type="work")(lambda: 7)
    await timed.queue("short").set(retention={"completed": 60})
    async with timed.working(queues=["short", "default"]):
        short, long = await work.options(queue="short").enqueue(), await work.enqueue()
        assert (await short.result(10), await long.result(10)) == (7, 7)
        clock.advance(60)
        await eventually(lambda: is_gone(short))
        assert not await is_gone(long)


async def test_watcher_sees_the_end_of_a_job_that_is_discarded_at_once(
    timed: App, clock: ManualClock
) -> None:
    await timed.queue("default").set(retention={"completed": 0}, force=True)
    work = timed.task(type="work")(lambda: 7)
    async with timed.working(queues="default"):
        ref = await work.enqueue()
        seen = [snapshot.state async for snapshot in ref.watch()]
        assert seen[-1] == "completed"
        assert await ref.result(10) == 7
        clock.advance(SEEN / 1000)
        await eventually(lambda: is_gone(ref))
        events = await story(timed, ref.id)
        assert [str(event) for event in events][:3] == ["created", "started", "completed"]


async def test_running_worker_deletes_old_journal_entries(timed: App, clock: ManualClock) -> None:
    ref = await timed.task(type="work")(lambda: 7).enqueue()
    async with timed.working(queues="default"):
        await ref.wait(10)
        await timed.queue("default").set(retention={"completed": None})
        clock.advance(JOURNAL_AGE / 1000)
        last = await timed.task(type="last")(lambda: 8).enqueue()
        await last.wait(10)
        await eventually(lambda: _forgotten(timed, ref))
        assert await ref.result() == 7


async def _forgotten(app: App, ref: JobRef[object]) -> bool:
    return await story(app, ref.id) == []


async def test_round_that_fails_is_said_and_the_next_is_made(
    timed: App, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, "headrace.upkeep")
    engine = await timed.engine()
    prune, failures = engine.prune, [RuntimeError("not this time")]

    async def failing(order) -> int:
        if failures:
            raise failures.pop()
        return await prune(order)

    engine.prune = failing  # pyright: ignore[reportAttributeAccessIssue]
    await timed.queue("default").set(retention={"completed": 0}, force=True)
    async with timed.working(queues="default"):
        ref = await timed.task(type="work")(lambda: 7).enqueue()
        await ref.wait(10)
        clock.advance(SEEN / 1000)
        await eventually(lambda: is_gone(ref))
    assert "upkeep failed; it goes on with the next round" in caplog.text
