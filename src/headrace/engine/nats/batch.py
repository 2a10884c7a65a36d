"""From a transaction to messages: which operations belong together, and what guards them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeVar, cast

import msgspec
from msgspec import Struct

from headrace.core.admission import Verdict
from headrace.core.change import Applied, NotApplied
from headrace.core.claims import Claimed
from headrace.core.event import rfc3339
from headrace.core.model import Job
from headrace.core.states import FINAL
from headrace.engine.nats import edges, message
from headrace.engine.nats import layout as names
from headrace.engine.nats.layout import Layout
from headrace.engine.nats.message import PROVISIONAL
from headrace.engine.nats.parts import Domain, Draft, KeyRecord, Known, Part, Timer, job_part
from headrace.engine.nats.tickets import DUE, RUN, Place, line_of
from headrace.engine.nats.transaction import Transaction, replace
from headrace.engine.nats.wire.jetstream import Pending

T = TypeVar("T")

CHUNK = 200
"""So many dependents are named in one message of their parent."""

REST = 2000
"""Milliseconds after which somebody else goes on with what was left unfinished."""

AHEAD = 300
"""Milliseconds by which a worker is told of a job before it is due: the server's timers fire up to
a quarter of a second late."""

_LAST = 253_402_300_799_999
"""The end of the year 9999, which is as far as times are spelled."""

ROLLUP = b"Nats-Rollup: sub\r\n"
"""Of what a subject has, only this message is to stay."""

_PASSING = b"Nats-TTL: 1s\r\n"

_FORGOTTEN = b"Nats-TTL: 1m\r\n"
"""A record that says no more than none at all: the server need not keep it."""


class Clocks(NamedTuple):
    """What time it is."""

    now: int
    """For the caller."""
    server: int
    real: bool
    """Whether nobody moves the caller's clock by hand."""


class Component(Struct):
    """Operations that share parts: they are stored together or not at all."""

    operations: set[int]
    parts: set[Part]


def components(transaction: Transaction) -> list[Component]:
    """Splits the operations of a transaction into independent ones, in their order."""
    found: list[Component] = []
    of: dict[Part, Component] = {}
    for number, touched in enumerate(transaction.touched):
        merged = Component({number}, set(touched))
        for other in {id(of[part]): of[part] for part in touched if part in of}.values():
            merged.operations |= other.operations
            merged.parts |= other.parts
            found.remove(other)
        for part in merged.parts:
            of[part] = merged
        found.append(merged)
    return sorted(found, key=lambda component: min(component.operations))


def whole(transaction: Transaction) -> Component:
    """All of its operations, as if each shared something with the others."""
    touched = transaction.touched
    return Component(set(range(len(touched))), {part for parts in touched for part in parts})


