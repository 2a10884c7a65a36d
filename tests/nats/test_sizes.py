"""What is larger than the server's messages may be is refused, and takes nothing else with it. What
is more than a batch may hold is done in steps."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from headrace import App, WorkerOptions
from headrace.core.errors import InvalidValue, PayloadTooLarge
from headrace.core.outcome import Completed
from headrace.core.states import State
from headrace.testing import run_until_idle
from headrace.testing.conformance.bench import Bench, key, raw
from headrace.testing.nats import NatsServer
from tests.nats.real import RealBench, session_of

pytestmark = pytest.mark.usefixtures("nobody_sure")

MOST = 64 * 1024
HUGE = "x" * MOST

MANY = 1200
"""More than a batch may hold."""

LARGE = "x" * 900_000
"""What one message just holds."""

BUFFERED = 16 << 20
"""Bytes that the connections of these tests let wait; by default four times as many."""

SOME = 20
"""So many large messages are more than may wait."""


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


@pytest.fixture
async def narrow(real: RealBench) -> RealBench:
    """Where less may wait to be sent than by default: a test need not write so much."""
    (await session_of(real)).connection._max_buffered = BUFFERED  # pyright: ignore[reportPrivateUsage]
    return real


async def test_large_result_is_told_to_many_dependents(narrow: RealBench) -> None:
    await narrow.add("parent")
    names = [f"c{n}" for n in range(SOME)]
    children = [[narrow.new(name, queue="other", depends_on=("parent",))] for name in names]
    await narrow.engine.insert(children, narrow.now)
    await narrow.complete(await narrow.start(), LARGE)
    assert await narrow.states(*names) == [State.PENDING] * SOME
    (parent,) = await narrow.parents(names[-1])
    assert parent.result == raw(LARGE)


async def test_many_large_results_of_jobs_with_keys_are_stored_at_once(narrow: RealBench) -> None:
    names = [f"j{n}" for n in range(SOME)]
    await narrow.engine.insert([[narrow.new(name, key=key(name))] for name in names], narrow.now)
    jobs = await narrow.claim(SOME)
    changes = [await narrow.settled(job, Completed(raw(LARGE))) for job in jobs]
    await narrow.engine.apply(changes)
    assert await narrow.states(*names) == [State.COMPLETED] * SOME


async def test_many_large_jobs_with_one_key_are_added_at_once(narrow: RealBench) -> None:
    names = [f"j{n}" for n in range(SOME)]
    new = [[narrow.new(name, key=key("tenant"), payload=LARGE)] for name in names]
    await narrow.engine.insert(new, narrow.now)
    assert await narrow.states(*names) == [State.PENDING] * SOME
