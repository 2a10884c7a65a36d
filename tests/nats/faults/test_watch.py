"""Leases and times to start are looked after by any worker of the service, whatever it serves."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace import App, State
from headrace.core.claims import ClaimRequest, Share
from headrace.testing.nats import NatsServer
from tests.support import eventually, within

pytestmark = pytest.mark.timeout(60)

KEYED = {"key": ("tenant", "/tenant"), "max_active": 1}


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    with NatsServer() as server:
        yield server


def app_on(server: NatsServer, folder: Path) -> App:
    namespace = folder.name.replace("_", "-")
    return App(f"{server.url}?namespace={namespace}&projection={folder / 'p.db'}")


async def taken(app: App, queue: str) -> None:
    """A worker that is never heard of again takes the job of a queue."""
    engine = await app.engine()
    request = ClaimRequest(
        service=app.service,
        worker="gone",
        shares=(Share(queue, 1),),
        limit=1,
        lease=500,
        now=app.clock.now(),
    )
    assert len((await engine.claim(request)).jobs) == 1


async def test_key_is_freed_though_nobody_serves_the_queue_of_its_holder(
    server: NatsServer, tmp_path: Path
) -> None:
    app = app_on(server, tmp_path)

    @app.task(type="t", queue="served", **KEYED)
    async def t(tenant: int) -> int:
        return tenant

    async with app:
        await app.enqueue_many([app.prepare("t", {"tenant": 1}, queue="left", **KEYED)])
        await taken(app, "left")
        waiting = await t.enqueue(1)
        async with app.working(queues="served"):
            assert await within(waiting.result(20)) == 1


async def test_lease_is_looked_after_by_a_worker_that_is_busy(
    server: NatsServer, tmp_path: Path
) -> None:
    app = app_on(server, tmp_path)
    go = asyncio.Event()

    @app.task(type="long")
    async def long() -> None:
        await go.wait()

    async with app:
        (lost,) = await app.enqueue_many([app.prepare("long", {})])
        assert lost.ref
        await taken(app, "default")
        busy = await long.enqueue()
        async with app.working(concurrency=1):
            await eventually(lambda: _is(busy, State.ACTIVE))
            await eventually(lambda: _is(lost.ref, State.RETRY))
            go.set()
            await within(busy.result(20))


async def test_job_expires_though_nobody_serves_its_queue(
    server: NatsServer, tmp_path: Path
) -> None:
    app = app_on(server, tmp_path)

    @app.task(type="t")
    async def t() -> None: ...

    async with app:
        (late,) = await app.enqueue_many([app.prepare("t", {}, queue="left", ttl=0.3)])
        assert late.ref
        async with app.working(queues="default"):
            await eventually(lambda: _is(late.ref, State.EXPIRED))


async def _is(ref: object, state: State) -> bool:
    return (await ref.get()).state is state  # type: ignore[attr-defined]
