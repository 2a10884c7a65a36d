"""Benchmarks: our figures beside the raw limit of the store, in one run, interleaved.

python bench/main.py [--engine sqlite|nats] [--only PART] [--jobs N]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import apsw
import backlog_nats
import backlog_sqlite
import latency
import throughput
import uvloop
from figure import Figure, Say
from rich.console import Console
from rich.table import Table
from target import NatsTarget, SqliteTarget

import headrace
from headrace.engine.nats.server import server_binary

LARGE = 1_000_000

Part = Callable[[Path, Say, int], Awaitable[list[Figure]]]
"""`part(folder, say, jobs)` measures something; `jobs` is the size of the large backlog."""


async def _sqlite_rates(folder: Path, say: Say, jobs: int) -> list[Figure]:
    return await throughput.figures(SqliteTarget(folder), say)


async def _sqlite_times(folder: Path, say: Say, jobs: int) -> list[Figure]:
    return await latency.figures(SqliteTarget(folder), say)


async def _nats_rates(folder: Path, say: Say, jobs: int) -> list[Figure]:
    target = NatsTarget(folder)
    with target.running():
        return [*await throughput.figures(target, say), *await throughput.keyed(target, say)]


async def _nats_times(folder: Path, say: Say, jobs: int) -> list[Figure]:
    target = NatsTarget(folder)
    with target.running():
        return await latency.figures(target, say, prefix="nats.")


async def _cluster_rates(folder: Path, say: Say, jobs: int) -> list[Figure]:
    target = NatsTarget(folder, cluster=True)
    with target.running():
        return await throughput.figures(target, say)


ENGINES: dict[str, dict[str, Part]] = {
    "sqlite": {
        "throughput": _sqlite_rates,
        "latency": _sqlite_times,
        "backlog": backlog_sqlite.figures,
    },
    "nats": {
        "throughput": _nats_rates,
        "latency": _nats_times,
        "backlog": backlog_nats.figures,
        "cluster": _cluster_rates,
    },
}


def main() -> int:
    parser = argparse.ArgumentParser(description="Headrace's figures beside the raw limits.")
    parser.add_argument("--engine", choices=list(ENGINES), help="one engine instead of all")
    parts = {part for engine in ENGINES.values() for part in engine}
    parser.add_argument("--only", choices=sorted(parts), help="one part of the run")
    parser.add_argument("--jobs", type=int, default=LARGE, help="size of the large backlog")
    chosen = parser.parse_args()
    console = Console(stderr=True)
    start = time.perf_counter()
    with (
        tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder,
        console.status("starting") as status,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,  # as a worker does
    ):
        found = runner.run(_run(chosen, Path(folder), lambda text: status.update(text)))
    print(_machine())
    Console(width=120).print(_table(found))
    print(
        f"took {time.perf_counter() - start:.0f} s; 'limit' is the raw store, or a promised bound"
    )
    for figure in found:
        print(figure.line())
    return 0


async def _run(chosen: argparse.Namespace, folder: Path, say: Say) -> list[Figure]:
    found: list[Figure] = []
    for engine in ENGINES if chosen.engine is None else (chosen.engine,):
        for name, part in ENGINES[engine].items():
            if chosen.only in (None, name):
                found += await part(folder, say, chosen.jobs)
    return found


def _machine() -> str:
    server = subprocess.run(
        [server_binary(), "--version"], capture_output=True, text=True, check=True
    )
    return (
        f"headrace {headrace.__version__}, Python {platform.python_version()},"
        f" SQLite {apsw.sqlite_lib_version()} (apsw {apsw.apsw_version()}),"
        f" {server.stdout.strip()}, uvloop {uvloop.__version__}, {os.cpu_count()} cores,"
        f" {platform.system()} {platform.release()}, load {os.getloadavg()[0]:.1f}"
    )


def _table(figures: list[Figure]) -> Table:
    table = Table("figure", "ours", "limit", "ratio", "wanted", "", "note")
    for figure in figures:
        table.add_row(
            figure.name,
            _amount(figure.ours, figure.unit),
            _amount(figure.limit, figure.unit),
            f"{figure.ratio:.2f}",
            "" if figure.wanted is None else f">= {figure.wanted:g}",
            "" if figure.wanted is None else "ok" if figure.met else "below",
            figure.note,
        )
    return table


def _amount(value: float, unit: str) -> str:
    return f"{value:,.4g} {unit}" if value < 1000 else f"{value:,.0f} {unit}"


if __name__ == "__main__":
    sys.exit(main())
