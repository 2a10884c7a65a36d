"""What the processes of a run write down: one file per process, one line of JSON per note.

Every note has the time of the machine's monotonic clock, which all processes share and no nemesis
moves. What is intended is written before it is done, and what was confirmed after it.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec import Struct

from headrace.core.model import NewJob


class Spec(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A job as its producer meant it, as far as the checker wants to know."""

    id: str
    queue: str
    type: str
    created_at: int
    run_at: int
    deadline: int | None = None
    ttl: int | None = None
    key: str | None = None
    max_active: int = 1
    on_lost: str = "retry"
    dedup: str | None = None
    dedup_mode: str = "simple"
    window: int = 0
    parents: tuple[str, ...] = ()
    on_parent_failure: str = "unreachable"

    @classmethod
    def of(cls, new: NewJob) -> Spec:
        return cls(
            id=new.id,
            queue=new.queue,
            type=new.type,
            created_at=new.created_at,
            run_at=new.run_at,
            deadline=new.deadline,
            ttl=new.ttl,
            key=new.key.hash if new.key else None,
            max_active=new.key.max_active if new.key else 1,
            on_lost=str(new.key.on_lost) if new.key else "retry",
            dedup=new.dedup.key if new.dedup else None,
            dedup_mode=str(new.dedup.mode) if new.dedup else "simple",
            window=new.dedup.window if new.dedup else 0,
            parents=new.depends_on,
            on_parent_failure=str(new.on_parent_failure),
        )


class Answer(Struct, frozen=True, omit_defaults=True):
    """What became of one job that was handed in."""

    job: str
    outcome: str
    """As `submit` says it; `unavailable` where the store could not be reached."""
    reason: str | None = None


class Note(Struct, frozen=True, kw_only=True, tag_field="note", tag=str.lower, omit_defaults=True):
    """Who wrote it, and when."""

    mono: int = 0
    pid: int = 0


class Began(Note, frozen=True):
    """A process is there."""

    role: str


class Intended(Note, frozen=True):
    """Jobs are about to be handed in."""

    jobs: tuple[Spec, ...]


class Answered(Note, frozen=True):
    """The store answered for the jobs that were handed in."""

    answers: tuple[Answer, ...]


class Asked(Note, frozen=True):
    """An action on a job is about to be tried."""

    action: str
    job: str


class Done(Note, frozen=True):
    """The action was confirmed; `version` is the journal entry that it made, where it is known."""

    action: str
    job: str
    version: int | None = None


class Declined(Note, frozen=True):
    """The action was refused, or the store could not be reached."""

    action: str
    job: str
    error: str


class Gate(Note, frozen=True):
    """Between the creation of the first marker (after the pause was confirmed) and that of the
    second (before the queue was resumed) the queue starts nothing."""

    queue: str
    closed: str
    opened: str


class Start(Note, frozen=True):
    """A handler begins."""

    job: str
    number: int
    token: int
    worker: str


class End(Note, frozen=True):
    """A handler is done, one way or another."""

    job: str
    token: int
    how: str


class Settled(Note, frozen=True):
    """A worker was told what became of an outcome; `version` is the entry that it made."""

    job: str
    token: int
    applied: bool
    event: str = ""
    version: int = 0


class Mischief(Note, frozen=True):
    """A handler does something that handlers should not do."""

    kind: str


class Surprise(Note, frozen=True):
    """A process saw an error that nothing promises."""

    where: str
    error: str


class Fault(Note, frozen=True):
    """The nemesis did something, from `mono` to `until`."""

    kind: str
    target: str
    until: int


class Jump(Note, frozen=True):
    """The clock was moved, somewhere between `mono` and `until`."""

    offset: int
    until: int


class Left(Note, frozen=True):
    """A process has ended."""

    victim: int
    code: int
    killed: bool
    """The nemesis did it, or the lab asked it to leave."""


AnyNote = (
    Began
    | Intended
    | Answered
    | Asked
    | Done
    | Declined
    | Gate
    | Start
    | End
    | Settled
    | Mischief
    | Surprise
    | Fault
    | Jump
    | Left
)

_DECODER = msgspec.json.Decoder(AnyNote)
_encode = msgspec.json.Encoder().encode


class Notes:
    """The notebook of one process. Any thread may write."""

    def __init__(self, path: str | Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._lock = threading.Lock()
        self._late = b""
        self._pid = os.getpid()

    def write(self, note: AnyNote) -> None:
        """Writes with one call. Where the disk refuses, the note is kept for the next call."""
        with self._lock:
            self._late += self._line(note)
            self._flush()

    def first(self, note: AnyNote) -> None:
        """Writes before something is done; raises OSError where that is not possible."""
        with self._lock:
            line = self._line(note)
            self._late += line
            if not self._flush():
                self._late = self._late.removesuffix(line)
                raise OSError("the note could not be written; what it is about is not done")

    def _line(self, note: AnyNote) -> bytes:
        mono = note.mono or time.monotonic_ns()
        return _encode(msgspec.structs.replace(note, mono=mono, pid=self._pid)) + b"\n"

    def _flush(self) -> bool:
        try:
            written = os.write(self._file, self._late)
        except OSError:
            return False
        whole = written == len(self._late)
        # A torn line is ended, so that it spoils no other; it is written again as a whole.
        self._late = b"" if whole else b"\n" + self._late
        return whole

    def close(self) -> None:
        os.close(self._file)


def read(path: Path) -> Iterator[AnyNote]:
    """The notes of one file; a line that was torn by a full disk or a kill is passed over."""
    for line in path.read_bytes().splitlines():
        try:
            yield _DECODER.decode(line)
        except msgspec.DecodeError:
            continue
