"""Dependents on NATS: a job may have more of them than a batch holds messages."""

from __future__ import annotations

import pytest

from headrace.core import actions
from headrace.core.outcome import Completed
from headrace.core.states import State
from headrace.testing.conformance.bench import Bench

MANY = 1300


async def family(bench: Bench) -> None:
    await bench.add("parent", max_tries=1)
    for start in range(0, MANY, 100):
        children = [
            [bench.new(f"c{n:04}", queue="q2", depends_on=("parent",))]
            for n in range(start, start + 100)
        ]
        await bench.engine.insert(children, bench.now)


@pytest.mark.timeout(180)
async def test_all_dependents_of_a_completed_job_are_released(bench: Bench) -> None:
    await family(bench)
    await bench.settle(await bench.start(), Completed())
    assert (await bench.counts())["q2", State.PENDING] == MANY


@pytest.mark.timeout(180)
async def test_all_dependents_follow_a_job_that_dies_and_comes_back(bench: Bench) -> None:
    await family(bench)
    dead = await bench.kill("parent")
    assert (await bench.counts())["q2", State.UNREACHABLE] == MANY
    await bench.apply(actions.replay(dead, bench.now))
    assert (await bench.counts())["q2", State.BLOCKED] == MANY
