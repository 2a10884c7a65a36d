"""Running workers follow the settings of their queues, whoever changes them (FEATURES 5.1)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from headrace import App, JobContext, State
from headrace.runtime import exchange, settings
from headrace.testing import running
from tests.support import LIMIT, eventually, within


@pytest.fixture
async def operator(shared_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[App]:
    """Another program with the same store. Workers hear of what it does by the bell alone."""
    monkeypatch.setattr(settings, "FALLBACK", 600.0)
    monkeypatch.setattr(exchange, "LOOK_AGAIN", 600.0)
    async with App(shared_url) as operator:
        yield operator


@pytest.fixture
async def app(shared_url: str) -> AsyncIterator[App]:
    async with App(shared_url) as app:
        yield app


async def test_resumed_queue_goes_on(app: App, operator: App) -> None:
    work = app.task(type="work")(lambda: "ran")
    await operator.queue("default").pause()
    async with running(app) as worker:
        ref = await work.enqueue()
        await worker.until_idle()
        assert (await ref.get()).state is State.PENDING
        await operator.queue("default").resume()
        assert await ref.result(LIMIT) == "ran"


async def test_raised_cap_lets_more_start(app: App, operator: App) -> None:
    entered, leave = asyncio.Semaphore(0), asyncio.Event()

    @app.task
    async def work() -> None:
        entered.release()
        await leave.wait()

    queue = operator.queue("default")
    await queue.set(max_active=1)
    async with running(app, concurrency=5):
        refs = [await work.enqueue() for _ in range(3)]
        for cap in (2, 3):
            await within(entered.acquire())
            assert await _active(app) == cap - 1
            await queue.set(max_active=cap)
        await within(entered.acquire())
        leave.set()
        for ref in refs:
            await ref.wait(LIMIT)


async def test_queue_that_is_given_a_weight_is_served(app: App, operator: App) -> None:
    work = app.task(type="work")(lambda: "ran")
    await operator.queue("default").set(weight=0)
    async with running(app, queues=["default", "other"]) as worker:
        ref = await work.enqueue()
        await worker.until_idle()
        assert (await ref.get()).state is State.PENDING
        await operator.queue("default").set(weight=1)
        assert await ref.result(LIMIT) == "ran"


async def test_time_limit_retries_and_dead_letters_are_those_of_now(
    app: App, operator: App
) -> None:
    limits: list[float] = []

    @app.task
    async def fails(ctx: JobContext) -> None:
        assert ctx.deadline
        limits.append(ctx.deadline.timestamp() - ctx.job.started_at / 1000)
        raise ValueError

    queue = operator.queue("default")
    await queue.set(max_runtime=100, retry=600)
    async with running(app) as worker:
        first = await fails.enqueue()
        await eventually(lambda: _retries(first))
        await queue.set(max_runtime=50, retry=0, max_tries=2, dead_letters=False, force=True)
        await eventually(lambda: worker.settings.of("default").max_runtime == 50_000)
        second = await fails.enqueue()
        assert (await second.wait(LIMIT)).state is State.FAILED
    assert limits == [100, 50, 50]


async def _retries(ref) -> bool:
    return (await ref.get()).state is State.RETRY


async def _active(app: App) -> int:
    return sum(counted.jobs for counted in await app.count() if counted.state is State.ACTIVE)
