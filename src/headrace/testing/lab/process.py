"""A process of the lab: `… -m headrace.testing.lab.process ROLE INDEX INCARNATION FOLDER LAB`,
where LAB is the process that started it."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path

import msgspec

from headrace.app.app import App
from headrace.core.errors import EngineUnavailable
from headrace.testing.lab.children import FOLDER
from headrace.testing.lab.conduct import Conduct
from headrace.testing.lab.disk import SlowDisk
from headrace.testing.lab.handlers import Eavesdropper, Handlers, open_app
from headrace.testing.lab.history import Plan
from headrace.testing.lab.notes import Began, Notes
from headrace.testing.lab.panel import Panel
from headrace.testing.lab.producer import Producer
from headrace.testing.lab.workload import QUEUES

_PDEATHSIG = 1
"""Linux: the signal that a process gets when its parent ends."""

START = 10.0
"""Seconds within which the store must be there for a worker that starts."""

GRACE = 1.0
"""Seconds that handlers get when a worker is asked to leave."""


def main(role: str, index: str, incarnation: str, where: str, lab: str) -> None:
    """Works or produces until it is told to stop, or the lab is gone."""
    _follow(int(lab))
    signal.signal(signal.SIGTERM, _leave)  # until the worker listens itself
    folder = Path(where)
    plan = msgspec.json.decode((folder / "plan.json").read_bytes(), type=Plan)
    notes = Notes(folder / "notes" / f"{role}-{index}-{incarnation}.jsonl")
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(message)s")
    logging.getLogger("headrace").addHandler(Eavesdropper(notes))
    notes.write(Began(role=role))
    panel = Panel(folder / "panel")
    _disk = SlowDisk(panel) if plan.engine == "sqlite" else None  # as long as the process lives
    app = open_app(plan, panel)
    seed = f"{plan.seed}/{role}/{index}/{incarnation}"
    random.seed(seed)  # ids and jitter too
    if role == "worker":
        os.environ[FOLDER] = where
        Handlers(app, Conduct(plan.seed, panel, notes))
        _work(app, plan)
    else:
        producer = Producer(app, notes, random.Random(seed))
        asyncio.run(_produce(producer, pauses=index == "0"))


def _leave(*_: object) -> None:
    sys.exit(0)


def _work(app: App, plan: Plan) -> None:
    """Works until told to stop. A worker that cannot open the store ends, as it should; here it is
    started again, as a supervisor would."""
    patience = time.monotonic() + START
    while True:
        try:
            app.run_worker(
                queues=list(QUEUES),
                concurrency=plan.concurrency,
                lease=plan.lease / 1000,
                grace=GRACE,
            )
            return
        except EngineUnavailable:
            if time.monotonic() > patience:
                raise
            time.sleep(0.1)


async def _produce(producer: Producer, pauses: bool) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await producer.run(stop, pauses)


def _follow(parent: int) -> None:
    """Nobody outlives the lab, not even one that was killed. On Linux the system sees to it, also
    for a process that is frozen."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGKILL)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(3)

    threading.Thread(target=watch, daemon=True).start()


if __name__ == "__main__":
    main(*sys.argv[1:])
