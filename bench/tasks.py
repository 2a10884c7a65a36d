"""The app that the benchmark's worker processes run."""

from __future__ import annotations

import time

from headrace import App

app = App()


@app.task
async def noop(n: int) -> None:
    """Does nothing."""


@app.task
async def latency(sent: int) -> int:
    """Nanoseconds since the producer was about to enqueue; one clock for the whole machine."""
    return time.perf_counter_ns() - sent