class Batch:
    """The messages of one component, stored in one step."""

    def __init__(
        self,
        transaction: Transaction,
        layout: Layout,
        component: Component,
        guard: Callable[[Part], bytes],
        clocks: Clocks,
    ) -> None:
        self._transaction, self._layout, self._guard = transaction, layout, guard
        self._component = component
        self.operations = component.operations
        self.abides = False
        """Whether it depends on the settings of a queue."""
        self._places: dict[int, int] = {}
        self._clocks = clocks
        self.messages: list[Pending] = []
        self.lines: dict[int, tuple[Place, str]] = {}
        """The lines that messages stand in, or will stand in when their timers fire."""
        self._unguarded: list[int] = []
        self._guards: dict[Part, int] = {}
        self._newest: dict[Part, int] = {}
        self._newest_draft: dict[str, int] = {}
        self._build()

    # Building

    def _build(self) -> None:
        transaction = self._transaction
        self._guards = {
            part: transaction.known[part].last
            for part in self._component.parts
            if part.kind in _GUARDED and part in transaction.known
        }
        abided = self._component.parts & transaction.abided.keys()
        self._guards |= {part: transaction.abided[part] for part in abided}
        self.abides = bool(abided)
        chosen = [n for n, owner in enumerate(transaction.owner) if owner in self.operations]
        self._places = {n: place for place, n in enumerate(chosen)}
        self._newest_draft = {transaction.drafts[n].job_id: n for n in chosen}
        for n in chosen:
            self._add_draft(transaction.drafts[n], n)
        written = set[Part]().union(*(transaction.wrote[n] for n in self.operations))
        for part in transaction.values:
            if part in written:
                self._add_part(part)
        for timer, owner in zip(transaction.timers, transaction.timed, strict=True):
            if owner in self.operations:
                self._add_timer(timer)
        for job_id in self.unfinished:
            job = self._domain(job_id).job
            assert job
            at = job.updated_at + REST
            self._add_timer(Timer(job.service, job.queue, f"rest.{job_id}", at))
        for (service, hash, note), owner in zip(transaction.notes, transaction.noted, strict=True):
            if owner in self.operations:
                subject = self._layout.note(service, hash, note.priority, note.job_id)
                self._store(subject, b"", None)
        if self.messages:
            self._guard_the_rest()

    def _add_draft(self, draft: Draft, number: int) -> None:
        job = draft.job
        if job and draft.body is not None:
            subject = self._layout.prefix(job.spec) + draft.kind.encode()
            traced = message.trace(job.spec.context)
            self._store(subject, draft.body, job_part(draft.job_id), traced)
            return
        domain = self._domain(draft.job_id)
        payload = (
            message.written(
                job,
                self._distance(self._places[number]),
                event=draft.event,
                error=draft.error,
                clears=draft.clears,
                told=draft.told,
                sure=draft.sure,
                kind=draft.kind,
            )
            if job
            else message.removed(draft.job_id)
        )
        if job is None:
            job = self._before(draft.job_id)
            subject = self._layout.prefix(job.spec) + draft.kind.encode()
        elif self._newest_draft[draft.job_id] == number:
            subject = self._layout.happening(job, draft.kind, not domain.children)
        else:
            subject = self._layout.prefix(job.spec) + draft.kind.encode()
        traced = message.trace(draft.event.context) if draft.event else b""
        if line := line_of(subject):
            self.lines[len(self.messages)] = line
        self._store(subject, payload, job_part(draft.job_id), traced)

    def _before(self, job_id: str) -> Job:
        """A job that the transaction removes, as it was."""
        known = cast(Domain, self._transaction.known[job_part(job_id)].value)
        return known.job or self._earlier(job_id)

    def _earlier(self, job_id: str) -> Job:
        """A job that was made and removed in one transaction."""
        return next(d.job for d in self._transaction.drafts if d.job_id == job_id and d.job)

    def _domain(self, job_id: str) -> Domain:
        part = job_part(job_id)
        values = self._transaction.values
        return values[part] if part in values else self._transaction.known[part].value

    def _distance(self, own: int) -> Callable[[int], int]:
        """How the message at place `own` of the batch spells sequences: those of the batch as
        distances, -1 for itself."""
        base, places = self._transaction.base, self._places
        return lambda seq: places[seq - base] - own - 1 if seq >= PROVISIONAL else seq

    def _add_part(self, part: Part) -> None:
        value = self._transaction.values[part]
        match part.kind:
            case "job":
                self._add_edges(part, value)
            case "key":
                self._add_record(part, self._key_written(value), value.empty)
            case "dedup" | "tally" | "floor":
                self._add_record(part, msgspec.json.encode(value), value is None)
            case _:
                raise AssertionError(part)

    def _key_written(self, record: KeyRecord) -> bytes:
        distance = self._distance(len(self.messages))
        members = {
            job_id: replace(member, seq=distance(member.seq))
            if member.seq >= PROVISIONAL
            else member
            for job_id, member in record.members.items()
        }
        return msgspec.json.encode(replace(record, members=members))

    def _add_record(self, part: Part, payload: bytes, empty: bool) -> None:
        self._store(self._guard(part), payload, part, ROLLUP + _FORGOTTEN * empty)

    def _add_edges(self, part: Part, now: Domain) -> None:
        known = self._transaction.known.get(part)
        before = cast(Domain, known.value) if known else Domain()
        if now.children != before.children:
            old, new = _chunks(before.children), _chunks(now.children)
            old += [()] * (len(new) - len(old))
            new += [()] * (len(old) - len(new))
            spec = (now.job or before.job or self._earlier(part.name)).spec
            for number, (was, is_) in enumerate(zip(old, new, strict=True)):
                if was != is_:
                    subject = self._layout.prefix(spec) + f"{names.EDGES}.{number}".encode()
                    self._store(subject, msgspec.json.encode(is_), part, ROLLUP)
        if now.job is None:
            return
        fresh = before.job is None or before.job.seq != now.job.seq
        for parent_id, edge in now.parents.items():
            if fresh or before.parents.get(parent_id) != edge:
                subject = self._layout.prefix(now.job.spec) + f"{names.PARENT}.{parent_id}".encode()
                self._store(subject, edges.written(edge), part, ROLLUP)

    def _add_timer(self, timer: Timer) -> None:
        service, queue, what, at, body = timer
        subject, fired = self._layout.timer(service, queue, what), self._layout.fired(*timer[:3])
        now, server, real = self._clocks
        starts = what.startswith(f"{RUN}.")
        self.lines[len(self.messages)] = Place(service, queue), DUE
        if starts and not real:
            self._store(subject, b"%d" % at, None, ROLLUP)
            subject = self._layout.timer(service, queue, f"wake.{what}")
        body = body or b"%d" % at
        if starts and real:
            at -= AHEAD
            if at <= now:  # no timer is that quick
                self._store(fired, body, None)
                return
        self._store(subject, body, None, schedule(at - now + server, fired))

    # Guarding

    def _store(self, subject: bytes, payload: bytes, part: Part | None, more: bytes = b"") -> None:
        expected = self._guards.pop(part, None) if part else None
        if part:
            self._newest[part] = len(self.messages)
        if expected is not None:
            assert part
            more += guard_lines(self._guard(part), expected)
        elif not more.startswith(b"Nats-Schedule"):
            self._unguarded.append(len(self.messages))
        self.messages.append(Pending(subject, payload, block(more)))

    def _guard_the_rest(self) -> None:
        """What was only read is guarded too, by messages that have no guard of their own."""
        for part, expected in self._guards.items():
            lines = guard_lines(self._guard(part), expected)
            if self._unguarded:
                place = self._unguarded.pop()
                subject, payload, headers = self.messages[place]
                lines = headers[10:-2] + lines if headers else lines
                self.messages[place] = Pending(subject, payload, block(lines))
            else:
                self.messages.append(Pending(self._layout.touch(), b"", block(lines + _PASSING)))
        self._guards = {}

    def only_guards(self) -> list[Pending]:
        """Messages that change nothing, and are stored only if what was read still holds."""
        return [
            Pending(
                self._layout.touch(),
                b"",
                block(guard_lines(self._guard(part), expected) + _PASSING),
            )
            for part, expected in self._guards.items()
        ]

    # Afterwards

    def confirm(self) -> None:
        """It is stored: tells the transaction which jobs stand otherwise now."""
        self._transaction.stored |= self._newest_draft.keys()

    @property
    def size(self) -> int:
        """Bytes, as far as they can be many."""
        return sum(len(message.payload) for message in self.messages)

    @property
    def unfinished(self) -> list[str]:
        """Jobs whose dependents must be told more."""
        rest = self._transaction.unfinished.items()
        return [job_id for job_id, operation in rest if operation in self.operations]

    @property
    def believes(self) -> bool:
        """Whether it was decided on something that was not read."""
        return not self._transaction.believed.isdisjoint(self._component.parts)

    def left(self, last: int) -> Iterator[tuple[Part, Known | None]]:
        """The parts that were written, as they are now; None for those not worth remembering."""
        number = self.numbered(last)
        first = last - len(self.messages) + 1
        for part, place in self._newest.items():
            value = self._transaction.values.get(part, _UNWRITTEN)
            if value is _UNWRITTEN:
                value = self._transaction.known[part].value
            if isinstance(value, Domain):
                job = value.job
                if job is None or job.state in FINAL:
                    yield part, None
                    continue
                draft = self._newest_draft.get(part.name)
                newest = value.newest if draft is None else first + self._places[draft]
                job = renumbered(job, number)
                yield (
                    part,
                    Known(
                        replace(value, job=job, newest=newest, last=first + place), first + place
                    ),
                )
            elif isinstance(value, KeyRecord):
                members = {
                    id: replace(m, seq=number(m.seq)) if m.seq >= PROVISIONAL else m
                    for id, m in value.members.items()
                }
                yield part, Known(replace(value, members=members), first + place)
            else:
                yield part, Known(value, first + place)

    def numbered(self, last: int) -> Callable[[int], int]:
        """The sequence that each provisional one became."""
        first = last - len(self.messages) + 1
        base, places = self._transaction.base, self._places
        return lambda seq: first + places[seq - base] if seq >= PROVISIONAL else seq


