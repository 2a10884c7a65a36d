"""What is larger than the server's messages may be is refused, and takes nothing else with it. What
is more than a batch may hold is done in steps."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from headrace import App, WorkerOptions
from headrace.core.errors import InvalidValue, PayloadTooLarge
from headrace.core.states import State
from headrace.testing import run_until_idle
from headrace.testing.conformance.bench import Bench, key
from headrace.testing.nats import NatsServer

MOST = 64 * 1024
HUGE = "x" * MOST

MANY = 1200
"""More than a batch may hold."""


@pytest.fixture(scope="module")
def small_server() -> Iterator[NatsServer]:
    with NatsServer(config=f"max_payload: {MOST}\n") as server:
        yield server


@pytest.fixture
async def app(small_server: NatsServer, tmp_path: Path) -> AsyncIterator[App]:
    query = f"namespace={tmp_path.name[-20:]}&projection={tmp_path}/p"
    async with App(f"{small_server.url}?{query}") as app:
        yield app


async def test_payload_that_does_not_fit_is_refused_with_all_that_came_with_it(app: App) -> None:
    task = app.task(type="t")(lambda text: None)
    with pytest.raises(PayloadTooLarge, match="over the limit"):
        await app.enqueue_many([task.prepare("small"), task.prepare(HUGE)])
    assert await app.count() == []


async def test_result_that_does_not_fit_fails_its_job_and_no_other(app: App) -> None:
    big = app.task(type="big")(lambda: HUGE)
    small = app.task(type="small")(lambda: "small")
    keyed = app.task(type="keyed", key="tenant")(lambda: HUGE)
    refused = [await big.enqueue(), await keyed.enqueue()]
    fine = [await small.enqueue() for _ in range(3)]
    await run_until_idle(app)
    for ref in refused:
        job = await ref.get()
        assert job.state is State.FAILED
        assert job.tries == 1
        assert job.error
        assert "over the server's limit" in job.error.message
    assert [await ref.result() for ref in fine] == ["small"] * 3


async def test_others_of_a_group_are_stored_without_what_is_too_large(app: App) -> None:
    bench = Bench(await app.engine())
    tag, other = key("tenant"), key("other")
    await bench.add("big", key=tag)
    started = await bench.start()
    write = bench.complete(started, HUGE)
    one, two, three = await asyncio.gather(
        bench.add("a", key=other), write, bench.add("b", key=other), return_exceptions=True
    )
    assert isinstance(two, InvalidValue)
    assert not isinstance(one, BaseException)
    assert not isinstance(three, BaseException)
    assert await bench.states("big", "a", "b") == [State.ACTIVE, State.PENDING, State.PENDING]


async def test_worker_with_more_slots_than_a_batch_has_messages_is_not_stuck(app: App) -> None:
    at_once, all_there = 0, asyncio.Event()

    @app.task(key=("tenant", "/tenant"), timeout=60)
    async def waiting(tenant: int) -> None:
        nonlocal at_once
        at_once += 1
        if at_once == MANY:
            all_there.set()
        await all_there.wait()

    await app.enqueue_many(waiting.prepare(n) for n in range(MANY))
    worker = app.worker(WorkerOptions(concurrency=2 * MANY))
    await worker.start()
    async with asyncio.timeout(60):
        await all_there.wait()
        await worker.renew_leases()
        await worker.until_idle()
    await worker.stop()
    assert {counted.state: counted.jobs for counted in await app.count()} == {State.COMPLETED: MANY}


async def test_batch_whose_ids_do_not_fit_into_one_message_is_confirmed(app: App) -> None:
    task = app.task(type="t")(lambda n: None)
    await task.enqueue(0)  # from here on each job is stored on its own
    answers = await app.enqueue_many([task.prepare(n) for n in range(3000)], batch=3000)
    assert all(answer.accepted for answer in answers)
    assert sum(counted.jobs for counted in await app.count()) == 3001
