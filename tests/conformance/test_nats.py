"""The NATS engine, held to the conformance suite."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from itertools import count
from pathlib import Path

import pytest

from headrace.engine.nats import NatsEngine
from headrace.testing.conformance import EngineConformance
from headrace.testing.nats import NatsServer

_numbers = count(1)


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    with NatsServer(config="max_payload: 8MB\n") as server:
        yield server


class TestNats(EngineConformance):
    @pytest.fixture
    async def engine(self, server: NatsServer, tmp_path: Path) -> AsyncIterator[NatsEngine]:
        namespace = f"n{next(_numbers)}"
        engine = NatsEngine(f"{server.url}?namespace={namespace}&projection={tmp_path}/p.db")
        await engine.open()
        yield engine
        await engine.close()
