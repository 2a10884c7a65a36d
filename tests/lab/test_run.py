"""Short runs of the lab with fixed seeds: real processes, real faults, the whole checker."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.testing.lab import evidence
from headrace.testing.lab.checker import violations
from headrace.testing.lab.deployment import SqliteDeployment, deployment
from headrace.testing.lab.explain import explain
from headrace.testing.lab.faults import FAULTS
from headrace.testing.lab.notes import Fault
from headrace.testing.lab.run import Outcome, Setup, run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def told(outcome: Outcome) -> str:
    shown = outcome.violations[:3]
    return "\n\n".join(explain(outcome.history, violation) for violation in shown)


@pytest.mark.parametrize("engine", ["sqlite", "nats"])
async def test_every_promise_is_kept_while_everything_goes_wrong(
    tmp_path: Path, engine: str
) -> None:
    setup = Setup(seed=4, seconds=9, jobs=120, quiet=120)
    outcome = await run(deployment(engine), setup, tmp_path / "run")
    assert outcome.violations == [], told(outcome)
    history = outcome.history
    assert len(history.jobs) >= 120
    assert len({fault.kind for fault in history.of(Fault)}) >= 4
    again = evidence.load(tmp_path / "run")
    assert violations(again) == [], "the evidence must tell the same when it is read again"
    assert again.entries == history.entries


@pytest.mark.parametrize(
    ("equip", "check"),
    [
        ("tests.lab.sabotage:lossy", "only_the_owner_writes"),
        ("tests.lab.sabotage:hasty", "nothing_starts_early"),
    ],
)
async def test_engine_that_breaks_a_promise_is_found_out(
    tmp_path: Path, equip: str, check: str
) -> None:
    stalls = {"stall-worker": FAULTS["stall-worker"]}
    setup = Setup(seed=2, seconds=3, jobs=60, workers=2, kinds=stalls, quiet=5, equip=equip)
    outcome = await run(SqliteDeployment(), setup, tmp_path / "run")
    assert check in {violation.check for violation in outcome.violations}
