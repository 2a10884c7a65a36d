"""Delays on NATS: the server's timers are slow, so a worker is told of a job before it is due."""

from __future__ import annotations

from datetime import datetime

from headrace import App, current_job
from headrace.engine.nats.batch import AHEAD
from headrace.engine.nats.wire.stored import Stored
from headrace.engine.protocol import work_topic
from headrace.testing import running
from headrace.testing.nats import NatsServer
from tests.nats.real import RealBench, session_of
from tests.support import LIMIT


async def timers(bench: RealBench) -> list[Stored]:
    home = await session_of(bench)
    return await home.js.read_all(home.layout.stream, home.layout.timers("svc", "q"))


async def left(bench: RealBench) -> list[bytes]:
    """Where timers have left something, or somebody in their place."""
    home = await session_of(bench)
    found = await home.js.read_all(home.layout.stream, home.layout.due("svc", "q").encode())
    return [one.subject.rpartition(b".due.")[2] for one in found]


async def test_timer_of_a_delayed_job_fires_ahead_of_its_time(real: RealBench) -> None:
    job = await real.add("a", delay=3_600_000)
    (timer,) = await timers(real)
    assert timer.headers
    stamp = timer.headers.partition(b"@at ")[2].partition(b"\r")[0].decode()
    fires = datetime.fromisoformat(stamp).timestamp() * 1000
    assert abs(job.run_at - AHEAD - fires) < 1_000  # two clocks


async def test_job_that_is_due_very_soon_needs_no_timer(real: RealBench) -> None:
    await real.add("a", delay=AHEAD // 2)
    assert await timers(real) == []
    assert await left(real) == [b"svc.q.run.a"]


async def test_ticket_that_comes_ahead_is_held_until_its_job_is_due(real: RealBench) -> None:
    job = await real.add("a", delay=AHEAD)
    bell = real.engine.listen(frozenset({work_topic("svc", "q")}))
    while not (started := await real.claim()):
        assert await bell.wait(LIMIT), "nobody said that its time has come"
    bell.close()
    assert started[0].started_at
    assert started[0].started_at >= job.run_at


async def test_no_job_starts_before_its_time(plain_server: NatsServer, tmp_path) -> None:
    early: list[int] = []
    query = f"namespace={tmp_path.name[-20:]}&projection={tmp_path}/p"
    async with App(f"{plain_server.url}?{query}") as app:

        @app.task
        async def work() -> None:
            job = current_job().job
            early.append(job.run_at - (job.started_at or 0))

        async with running(app):
            delays = (0.01, 0.1, AHEAD / 1000, 0.35, 0.5)
            refs = [await work.options(delay=delay).enqueue() for delay in delays]
            for ref in refs:
                await ref.wait(LIMIT)
    assert len(early) == 5
    assert max(early) <= 0
