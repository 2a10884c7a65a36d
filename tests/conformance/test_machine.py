"""The state machine on every engine of this package."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from headrace.engine.memory import MemoryEngine
from headrace.engine.protocol import Engine
from headrace.engine.sqlite import SqliteEngine
from headrace.testing.machine import engine_machine

MODERATE = settings(
    max_examples=80,
    stateful_step_count=50,
    deadline=None,
    phases=(Phase.reuse, Phase.generate, Phase.shrink),
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)
LARGE = settings(
    MODERATE, max_examples=int(os.environ.get("HEADRACE_LAB_RUNS", "3000")), stateful_step_count=80
)


def memory(_: Path) -> Callable[[], Engine]:
    return MemoryEngine


def sqlite(folder: Path) -> Callable[[], Engine]:
    return lambda: SqliteEngine(Path(tempfile.mkdtemp(dir=folder)) / "jobs.db")


ENGINES = [memory, sqlite]


@pytest.mark.timeout(600)  # shrinking a failure takes its time
@pytest.mark.parametrize("make", ENGINES)
def test_engine_does_what_the_reference_does(
    make: Callable[[Path], Callable[[], Engine]], tmp_path: Path
) -> None:
    run_state_machine_as_test(engine_machine(make(tmp_path)), settings=MODERATE)


@pytest.mark.lab
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("make", ENGINES)
def test_engine_does_what_the_reference_does_for_long(
    make: Callable[[Path], Callable[[], Engine]], tmp_path: Path
) -> None:
    run_state_machine_as_test(engine_machine(make(tmp_path)), settings=LARGE)
