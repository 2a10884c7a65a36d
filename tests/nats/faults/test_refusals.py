"""What the server takes away or refuses: streams, consumers, JetStream, permissions, patience."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from headrace import App, EngineUnavailable, StoreReadOnly, Worker
from headrace.engine.nats import patience
from headrace.engine.nats.layout import Layout
from headrace.engine.nats.wire.connection import Connection
from headrace.engine.nats.wire.jetstream import JetStream
from headrace.engine.nats.wire.options import Options
from headrace.testing.nats import NatsServer, with_permissions
from tests.nats.faults.conftest import Hire
from tests.support import eventually, within

pytestmark = pytest.mark.timeout(90)

STREAM = "headrace-jobs"


@pytest.fixture
def server() -> Iterator[NatsServer]:
    with NatsServer() as server:
        yield server


@asynccontextmanager
async def working(url: str, folder: Path) -> AsyncIterator[tuple[App, Worker]]:
    """An app whose worker doubles numbers."""
    app = App(f"{url}?projection={folder / 'p.db'}")

    @app.task(type="double")
    async def double(number: int) -> int:
        return 2 * number

    async with app:
        worker = app.worker()
        await worker.start()
        yield app, worker
        await worker.stop()


async def doubled(app: App, number: int) -> object:
    (answer,) = await app.enqueue_many([app.prepare("double", {"number": number})])
    assert answer.ref
    return await within(answer.ref.result(20))


@asynccontextmanager
async def admin(server: NatsServer) -> AsyncIterator[JetStream]:
    connection = await Connection.open(Options.parse(server.url))
    yield JetStream(connection)
    await connection.close()


async def test_stream_that_was_deleted_is_made_again_and_said_so(
    server: NatsServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        working(server.url, tmp_path) as (app, _),
        App(f"{server.url}?projection={tmp_path / 'q.db'}") as idle,
        admin(server) as js,
    ):
        assert await doubled(app, 1) == 2
        assert await doubled(idle, 2) == 4
        await js.api(f"STREAM.DELETE.{STREAM}")
        assert await doubled(app, 3) == 6
        assert await doubled(idle, 4) == 8
        assert sum(counted.jobs for counted in await app.count()) == 2
    assert any("was deleted, and all jobs in it are lost" in line for line in caplog.messages)


async def test_consumer_that_was_deleted_is_made_again(server: NatsServer, tmp_path: Path) -> None:
    async with working(server.url, tmp_path) as (app, _), admin(server) as js:
        assert await doubled(app, 1) == 2
        found = await js.api(f"CONSUMER.NAMES.{STREAM}")
        assert len(found["consumers"]) == 4
        for name in found["consumers"]:
            await js.api(f"CONSUMER.DELETE.{STREAM}.{name}")
        assert await doubled(app, 2) == 4


async def test_server_without_jetstream_is_named_as_such(tmp_path: Path) -> None:
    with NatsServer(jetstream=False) as server:
        began = time.monotonic()
        with pytest.raises(EngineUnavailable, match="JetStream is disabled"):
            await App(f"{server.url}?projection={tmp_path / 'p.db'}").open()
        assert time.monotonic() - began < 5


async def test_worker_resumes_when_jetstream_is_enabled_again(
    server: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "PATIENCE", 0.5)
    async with working(server.url, tmp_path) as (app, _):
        assert await doubled(app, 1) == 2
        server.jetstream = False
        await asyncio.to_thread(server.restart)
        with pytest.raises(EngineUnavailable, match=r"JetStream is off: enable it|no connection"):
            await doubled(app, 2)
        server.jetstream = True
        await asyncio.to_thread(server.restart)
        await eventually(lambda: _works(app))


async def _works(app: App) -> bool:
    try:
        return await doubled(app, 3) == 6
    except EngineUnavailable:
        return False


async def test_refused_subject_is_named_with_the_remedy(server: NatsServer, tmp_path: Path) -> None:
    async with App(f"{server.url}?projection={tmp_path / 'p.db'}"):
        pass  # makes the stream
    config = with_permissions(
        "u", "p", publish=["$JS.API.>", "$JS.ACK.>"], subscribe=["_INBOX.>", "headrace.>"]
    )
    await asyncio.to_thread(server.stop)
    server.config = config
    await asyncio.to_thread(server.start)
    url = f"nats://u:p@{server.host}?projection={tmp_path / 'p.db'}"
    async with App(url) as app:
        began = time.monotonic()
        with pytest.raises(
            StoreReadOnly, match=r"headrace\.rec\.lines\.\S+.*headrace nats permissions"
        ):
            await app.enqueue_many([app.prepare("double", {"number": 1})])
        assert time.monotonic() - began < 5, "a refusal does not pass: there is nothing to wait for"


@pytest.mark.slow
async def test_worker_that_the_server_drops_for_being_slow_comes_back(hire: Hire) -> None:
    """It is stopped while far more is sent to it than the server keeps for a client."""
    with NatsServer(config='max_pending: 1MB\nwrite_deadline: "1s"\n') as server:
        crew = hire(server.url)
        worker = crew.start("worker")
        crew.start("producer")
        await crew.progress(20)
        crew.kill_all("producer")
        worker.send_signal(signal.SIGSTOP)
        try:
            connection = await Connection.open(Options.parse(server.url))
            bell = Layout().bell("work", "default/default")
            while "Slow Consumer" not in server.log():
                for _ in range(20):
                    connection.publish(bell, bytes(100_000))
                await connection.flush()
            await connection.close()
        finally:
            worker.send_signal(signal.SIGCONT)
        crew.start("producer")
        await crew.progress(20)
        crew.kill_all("producer")
        await crew.check(least=20)
        crew.stop_workers()
