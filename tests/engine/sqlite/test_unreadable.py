"""A job that cannot be read does not keep the others from being found and rescued."""

from __future__ import annotations

import logging
from pathlib import Path

import apsw
import pytest

from headrace.core.model import Filter
from headrace.core.queue import DEFAULTS
from headrace.core.states import State
from headrace.engine.sqlite import SqliteEngine
from headrace.testing.conformance.bench import LEASE, Bench
from headrace.upkeep.rescue import rescue


async def test_unreadable_job_is_logged_and_the_others_are_found_and_rescued(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine = SqliteEngine(tmp_path / "jobs.db")
    await engine.open()
    bench = Bench(engine)
    for id in "abcd":
        await bench.add(id)
    await bench.claim(4)
    connection = apsw.Connection(str(tmp_path / "jobs.db"))
    connection.execute("UPDATE jobs SET progress = ? WHERE id = 'b'", (b'{"current": "3"}',))
    connection.close()

    page = await engine.find(Filter(states=frozenset({State.ACTIVE})), limit=2)
    assert [job.id for job in page.jobs] == ["d", "c"]
    assert await bench.found(Filter(states=frozenset({State.ACTIVE}))) == ["d", "c", "a"]

    with caplog.at_level(logging.ERROR, "headrace"):
        assert await rescue(engine, "svc", bench.tick(LEASE), lambda _: DEFAULTS) == 3
    assert "cannot be read" in caplog.text
    assert await bench.states("a", "c", "d") == [State.RETRY] * 3
    await engine.close()
