"""The NATS engine, held to the conformance suite: on one server, and on a cluster of three."""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path

import pytest

from headrace.engine.nats import NatsEngine
from headrace.testing.conformance import EngineConformance
from headrace.testing.nats import NatsCluster, NatsServer
from tests.conformance.streams import remove_stream

_numbers = count(1)


async def opened(url: str, folder: Path) -> NatsEngine:
    """An engine on a stream of its own."""
    engine = NatsEngine(f"{url}?namespace=n{next(_numbers)}&projection={folder}/p.db")
    await engine.open()
    return engine


class TestNats(EngineConformance):
    @pytest.fixture
    async def engine(self, server: NatsServer, tmp_path: Path) -> AsyncIterator[NatsEngine]:
        engine = await opened(server.url, tmp_path)
        yield engine
        await engine.close()


class TestNatsCluster(EngineConformance):
    @pytest.fixture
    async def engine(self, cluster: NatsCluster, tmp_path: Path) -> AsyncIterator[NatsEngine]:
        engine = await opened(cluster.url, tmp_path)
        yield engine
        await engine.close()
        await remove_stream(cluster.url, engine.namespace)
