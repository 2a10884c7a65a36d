"""An answer is lost: what was asked for happened, and whoever asked does not know."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from headrace import App, State
from headrace.core.claims import Claimed, ClaimRequest, Lease, Share
from headrace.engine.nats import NatsEngine, stream
from headrace.engine.nats.layout import Layout
from headrace.engine.nats.wire.jetstream import JetStream
from headrace.engine.protocol import Put
from headrace.testing.nats import NatsServer
from tests.nats.faults.swallower import Swallower
from tests.support import story, within

pytestmark = pytest.mark.timeout(60)

KEYED = {"key": ("k", "/k"), "max_active": 1}


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    with NatsServer() as server:
        yield server


@pytest.fixture
async def proxy(server: NatsServer) -> AsyncIterator[Swallower]:
    proxy = Swallower()
    yield proxy
    await proxy.close()


@pytest.fixture
async def app(server: NatsServer, proxy: Swallower, tmp_path: Path) -> AsyncIterator[App]:
    """An app behind the proxy, with a namespace of its own."""
    address = await proxy.start(server.port)
    namespace = tmp_path.name.replace("_", "-")
    url = f"nats://{address}?namespace=n-{namespace}&projection={tmp_path / 'p.db'}"
    async with App(url) as app:
        yield app


@asynccontextmanager
async def lost(proxy: Swallower, part: bytes) -> AsyncIterator[None]:
    """The answer to what is sent here and has this part never comes; then the line is cut."""
    proxy.swallow(lambda data: part in data)

    async def cut() -> None:
        await proxy.swallowed.wait()
        proxy.cut()

    cutting = asyncio.create_task(cut())
    yield
    assert proxy.swallowed.is_set(), "nothing was swallowed"
    await cutting


def claim_of(app: App, limit: int = 10) -> ClaimRequest:
    return ClaimRequest(
        service=app.service,
        worker="w1",
        shares=(Share("default", limit),),
        limit=limit,
        lease=30_000,
        now=app.clock.now(),
    )


@pytest.mark.parametrize("options", [{}, KEYED, {"unique": "once"}, {"delay": 60}])
async def test_job_whose_confirmation_was_lost_is_there_once(
    app: App, proxy: Swallower, options: dict[str, object]
) -> None:
    first = app.prepare("t", {"k": 1}, **options)
    await app.enqueue_many([app.prepare("t", {"k": 0})])  # the queue is known from here on
    async with lost(proxy, b".created"):
        (answer,) = await within(app.enqueue_many([first]))
    assert answer.ref
    assert answer.ref.id == first.id
    assert await story(app, first.id) == ["created"]


async def test_many_jobs_whose_confirmations_were_lost_are_there_once(
    app: App, proxy: Swallower
) -> None:
    await app.enqueue_many([app.prepare("t", {})])
    jobs = [app.prepare("t", {}) for _ in range(200)]
    async with lost(proxy, b".created"):
        answers = await within(app.enqueue_many(jobs))
    assert all(answer.ref for answer in answers)
    assert sum(counted.jobs for counted in await app.count()) == 201


@pytest.mark.parametrize("options", [{}, KEYED])
async def test_claim_whose_answer_was_lost_has_its_job(
    app: App, proxy: Swallower, options: dict[str, object]
) -> None:
    engine = await app.engine()
    await app.enqueue_many([app.prepare("t", {"k": 1}, **options)])
    async with lost(proxy, b".started"):
        claimed: Claimed = await within(engine.claim(claim_of(app)))
    (job,) = claimed.jobs
    stored = await app.job(job.id).get()
    assert (stored.state, stored.token, stored.tries) == (State.ACTIVE, job.token, 1)
    (renewal,) = await engine.extend([Lease(job.id, job.seq, job.token)], app.clock.now() + 60_000)
    assert renewal.held, await app.job(job.id).details()


@pytest.mark.parametrize("options", [{}, KEYED])
async def test_claim_that_was_held_up_starts_nothing_of_a_queue_that_was_paused_meanwhile(
    app: App, server: NatsServer, proxy: Swallower, tmp_path: Path, options: dict[str, object]
) -> None:
    engine = await app.engine()
    assert isinstance(engine, NatsEngine)
    (answer,) = await app.enqueue_many([app.prepare("t", {"k": 1}, **options)])
    assert answer.ref
    await engine.claim(replace(claim_of(app), shares=(Share("other", 1),)))  # all is known now
    proxy.drop(lambda data: b".started" in data)
    claiming = asyncio.create_task(engine.claim(claim_of(app)))
    await within(proxy.swallowed.wait())
    other = f"{server.url}?namespace={engine.namespace}&projection={tmp_path / 'other.db'}"
    async with App(other) as operator:
        await operator.queue("default").pause()
        proxy.cut()
        assert (await within(claiming)).jobs == ()
        assert await story(app, answer.ref.id) == ["created"]
        await operator.queue("default").resume()
    claimed = Claimed(())
    async with asyncio.timeout(20):
        while not claimed.jobs:  # its ticket was given back
            claimed = await engine.claim(claim_of(app))
    assert [job.id for job in claimed.jobs] == [answer.ref.id]


@pytest.mark.parametrize("options", [{}, KEYED])
async def test_end_whose_answer_was_lost_is_told_once(
    app: App, proxy: Swallower, options: dict[str, object]
) -> None:
    done: list[str] = []

    @app.task(type="t")
    async def handler(k: int) -> None:
        done.append("ran")

    (answer,) = await app.enqueue_many([app.prepare("t", {"k": 1}, **options)])
    assert answer.ref
    async with lost(proxy, b".completed"):
        worker = app.worker()
        await worker.start()
        assert await within(answer.ref.result(20)) is None
    await worker.stop()
    assert done == ["ran"]
    assert await story(app, answer.ref.id) == ["created", "started", "completed"]


async def test_document_whose_confirmation_was_lost_is_the_callers(
    app: App, proxy: Swallower
) -> None:
    engine = await app.engine()
    assert isinstance(engine, NatsEngine)
    body = msgspec.Raw(b'{"owner":"me"}')
    async with lost(proxy, b"Nats-Rollup"):
        (mine,) = await within(engine.put([Put("lock", "a", body, expected=0)], 1))
    assert mine is not None
    (stored,) = await engine.scan("lock", 1)
    assert stored.revision == mine.revision
    assert await engine.put([Put("lock", "a", body, expected=0)], 1) == [None]


async def test_no_stream_is_said_to_be_lost_where_the_connection_breaks_while_it_is_opened(
    server: NatsServer,
    proxy: Swallower,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    url = f"nats://{await proxy.start(server.port)}?projection={tmp_path / 'p.db'}"
    async with App(url) as app:
        await app.enqueue_many([app.prepare("t")])
    ensure = stream.ensure

    async def cut_off(js: JetStream, layout: Layout, *rest: Any) -> stream.StreamState:
        found = await ensure(js, layout, *rest)
        proxy.cut()
        await stream.info(js, layout)  # answered after what is asked when the line stands again
        return found

    monkeypatch.setattr(stream, "ensure", cut_off)
    async with App(url) as app:
        assert sum(counted.jobs for counted in await app.count()) == 1
    assert caplog.messages == []
