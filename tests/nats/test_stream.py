"""The stream says which layout it has: what an older Headrace does not know it leaves alone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from headrace.core.errors import StoreTooNew
from headrace.engine.nats import NatsEngine
from headrace.engine.nats.stream import LAYOUT
from headrace.engine.nats.wire.connection import Connection
from headrace.engine.nats.wire.jetstream import JetStream
from headrace.engine.nats.wire.options import Options
from headrace.testing.nats import NatsServer


@pytest.fixture
async def admin(plain_server: NatsServer) -> AsyncIterator[JetStream]:
    connection = await Connection.open(Options.parse(plain_server.url))
    yield JetStream(connection)
    await connection.close()


@pytest.fixture
async def engine(plain_server: NatsServer, tmp_path) -> NatsEngine:
    """Closed, but its stream is there."""
    query = f"namespace={tmp_path.name[-20:]}&projection={tmp_path}/p"
    engine = NatsEngine(f"{plain_server.url}?{query}")
    await engine.open()
    await engine.close()
    return engine


async def config(admin: JetStream, engine: NatsEngine) -> dict[str, Any]:
    return (await admin.api(f"STREAM.INFO.{engine.namespace}-jobs"))["config"]


async def change(admin: JetStream, engine: NatsEngine, **fields: Any) -> dict[str, Any]:
    changed = await config(admin, engine) | fields
    await admin.api(f"STREAM.UPDATE.{changed['name']}", changed)
    return await config(admin, engine)


async def test_stream_of_a_newer_layout_is_refused_and_left_as_it_is(
    admin: JetStream, engine: NatsEngine
) -> None:
    subjects = [*(await config(admin, engine))["subjects"], f"{engine.namespace}.newthing.>"]
    metadata = {"headrace.layout": str(LAYOUT + 1)}
    newer = await change(admin, engine, subjects=subjects, metadata=metadata)
    with pytest.raises(StoreTooNew, match=rf"layout {LAYOUT + 1}.*upgrade Headrace"):
        await engine.open()
    assert await config(admin, engine) == newer


async def test_stream_that_says_no_layout_is_told_its_own(
    admin: JetStream, engine: NatsEngine
) -> None:
    await change(admin, engine, metadata={"owner": "ops"})
    await engine.open()
    await engine.close()
    metadata = (await config(admin, engine))["metadata"]
    assert (metadata["headrace.layout"], metadata["owner"]) == (str(LAYOUT), "ops")


async def test_stream_that_is_as_it_should_be_is_not_changed_by_opening_it(
    admin: JetStream, engine: NatsEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused(*_: object) -> None:
        raise AssertionError("it was changed")

    monkeypatch.setattr("headrace.engine.nats.stream._reconcile", refused)
    await engine.open()
    await engine.close()
