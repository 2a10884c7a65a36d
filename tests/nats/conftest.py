"""An engine on a NATS server, and short words for what tests do."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from headrace.engine.nats import NatsEngine, keyed
from headrace.testing.conformance.bench import Bench
from headrace.testing.nats import NatsServer
from tests.nats.real import RealBench


@pytest.fixture(scope="module")
def plain_server() -> Iterator[NatsServer]:
    with NatsServer() as server:
        yield server


@pytest.fixture
async def bench(plain_server: NatsServer, tmp_path: Path) -> AsyncIterator[Bench]:
    """On a stream of its own."""
    query = f"namespace={tmp_path.name[-20:]}&projection={tmp_path}/p"
    engine = NatsEngine(f"{plain_server.url}?{query}")
    await engine.open()
    yield Bench(engine)
    await engine.close()


@pytest.fixture
def real(bench: Bench) -> RealBench:
    """By the machine's clock."""
    return RealBench(bench.engine)


@pytest.fixture
def nobody_sure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every job of a key goes by way of the key's record, as those do that have to wait."""
    monkeypatch.setattr(keyed, "SURE", 0)
