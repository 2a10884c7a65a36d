"""The SQLite engine, held to the conformance suite."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from headrace.engine.sqlite import SqliteEngine
from headrace.testing.conformance import EngineConformance


class TestSqlite(EngineConformance):
    @pytest.fixture
    async def engine(self, tmp_path: Path) -> AsyncIterator[SqliteEngine]:
        engine = SqliteEngine(tmp_path / "jobs.db")
        await engine.open()
        yield engine
        await engine.close()
