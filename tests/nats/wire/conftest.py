"""Servers and connections for the tests of the NATS client: real ones, on loopback."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from uuid import uuid4

import pytest

from headrace.engine.nats.wire.connection import Connection
from headrace.engine.nats.wire.jetstream import JetStream
from headrace.engine.nats.wire.options import Options
from headrace.testing.nats import NatsServer
from tests.nats.wire.support import make_stream


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    """A server that the tests of a module share, and leave running."""
    with NatsServer() as server:
        yield server


@pytest.fixture
def fresh() -> Iterator[NatsServer]:
    """A server that a test may stop and kill."""
    with NatsServer() as server:
        yield server


@pytest.fixture
async def connection(server: NatsServer) -> AsyncIterator[Connection]:
    connection = await Connection.open(Options.parse(server.url))
    yield connection
    await connection.close()


@pytest.fixture
async def jetstream(connection: Connection) -> JetStream:
    return JetStream(connection)


@pytest.fixture
async def stream(jetstream: JetStream) -> str:
    """A stream of the test's own. It takes the subjects below its name."""
    return await make_stream(jetstream, f"S{uuid4().hex}")