_UNWRITTEN = object()
_GUARDED = frozenset({"job", "key", "dedup", "tally", "floor"})


def block(lines: bytes) -> bytes:
    """A header block of complete lines."""
    return b"NATS/1.0\r\n%b\r\n" % lines if lines else b""


def guard_lines(filter: bytes, expected: int) -> bytes:
    """The header lines that refuse a message where anything was stored since."""
    return (
        b"Nats-Expected-Last-Subject-Sequence: %d\r\n"
        b"Nats-Expected-Last-Subject-Sequence-Subject: %b\r\n" % (expected, filter)
    )


def schedule(at: int, target: bytes) -> bytes:
    """The header lines of a message that the server sends on at a time of its own clock."""
    at = min(at, _LAST)
    return b"Nats-Schedule: @at %b\r\nNats-Schedule-Target: %b\r\n" % (rfc3339(at).encode(), target)


def _chunks(ids: tuple[str, ...]) -> list[tuple[str, ...]]:
    return [ids[start : start + CHUNK] for start in range(0, len(ids), CHUNK)]


def renumbered(job: Job, number: Callable[[int], int]) -> Job:
    """The job with its sequences given by `number`."""
    if job.version < PROVISIONAL and job.seq < PROVISIONAL and job.token < PROVISIONAL:
        return job
    return replace(job, seq=number(job.seq), version=number(job.version), token=number(job.token))


def settled(answer: T, number: Callable[[int], int]) -> T:
    """An answer with real sequences in the place of provisional ones."""
    return cast(T, _settled(answer, number))


def _settled(answer: object, number: Callable[[int], int]) -> object:
    match answer:
        case Job():
            return renumbered(answer, number)
        case Verdict() | Applied() | NotApplied():
            return replace(answer, job=renumbered(answer.job, number)) if answer.job else answer
        case Claimed():
            jobs = tuple(renumbered(job, number) for job in answer.jobs)
            return replace(answer, jobs=jobs)
        case list():
            return [_settled(item, number) for item in cast(list[object], answer)]
        case tuple():
            items = cast(tuple[object, ...], answer)
            return tuple(_settled(item, number) for item in items)
        case _:
            return answer
