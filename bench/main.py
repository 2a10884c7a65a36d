"""Benchmarks: our figures beside the raw limit of the store, in one run, interleaved.

python bench/main.py [--engine sqlite] [--only throughput|latency|backlog] [--jobs N]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import sys
import tempfile
import time
from pathlib import Path

import apsw
import backlog
import latency
import throughput
import uvloop
from figure import Figure
from rich.console import Console
from rich.table import Table

import headrace

PARTS = ("throughput", "latency", "backlog")


def main() -> int:
    parser = argparse.ArgumentParser(description="Headrace's figures beside the raw limits.")
    parser.add_argument("--engine", default="sqlite", choices=["sqlite"])
    parser.add_argument("--only", choices=PARTS, help="one part of the run")
    parser.add_argument("--jobs", type=int, default=backlog.LARGE, help="size of the large backlog")
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


async def _run(chosen: argparse.Namespace, folder: Path, say: object) -> list[Figure]:
    found: list[Figure] = []
    for part in PARTS if chosen.only is None else (chosen.only,):
        match part:
            case "throughput":
                found += await throughput.figures(folder, say)  # type: ignore[arg-type]
            case "latency":
                found += await latency.figures(folder, say)  # type: ignore[arg-type]
            case _:
                found += await backlog.figures(folder, say, chosen.jobs)  # type: ignore[arg-type]
    return found


def _machine() -> str:
    return (
        f"headrace {headrace.__version__}, Python {platform.python_version()},"
        f" SQLite {apsw.sqlite_lib_version()} (apsw {apsw.apsw_version()}),"
        f" uvloop {uvloop.__version__}, {os.cpu_count()} cores,"
        f" {platform.system()} {platform.release()}"
    )


def _table(figures: list[Figure]) -> Table:
    table = Table("figure", "ours", "limit", "ratio", "wanted", "", "note")
    for figure in figures:
        table.add_row(
            figure.name,
            f"{figure.ours:,.4g} {figure.unit}"
            if figure.ours < 1000
            else f"{figure.ours:,.0f} {figure.unit}",
            f"{figure.limit:,.4g} {figure.unit}"
            if figure.limit < 1000
            else f"{figure.limit:,.0f} {figure.unit}",
            f"{figure.ratio:.2f}",
            f">= {figure.wanted:g}",
            "ok" if figure.met else "below",
            figure.note,
        )
    return table


if __name__ == "__main__":
    sys.exit(main())
