"""The lab's handler for child processes, which find it by its name."""

from __future__ import annotations

import os
import resource
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from headrace.runtime.context import JobContext
from headrace.testing.lab.conduct import Conduct
from headrace.testing.lab.history import Plan
from headrace.testing.lab.notes import Notes
from headrace.testing.lab.panel import Panel

FOLDER = "HEADRACE_LAB_FOLDER"
"""The variable that names the folder of the run."""


def crunch(ctx: JobContext, mood: str = "easy", tenant: str = "") -> Any:
    """Behaves as those in threads do."""
    return _conduct().plod(ctx, mood)


@cache
def _conduct() -> Conduct:
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))  # the disk of its worker may be full
    folder = Path(os.environ[FOLDER])
    plan = msgspec.json.decode((folder / "plan.json").read_bytes(), type=Plan)
    notes = Notes(folder / "notes" / f"child-{os.getpid()}.jsonl")
    return Conduct(plan.seed, Panel(folder / "panel"), notes)
