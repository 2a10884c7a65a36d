"""A job that cannot be read does not keep the others from being rescued."""

from __future__ import annotations

import logging
import time
from typing import Any, cast

import pytest

from headrace.core.model import Progress
from headrace.core.queue import DEFAULTS
from headrace.core.states import State
from headrace.testing.conformance.bench import Bench
from headrace.upkeep.rescue import rescue
from tests.support import eventually


@pytest.mark.timeout(60)
async def test_unreadable_job_is_logged_and_the_others_are_rescued_by_their_timers(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    def now() -> int:
        return round(time.time() * 1000)

    bench.now = now()
    for id in "abc":
        await bench.add(id)
    jobs = await bench.claim(3, lease=1000)
    await bench.report(jobs[1], Progress(current=cast(Any, "3")))
    await rescue(bench.engine, "svc", now(), lambda _: DEFAULTS)

    async def rescued() -> bool:
        await rescue(bench.engine, "svc", now(), lambda _: DEFAULTS)
        return await bench.states("a", "c") == [State.RETRY] * 2

    with caplog.at_level(logging.ERROR, "headrace"):
        await eventually(rescued)
    assert "job b cannot be read and is left out" in caplog.text
