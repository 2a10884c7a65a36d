"""`python -m headrace.testing.lab`: runs the lab on every engine, and judges what it saw."""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from headrace.testing.lab import evidence
from headrace.testing.lab.checker import violations
from headrace.testing.lab.deployment import DEPLOYMENTS, deployment
from headrace.testing.lab.explain import explain
from headrace.testing.lab.history import History
from headrace.testing.lab.report import Tally, table
from headrace.testing.lab.run import Setup, run
from headrace.testing.lab.violation import Violation

ROUND = 40.0
"""Seconds of faults in one run; longer labs make more runs, each with a seed of its own."""

ENOUGH = 100
"""So many jobs end in a run that is worth something, if need be after a longer time: on a machine
that is busy with others, few would."""

LEASES = (1.5, 12.0)
"""Seconds of the leases of a run, in turn: engines may care for long ones in another way."""

SHOWN = 5
"""So many violations of a run are explained on the screen; the rest is in its folder."""


def main(arguments: Sequence[str] | None = None) -> int:
    """0 if every promise was kept, 1 if not, 2 for arguments that make no sense."""
    given = _parser().parse_args(arguments)
    if given.check is not None:
        history = evidence.load(Path(given.check))
        tally = Tally(history.plan.engine)
        return _judge(history, violations(history), tally, Path(given.check))
    seed = random.randrange(1 << 31) if given.seed is None else given.seed
    seconds = given.hours * 3600 if given.hours else given.minutes * 60
    engines = given.engine or list(DEPLOYMENTS)
    _say(f"lab: {', '.join(engines)}, {seconds:g} s each, seed {seed} (SEED={seed} repeats it)")
    tallies = [Tally(engine) for engine in engines]
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # nothing is left behind either way
    try:
        for tally in tallies:
            keep = Path(given.folder) if given.folder else None
            _drive(tally, seed, seconds, keep, [given.lease] if given.lease else LEASES)
    except KeyboardInterrupt:
        _say("\nlab: interrupted")
        return 130
    _say("")
    _say(table(tallies))
    return int(any(tally.violations for tally in tallies))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m headrace.testing.lab", description=__doc__)
    parser.add_argument("--engine", action="append", choices=list(DEPLOYMENTS))
    parser.add_argument("--minutes", type=_positive, default=3.0, help="for each engine")
    parser.add_argument("--hours", type=_positive, help="in place of minutes")
    parser.add_argument("--lease", type=_positive, help="seconds; else the runs take turns")
    parser.add_argument("--seed", type=int, help="one that is printed repeats a lab")
    parser.add_argument("--folder", help="keep all evidence there")
    parser.add_argument("--check", metavar="FOLDER", help="judge the evidence of a run again")
    return parser


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < 1e6:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return value


def _drive(
    tally: Tally, seed: int, seconds: float, keep: Path | None, leases: Sequence[float]
) -> None:
    """Runs one engine until its time is over."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0 or tally.runs == 0:
        number = tally.runs
        place = keep or Path(tempfile.mkdtemp(prefix="headrace-lab-"))
        folder = place / f"{tally.engine}-{seed}-{number}"
        faults = max(5.0, min(ROUND, left))
        setup = Setup(
            seed=seed + number,
            seconds=faults,
            jobs=round(ENOUGH * faults / ROUND),
            lease=leases[number % len(leases)],
        )
        found = 1
        try:
            outcome = asyncio.run(
                run(deployment(tally.engine), setup, folder, _teller(tally.engine, setup.seed))
            )
            found = _judge(outcome.history, outcome.violations, tally, folder)
        except KeyboardInterrupt:
            found = 0
            raise
        finally:
            if not found and keep is None:
                shutil.rmtree(place, ignore_errors=True)


def _judge(history: History, found: Sequence[Violation], tally: Tally, folder: Path) -> int:
    """Says what was found and writes it beside the evidence; 1 if there is anything."""
    tally.add(history, found)
    if not found:
        _say(f"  {tally.engine} {history.plan.seed}: every promise was kept")
        return 0
    told = [explain(history, violation) for violation in found]
    (folder / "violations.txt").write_text("\n\n".join(told) + "\n", "utf-8")
    for text in told[:SHOWN]:
        _say(f"\n{text}")
    _say(f"\n{len(found)} violations, seed {history.plan.seed}; the evidence is in {folder}")
    return 1


def _teller(engine: str, seed: int):
    def tell(text: str) -> None:
        _say(f"  {engine} {seed}: {text}")

    return tell


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
