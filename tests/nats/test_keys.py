"""Concurrency keys on NATS: thousands of jobs may wait for one."""

from __future__ import annotations

from headrace.core.queue import QueueSettings, Retention
from headrace.core.states import State
from headrace.engine.nats import NatsEngine
from headrace.testing.conformance.bench import Bench, key

K = key("tenant")


async def record_size(bench: Bench) -> int:
    engine = bench.engine
    assert isinstance(engine, NatsEngine)
    session = await engine._session()  # pyright: ignore[reportPrivateUsage]
    found = await session.js.last(session.layout.stream, [session.layout.key("svc", K.hash)])
    return len(found[0].payload)


async def test_record_of_a_key_stays_small_however_many_wait(bench: Bench) -> None:
    await bench.engine.insert([[bench.new(f"j{n:04}", key=K)] for n in range(1200)], bench.now)
    assert await record_size(bench) < 40_000
    assert (await bench.key(K)).queued == 1200


async def test_all_that_wait_for_a_key_run_in_order(bench: Bench) -> None:
    await bench.engine.insert([[bench.new(f"j{n:04}", key=K)] for n in range(700)], bench.now)
    ran = [(await bench.run()).id for _ in range(700)]
    assert ran == [f"j{n:04}" for n in range(700)]
    assert await bench.claimed_ids() == []
    assert await bench.engine.key("svc", K.hash) is None


async def test_jobs_that_leave_while_they_are_noted_are_passed_over(bench: Bench) -> None:
    await bench.engine.insert([[bench.new(f"j{n:04}", key=K)] for n in range(600)], bench.now)
    for n in range(1, 599):
        await bench.cancel(await bench.job(f"j{n:04}"))
    assert (await bench.key(K)).queued == 2
    assert [(await bench.run()).id for _ in range(2)] == ["j0000", "j0599"]
    assert (await bench.counts())["q", State.CANCELLED] == 598


async def test_better_priority_among_the_noted_runs_first(bench: Bench) -> None:
    await bench.engine.insert([[bench.new(f"j{n:04}", key=K)] for n in range(600)], bench.now)
    await bench.add("urgent", key=K, priority=0)
    assert [(await bench.run()).id for _ in range(2)] == ["urgent", "j0000"]


async def test_jobs_that_were_pruned_do_not_hide_those_that_are_noted(bench: Bench) -> None:
    await bench.engine.insert([[bench.new(f"a{n:04}", key=K)] for n in range(300)], bench.now)
    for n in range(300):
        await bench.cancel(await bench.job(f"a{n:04}"))
    bench.tick(60_000)
    await bench.set_queue(QueueSettings(retention={State.CANCELLED: Retention(age=1_000)}))
    assert await bench.prune() == 300
    await bench.engine.insert([[bench.new(f"b{n:04}", key=K)] for n in range(400)], bench.now)
    ran = [(await bench.run()).id for _ in range(400)]
    assert ran == [f"b{n:04}" for n in range(400)]
