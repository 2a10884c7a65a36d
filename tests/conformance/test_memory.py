"""The memory engine, held to the conformance suite."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from headrace.engine.memory import MemoryEngine
from headrace.testing.conformance import EngineConformance


class TestMemory(EngineConformance):
    @pytest.fixture
    async def engine(self) -> AsyncIterator[MemoryEngine]:
        engine = MemoryEngine()
        await engine.open()
        yield engine
        await engine.close()
