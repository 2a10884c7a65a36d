"""The history of a run: the journal, the jobs as they stand at the end, and everybody's notes.

Nothing here knows an engine, nor how the evidence was gathered (see `evidence`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

from msgspec import Struct

from headrace.core.event import Event
from headrace.testing.lab.notes import AnyNote, Intended, Jump, Settled, Spec, Start

N = TypeVar("N")


class QueueRules(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a queue of the run promises, from before the first job to after the last."""

    max_active: int | None = None
    rate: tuple[int, int, int] | None = None
    """Starts, per so many milliseconds, and how many at once."""
    dead_letters: bool = True
    forgets: tuple[str, ...] = ()
    """Final states whose jobs are deleted as they end."""


class Plan(Struct, frozen=True, kw_only=True):
    """How a run was set up; in its folder as `plan.json`."""

    engine: str
    url: str
    seed: int
    lease: int
    """Milliseconds."""
    concurrency: int
    mono: int
    wall: int
    """Nanoseconds of the monotonic clock, and milliseconds of the wall clock at that moment."""
    queues: dict[str, QueueRules]
    equip: str | None = None
    """`module:function` that is given the engine of every process and returns the one to use."""
    unavailable_is_unwritten: bool = True
    """Whether a store that says it is unavailable has certainly not written."""


class Entry(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One journal entry, as far as the checker wants to know."""

    seq: int
    at: int
    job: str
    event: str
    state: str
    previous: str | None = None
    queue: str = "default"
    type: str = "step"
    tries: int = 0
    max_tries: int = 0
    worker: str | None = None
    reason: str | None = None
    error: str | None = None
    run_at: int | None = None
    deadline: int | None = None
    key: str | None = None
    token: int | None = None

    @classmethod
    def of(cls, event: Event) -> Entry:
        return cls(
            seq=event.seq,
            at=event.at,
            job=event.job_id,
            event=str(event.event),
            state=str(event.state),
            previous=str(event.previous) if event.previous else None,
            queue=event.queue,
            type=event.type,
            tries=event.tries,
            max_tries=event.max_tries,
            worker=event.worker,
            reason=event.reason,
            error=event.error,
            run_at=event.run_at,
            deadline=event.deadline,
            key=event.slot.hash if event.slot else None,
            token=event.slot.token if event.slot else None,
        )


class Stored(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A job as the store has it at the end."""

    id: str
    state: str
    version: int
    tries: int = 0
    token: int = 0
    result_token: int | None = None
    """The token of the run whose result is stored; every handler of the lab returns its own."""


@dataclass(slots=True)
class Stint:
    """One time that a job was active: from its `started` to whatever ended it."""

    started: Entry
    entries: list[Entry] = field(default_factory=list[Entry])
    """What happened meanwhile, the end included."""

    @property
    def job(self) -> str:
        return self.started.job

    @property
    def token(self) -> int:
        return self.started.seq

    @property
    def end(self) -> Entry | None:
        last = self.entries[-1] if self.entries else None
        return last if last is not None and last.state != "active" else None


class Clock:
    """What the run's clock can have shown, by the monotonic clock."""

    def __init__(self, plan: Plan, jumps: list[Jump]) -> None:
        self._plan = plan
        self._spans: list[tuple[int, int, int]] = []
        """From, until, offset. Neighbours overlap while a jump was being made."""
        begin, offset = 0, 0
        for jump in sorted(jumps, key=lambda jump: jump.mono):
            self._spans.append((begin, jump.until, offset))
            begin, offset = jump.mono, jump.offset
        self._spans.append((begin, 1 << 62, offset))

    def _reading(self, mono: int, offset: int) -> int:
        return self._plan.wall + (mono - self._plan.mono) // 1_000_000 + offset

    def highest(self, first: int, last: int) -> int:
        """The latest time that was shown between two moments."""
        return max(
            self._reading(min(last, until), offset)
            for begin, until, offset in self._spans
            if begin <= last and until >= first
        )

    def lowest(self, first: int, last: int) -> int:
        """The earliest time that was shown between two moments."""
        return min(
            self._reading(max(first, begin), offset)
            for begin, until, offset in self._spans
            if begin <= last and until >= first
        )

    @property
    def span(self) -> int:
        """By how much readings can be off: between the least and the largest offset."""
        offsets = [offset for _, _, offset in self._spans]
        return max(offsets) - min(offsets)


@dataclass
class History:
    """All that is known of a run."""

    plan: Plan
    entries: list[Entry]
    stored: dict[str, Stored]
    notes: list[AnyNote]

    def of(self, *kinds: type[N]) -> Iterator[N]:
        """The notes of these kinds, by time."""
        return (note for note in self._by_time if isinstance(note, kinds))

    @cached_property
    def _by_time(self) -> list[AnyNote]:
        return sorted(self.notes, key=lambda note: note.mono)

    @cached_property
    def clock(self) -> Clock:
        return Clock(self.plan, list(self.of(Jump)))

    @cached_property
    def jobs(self) -> Mapping[str, list[Entry]]:
        """The entries of each job, in the journal's order."""
        found: defaultdict[str, list[Entry]] = defaultdict(list)
        for entry in self.entries:
            found[entry.job].append(entry)
        return dict(found)

    @cached_property
    def specs(self) -> Mapping[str, Spec]:
        """The jobs as they were meant. Who hands in an id twice means the same but for the time;
        the earlier one counts, which is the more lenient."""
        found: dict[str, Spec] = {}
        for note in self.of(Intended):
            for spec in note.jobs:
                found.setdefault(spec.id, spec)
        return found

    @cached_property
    def stints(self) -> Mapping[int, Stint]:
        """The stints of all jobs by their token, in the journal's order."""
        found: dict[int, Stint] = {}
        current: dict[str, Stint] = {}
        for entry in self.entries:
            if entry.event == "started":
                current[entry.job] = found[entry.seq] = Stint(entry)
            elif entry.job in current:
                stint = current[entry.job]
                stint.entries.append(entry)
                if entry.state != "active":
                    del current[entry.job]
        return found

    @cached_property
    def starts(self) -> Mapping[tuple[str, int], list[Start]]:
        """The handler runs by job and token."""
        found: defaultdict[tuple[str, int], list[Start]] = defaultdict(list)
        for note in self.of(Start):
            found[note.job, note.token].append(note)
        return dict(found)

    @cached_property
    def runs(self) -> Mapping[str, list[Start]]:
        """The handler runs by job, by time."""
        found: defaultdict[str, list[Start]] = defaultdict(list)
        for note in self.of(Start):
            found[note.job].append(note)
        return dict(found)

    @cached_property
    def settled(self) -> Mapping[str, list[Settled]]:
        """What workers were told of their outcomes, by job."""
        found: defaultdict[str, list[Settled]] = defaultdict(list)
        for note in self.of(Settled):
            found[note.job].append(note)
        return dict(found)
