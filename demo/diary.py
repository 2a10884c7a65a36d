"""What the handlers themselves saw: a side file that every process appends to.

The journal says what Headrace believes; the diary says what really ran. The checks at the end
compare the two.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from headrace import JobContext

PLACE = "DEMO_DIARY"


class Note(NamedTuple):
    """One line of the diary."""

    at: float
    """Seconds by the machine's monotonic clock, which all processes share."""
    what: str
    job: str
    number: int
    pid: int
    about: str


def write(what: str, ctx: JobContext, about: str) -> None:
    """Appends one line; a short append to a local file is atomic."""
    line = f"{time.monotonic()!r} {what} {ctx.id} {ctx.number} {os.getpid()} {about}\n"
    place = os.open(os.environ[PLACE], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(place, line.encode())
    finally:
        os.close(place)


@contextmanager
def noted(ctx: JobContext, about: str) -> Iterator[None]:
    """Notes when a handler begins and when it ends, also when it fails."""
    write("begin", ctx, about)
    try:
        yield
    finally:
        write("end", ctx, about)


def read(path: Path) -> list[Note]:
    """All notes, by time."""
    notes: list[Note] = []
    for line in path.read_text().splitlines():
        at, what, job, number, pid, about = line.split(" ", 5)
        notes.append(Note(float(at), what, job, int(number), int(pid), about))
    return sorted(notes)
