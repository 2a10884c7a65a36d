"""The state machine on NATS: on one server, and on a cluster of three."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from headrace.engine.nats import NatsEngine
from headrace.testing.machine import engine_machine
from headrace.testing.nats import NatsCluster, NatsServer
from tests.conformance.streams import remove_stream

_numbers = count(1)

SHORT = settings(
    max_examples=12,
    stateful_step_count=40,
    deadline=None,
    phases=(Phase.reuse, Phase.generate, Phase.shrink),
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)
LONG = settings(
    SHORT, max_examples=int(os.environ.get("HEADRACE_LAB_RUNS", "300")), stateful_step_count=60
)


@pytest.fixture(params=["server", "cluster"])
def make_engine(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[Callable[[], NatsEngine]]:
    servers: NatsServer | NatsCluster = request.getfixturevalue(request.param)
    made: list[NatsEngine] = []

    def remove_last() -> None:
        if made:
            asyncio.run(remove_stream(servers.url, made.pop().namespace))

    def make() -> NatsEngine:
        remove_last()
        number = next(_numbers)
        query = f"namespace=m{number}&projection={tmp_path}/{number}.db"
        made.append(NatsEngine(f"{servers.url}?{query}"))
        return made[-1]

    yield make
    remove_last()


@pytest.mark.timeout(600)  # shrinking a failure takes its time
def test_nats_does_what_the_reference_does(make_engine: Callable[[], NatsEngine]) -> None:
    run_state_machine_as_test(engine_machine(make_engine, in_parts=True), settings=SHORT)


@pytest.mark.lab
@pytest.mark.timeout(3600)
def test_nats_does_what_the_reference_does_for_long(make_engine: Callable[[], NatsEngine]) -> None:
    run_state_machine_as_test(engine_machine(make_engine, in_parts=True), settings=LONG)
