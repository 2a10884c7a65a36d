"""Three servers, three replicas: the leader is killed under load, and writers race."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from headrace import App
from headrace.engine.nats.batch import block, guard_lines
from headrace.engine.nats.layout import Layout
from headrace.engine.nats.patience import PatientJetStream
from headrace.engine.nats.wire.connection import Connection
from headrace.engine.nats.wire.errors import ApiError
from headrace.engine.nats.wire.jetstream import JetStream, Pending
from headrace.engine.nats.wire.options import Options
from headrace.testing.nats import NatsCluster
from tests.nats.faults.conftest import Hire

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

RACES = 400
ROUNDS = 150


@pytest.fixture(scope="module")
def cluster() -> Iterator[NatsCluster]:
    with NatsCluster() as cluster:
        yield cluster


@asynccontextmanager
async def client(url: str) -> AsyncIterator[PatientJetStream]:
    connection = await Connection.open(Options.parse(url))
    try:
        yield PatientJetStream(connection)
    finally:
        await connection.close()


async def test_nothing_is_lost_when_the_leader_of_the_stream_is_killed_under_load(
    cluster: NatsCluster, hire: Hire
) -> None:
    crew = hire(cluster.url)
    for role in ("worker", "worker", "producer"):
        crew.start(role)
    await crew.progress()
    async with client(cluster.url) as js:
        found = await js.api("STREAM.INFO.headrace-jobs")
    assert found["config"]["num_replicas"] == 3
    leader = cluster[found["cluster"]["leader"]]
    await asyncio.to_thread(leader.kill)
    await crew.progress()
    await asyncio.to_thread(leader.start)
    await crew.progress()
    crew.kill_all("producer")
    await crew.check()
    crew.stop_workers()


def _step(layout: Layout, job_id: str, what: str, expected: int, batch: bool) -> list[Pending]:
    subject = f"{layout.namespace}.jobs.billing.charge.{job_id}.{what}".encode()
    first = Pending(subject, b"", block(guard_lines(layout.domain(job_id), expected)))
    beside = Pending(f"{layout.namespace}.rec.key.billing.{job_id}{what}".encode(), b"")
    return [first, beside] if batch else [first]


async def _accepted(js: JetStream, messages: list[Pending]) -> int | None:
    try:
        return await js.store_batch(messages)
    except ApiError as error:
        return -error.err_code


@pytest.mark.parametrize("kind", ["single", "batches", "mixed"])
async def test_of_two_writers_with_the_same_guard_one_is_refused(
    cluster: NatsCluster, kind: str
) -> None:
    """Through different servers, at the same time, with the filter that all of our writers use.
    That a replicated stream sees what is on its way is observed, not documented."""
    layout = Layout(f"race-{kind}")
    config = {
        "name": layout.stream,
        "subjects": layout.subjects,
        "num_replicas": 3,
        "allow_atomic": True,
        "allow_direct": True,
    }
    outcomes: Counter[int] = Counter()
    refusals: Counter[int | None] = Counter()
    first, _, last = cluster.servers
    async with client(first.url) as one, client(last.url) as two:
        await one.api(f"STREAM.CREATE.{layout.stream}", config)

        async def race(number: int) -> None:
            job_id = f"j{number}"
            made = await one.store_batch(_step(layout, job_id, "created", 0, False))
            in_batches = (kind != "single", kind == "batches")
            answers = await asyncio.gather(
                *(
                    _accepted(js, _step(layout, job_id, what, made, batch))
                    for js, what, batch in zip(
                        (one, two), ("completed", "cancelled"), in_batches, strict=True
                    )
                )
            )
            outcomes[sum((answer or 0) > 0 for answer in answers)] += 1
            refusals.update(answer for answer in answers if (answer or 0) < 0)

        for start in range(0, RACES, 20):
            await asyncio.gather(*(race(start + n) for n in range(20)))
    assert outcomes[2] == 0, f"both were accepted: {outcomes}"
    assert outcomes[1] > RACES / 2, f"{outcomes} {refusals}"
    assert refusals.keys() <= {-10071, -10164}, refusals


async def test_worker_is_not_idle_before_what_was_added_beside_it_has_run(
    cluster: NatsCluster, tmp_path: Path
) -> None:
    """The leader of a consumer may hear of a job after whoever added it."""
    app, ran = App(f"{cluster.url}?namespace=idle&projection={tmp_path}/p"), list[int]()

    @app.task(queue="q")
    async def step(n: int) -> None:
        ran.append(n)

    async with app, app.working(queues="q") as worker:
        for n in range(ROUNDS):
            await step.enqueue(n)
            await worker.until_idle()
            assert ran == list(range(n + 1))
