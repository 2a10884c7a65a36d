"""The conformance suite: what every engine does, as tests.

Subclass it in your own tests; each test gets a fresh engine:

    class TestMyEngine(EngineConformance):
        @pytest.fixture
        async def engine(self, tmp_path):
            engine = MyEngine(tmp_path / "jobs")
            await engine.open()
            yield engine
            await engine.close()

It needs pytest-asyncio. `headrace.testing.machine` is its companion: random interleavings.
"""

from __future__ import annotations

import pytest

from headrace.engine.protocol import Engine
from headrace.testing.conformance.bells import Bells
from headrace.testing.conformance.bench import Bench
from headrace.testing.conformance.cancelling import Cancelling
from headrace.testing.conformance.crowds import Crowds
from headrace.testing.conformance.deadlines import Deadlines
from headrace.testing.conformance.dedup import Deduplication
from headrace.testing.conformance.detaching import Detaching
from headrace.testing.conformance.documents import Documents
from headrace.testing.conformance.edges import Edges
from headrace.testing.conformance.exchanging import Exchanging
from headrace.testing.conformance.failure import Failure
from headrace.testing.conformance.groups import Groups
from headrace.testing.conformance.inserting import Inserting
from headrace.testing.conformance.journal import Journal
from headrace.testing.conformance.keys import Keys
from headrace.testing.conformance.leases import Leases
from headrace.testing.conformance.moving import Moving
from headrace.testing.conformance.order import Order
from headrace.testing.conformance.parking import Parking
from headrace.testing.conformance.queues import Queues
from headrace.testing.conformance.repeats import Repeats
from headrace.testing.conformance.retention import Retaining
from headrace.testing.conformance.reviving import Reviving
from headrace.testing.conformance.search import Searching

__all__ = ["Bench", "EngineConformance"]


@pytest.mark.asyncio
class EngineConformance(
    Inserting,
    Groups,
    Order,
    Queues,
    Leases,
    Exchanging,
    Failure,
    Deadlines,
    Cancelling,
    Reviving,
    Deduplication,
    Keys,
    Parking,
    Edges,
    Moving,
    Detaching,
    Journal,
    Searching,
    Documents,
    Retaining,
    Bells,
    Repeats,
    Crowds,
):
    """Everything that an engine must do."""

    @pytest.fixture
    async def engine(self) -> Engine:
        """A fresh engine, open. Override it."""
        raise NotImplementedError("override the `engine` fixture with one that opens your engine")

    @pytest.fixture
    def bench(self, engine: Engine) -> Bench:
        return Bench(engine)
