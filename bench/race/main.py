"""A race against what a user would pick instead, on the same store and the same machine.

python bench/race/main.py [--engine sqlite|nats] [--rounds 3] [--quick] [--page docs/benchmarks.md]
"""

from __future__ import annotations

import argparse
import compileall
import os
import platform
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness import HEADRACE, RACES, SYNC, Contestant, Failed, Race, Sizes, ground, run
from report import Outcome, Results, Side, page, put_between
from rich.console import Console
from rich.table import Table

import headrace
from headrace.engine.nats.server import server_binary

BUDGET = 420.0
"""Seconds after which no further round is begun."""

QUICK = Sizes(single=50, bulk=200, serial=50, idle=20, wide=20, rest=0.2)


def main() -> int:
    parser = argparse.ArgumentParser(description="Headrace beside its peers.")
    parser.add_argument("--engine", choices=["sqlite", "nats"], help="one race instead of all")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="few jobs: does everything run?")
    parser.add_argument("--page", type=Path, help="write the tables into this page")
    chosen = parser.parse_args()
    races = [race for race in RACES if chosen.engine in (None, race.store.lower())]
    missing = [race.peer.name for race in races if not race.peer.installed]
    if missing:
        print(f"race: {', '.join(missing)} not installed; `make race` does that", file=sys.stderr)
        return 2
    for folder in (Path(headrace.__file__).parent, Path(__file__).parent):
        compileall.compile_dir(str(folder), quiet=1)  # as pip has done with the peers
    sizes = QUICK if chosen.quick else Sizes()
    begun = time.monotonic()
    loads = [os.getloadavg()[0]]
    try:
        rounds = _run(races, chosen.rounds, sizes, begun, loads)
        outcomes = [_outcome(race, rounds, sizes) for race in races]
    except Failed as failed:
        print(f"race: {failed}", file=sys.stderr)
        return 1
    for outcome in outcomes:
        Console(width=120).print(_table(outcome, sizes))
    facts = _facts(sizes, loads, outcomes)
    print("\n".join(facts))
    print(f"took {time.monotonic() - begun:.0f} s")
    if chosen.page:
        text = chosen.page.read_text("utf-8")
        chosen.page.write_text(put_between(text, page(outcomes, facts, sizes.wide)), "utf-8")
        print(f"written to {chosen.page}")
    return 0


Rounds = dict[tuple[str, str], list[Results]]
"""Of each store and contestant, what its rounds brought."""


def _run(races: list[Race], count: int, sizes: Sizes, begun: float, loads: list[float]) -> Rounds:
    found: Rounds = {}
    for number in range(count):
        if number and time.monotonic() - begun > BUDGET * number / (number + 1):
            print(f"race: no time for round {number + 1}", file=sys.stderr)
            break
        for race in races:
            # Whoever comes second finds the machine warm: they take turns.
            order = race.contestants if number % 2 == 0 else race.contestants[::-1]
            for contestant in order:
                _say(f"round {number + 1} of {count}: {contestant.name} on {race.store}")
                results = run(race.store, contestant, sizes)
                found.setdefault((race.store, contestant.name), []).append(results)
                loads.append(os.getloadavg()[0])
    return found


def _outcome(race: Race, rounds: Rounds, sizes: Sizes) -> Outcome:
    sides = [
        _side(race, contestant, rounds[race.store, contestant.name], sizes)
        for contestant in race.contestants
    ]
    return Outcome(race.store, *sides)


def _side(race: Race, contestant: Contestant, rounds: list[Results], sizes: Sizes) -> Side:
    with ground(race.store, contestant.module) as place:
        told: dict[str, Any] = place.producer().ask("describe", concurrency=sizes.wide)
    return Side(contestant.name, rounds, told["settings"], told["versions"])


def _facts(sizes: Sizes, loads: list[float], outcomes: list[Outcome]) -> list[str]:
    rounds = min(len(side.rounds) for outcome in outcomes for side in outcome.sides)
    asked = [server_binary(), "--version"]
    server = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    return [
        f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, `make race`; medians of {rounds} interleaved"
        " rounds, and in parentheses from where to where they went",
        f"{_processor()}, {os.cpu_count()} cores, {platform.system()} {platform.release()};"
        f" load during the run {min(loads):.1f} to {max(loads):.1f} (the race itself makes some 2)",
        f"Python {platform.python_version()}, {server} with `sync_interval: {SYNC}`, one node",
        f"{sizes.single:,} single enqueues, {sizes.bulk:,} at once; {sizes.bulk:,} jobs drained"
        f" {sizes.wide} at a time, {sizes.serial:,} one at a time; {sizes.idle:,} pick-ups and"
        f" {sizes.idle:,} round trips with an idle worker",
    ]


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _table(outcome: Outcome, sizes: Sizes) -> Table:
    title = f"{HEADRACE.name} and {outcome.peer.name} on {outcome.store}"
    table = Table("", HEADRACE.name, outcome.peer.name, "ahead", title=title)
    for cells in outcome.cells(sizes.wide):
        table.add_row(*cells)
    return table


def _say(text: str) -> None:
    print(f"race: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
