"""The SQLite engine, held to the conformance suite."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from headrace.testing.conformance import EngineConformance

sqlite = pytest.importorskip("headrace.engine.sqlite")


class TestSqlite(EngineConformance):
    @pytest.fixture
    async def engine(self, tmp_path: Path) -> AsyncIterator[object]:
        engine = sqlite.SqliteEngine(tmp_path / "jobs.db")
        await engine.open()
        yield engine
        await engine.close()
