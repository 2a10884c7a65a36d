"""The evidence of a run: gathered by the public API, kept in the run's folder, read again."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar, cast

import msgspec

from headrace.app.app import App
from headrace.core import codec
from headrace.core.model import Job
from headrace.testing.lab.history import Entry, History, Plan, Stored
from headrace.testing.lab.notes import read

T = TypeVar("T")


async def gather(app: App, folder: Path) -> None:
    """Writes down the journal, and the jobs as they stand."""
    entries = [Entry.of(entry.event) async for entry in app.events()]
    jobs = [stored(job) async for job in app.find(limit=None)]
    _write(folder / "journal.jsonl", entries)
    _write(folder / "jobs.jsonl", jobs)


def keep(history: History, folder: Path) -> None:
    """Writes a whole history down, as a run does bit by bit."""
    (folder / "notes").mkdir(parents=True)
    (folder / "plan.json").write_bytes(msgspec.json.encode(history.plan))
    _write(folder / "notes" / "all.jsonl", history.notes)
    _write(folder / "journal.jsonl", history.entries)
    _write(folder / "jobs.jsonl", history.stored.values())


def stored(job: Job) -> Stored:
    """A job as the checker wants it."""
    result = None if job.result is None else codec.decode_any(job.result)
    token = cast("dict[str, object]", result).get("token") if isinstance(result, dict) else None
    return Stored(
        id=job.id,
        state=str(job.state),
        version=job.version,
        tries=job.tries,
        token=job.token,
        result_token=token if isinstance(token, int) else None,
    )


def load(folder: Path) -> History:
    """The history of the run whose evidence is in the folder."""
    plan = msgspec.json.decode((folder / "plan.json").read_bytes(), type=Plan)
    notes = [note for path in sorted((folder / "notes").iterdir()) for note in read(path)]
    jobs = {one.id: one for one in _read(folder / "jobs.jsonl", Stored)}
    return History(plan, _read(folder / "journal.jsonl", Entry), jobs, notes)


def _write(path: Path, records: Iterable[msgspec.Struct]) -> None:
    path.write_bytes(b"".join(msgspec.json.encode(record) + b"\n" for record in records))


def _read(path: Path, kind: type[T]) -> list[T]:
    decoder = msgspec.json.Decoder(kind)
    return [decoder.decode(line) for line in path.read_bytes().splitlines()]
