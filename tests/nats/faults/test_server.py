"""One server: killed, stopped and hung under load (FEATURES 8.2, 8.3)."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from headrace import App
from headrace.testing.nats import NatsServer
from tests.nats.faults.conftest import Hire

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


@pytest.fixture
def server() -> Iterator[NatsServer]:
    with NatsServer() as server:
        yield server


async def test_nothing_is_lost_when_the_server_is_killed_under_load(
    server: NatsServer, hire: Hire
) -> None:
    crew = hire(server.url)
    for role in ("worker", "worker", "producer"):
        crew.start(role)
    for _ in range(3):
        await crew.progress()
        await asyncio.to_thread(server.restart, kill=True)
    await crew.progress()
    crew.kill_all("producer")
    await crew.check()
    crew.stop_workers()


async def test_nothing_is_lost_when_the_server_hangs_under_load(
    server: NatsServer, hire: Hire
) -> None:
    crew = hire(server.url)
    for role in ("worker", "worker", "producer"):
        crew.start(role)
    await crew.progress()
    server.signal(signal.SIGSTOP)
    await asyncio.sleep(3)  # longer than a call waits for its answer before it is repeated
    server.signal(signal.SIGCONT)
    await crew.progress()
    crew.kill_all("producer")
    await crew.check()
    crew.stop_workers()


async def test_delayed_jobs_come_after_a_restart(server: NatsServer, hire: Hire) -> None:
    crew = hire(server.url)
    due = time.time() + 6
    moment = datetime.fromtimestamp(due, UTC)
    async with App(crew.url) as app:
        jobs = [app.prepare("plain", {}, max_tries=1000, run_at=moment) for _ in range(2000)]
        answers = await app.enqueue_many(jobs)
        for answer in answers:
            assert answer.ref
            crew.diary.note("accepted", answer.ref.id)
    server.restart(kill=True)
    early = time.time()
    assert early < due, "this machine is too slow for the test"
    crew.start("worker")
    await crew.check(least=2000)
    began = time.monotonic_ns() - int((time.time() - due) * 1e9)
    assert all(note.at >= began for note in crew.notes("start")), "a job started before its time"
    crew.stop_workers()


async def test_keys_of_killed_workers_are_free_again(server: NatsServer, hire: Hire) -> None:
    crew = hire(server.url)
    async with App(crew.url) as app:
        for number in range(8):
            job = app.prepare(
                "slow",
                {"key": number % 4, "seconds": 0.3},
                key=("slow", "/key"),
                max_active=1,
                max_tries=1000,
            )
            (answer,) = await app.enqueue_many([job])
            assert answer.ref
            crew.diary.note("accepted", answer.ref.id)
    victims = [crew.start("worker"), crew.start("worker")]
    await crew.until(lambda: len(crew.notes("start")) >= 4)
    for victim in victims:
        crew.kill(victim)
    assert crew.done < 8, "they were too quick"
    crew.start("worker")
    await crew.check(least=8)
    crew.stop_workers()
