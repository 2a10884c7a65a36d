"""The NATS engine, held to the conformance suite: on one server, and on a cluster of three."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from itertools import count
from pathlib import Path

import pytest

from headrace.engine.nats import NatsEngine
from headrace.testing.conformance import EngineConformance
from headrace.testing.nats import NatsCluster, NatsServer

CONFIG = "max_payload: 8MB\n"
_numbers = count(1)


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    with NatsServer(config=CONFIG) as server:
        yield server


@pytest.fixture(scope="module")
def cluster() -> Iterator[NatsCluster]:
    with NatsCluster(3, config=CONFIG) as cluster:
        yield cluster


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
