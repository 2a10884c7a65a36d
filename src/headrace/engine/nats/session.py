"""A session: the connection of one event loop, and what is known through it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from headrace.core.errors import EngineError
from headrace.core.model import Counted, Job
from headrace.core.queue import DEFAULTS, QueueSettings, decode
from headrace.engine.nats import stream
from headrace.engine.nats.bells import Ropes
from headrace.engine.nats.claiming import Watch
from headrace.engine.nats.commit import Committer, Fault
from headrace.engine.nats.documents import Sheet
from headrace.engine.nats.errors import translated
from headrace.engine.nats.layout import WATCH, Layout
from headrace.engine.nats.lines import Line
from headrace.engine.nats.loading import Loader
from headrace.engine.nats.parts import KeyRecord, Part, Rules, Tally
from headrace.engine.nats.patience import PatientJetStream
from headrace.engine.nats.plain import Held
from headrace.engine.nats.projection import Projection
from headrace.engine.nats.tickets import DUE, EARLY, Place
from headrace.engine.nats.transaction import Transaction, replace
from headrace.engine.nats.unwatched import Unwatched
from headrace.engine.nats.wire.connection import Connection, Locate
from headrace.engine.nats.wire.errors import WireError
from headrace.engine.nats.wire.jetstream import Pending
from headrace.engine.nats.wire.options import Options
from headrace.engine.nats.wire.stored import milliseconds
from headrace.engine.protocol import QUEUE_KIND, queue_document

log = logging.getLogger("headrace.nats")

_SHEET = msgspec.json.Decoder(Sheet)

WAITING_KNOWN = 300
"""So many of the jobs that wait longest are known to a transaction that may have to drop some."""

DOCUMENTS, LINES = "documents", "lines"
"""Bells of documents that were put, and of queues that got a new line."""

FRESH = 5.0
"""Seconds for which settings of queues are believed."""

LATER = 0.002
"""Seconds after which those are woken who would have heard of a new job already if they could."""

HANDED_OUT = 10_000
"""So many jobs are known to have been handed out; far more than run at a time."""

CENSUS_KINDS = frozenset({"settings", "census", "waiting", "notes"})


class _Beat(msgspec.Struct):
    """What is read here of a worker's presence."""

    service: str = "-"


class Session:
    """Opened by `open`, closed by `close`, used in one event loop only."""

    connection: Connection
    js: PatientJetStream
    loader: Loader
    projection: Projection

    def __init__(self, layout: Layout, ropes: Ropes, projection: str | None) -> None:
        self.layout, self._ropes, self._projection_path = layout, ropes, projection
        self.fault: Fault | None = None
        self.replicas = 1
        self.created = ""
        self.watch = Watch()
        self.unwatched = Unwatched(self)
        self.held: dict[str, Held] = {}
        self.committer = Committer(self)
        self.owed: dict[str, list[Job]] = {}
        """By worker, jobs that were started for it, though it could not be told."""
        self._handed_out: dict[str, int] = {}
        """Jobs that claims have handed out lately, with their tokens."""
        self._rules: dict[Place, Rules] = {}
        self._doubts = 0
        self._settings_read = 0.0
        self._reading: asyncio.Task[None] | None = None
        self._lines: dict[Place, Line] = {}
        self._have: set[tuple[Place, str]] = set()
        self._catching_up = asyncio.Lock()
        self._wanted_replicas: int | None = None
        self._looking: asyncio.Task[None] | None = None
        self.closed = asyncio.Event()
        self._server_ahead = 0.0
        self._soon: set[str] = set()
        self._later: set[str] = set()
        """What is to be rung, and when."""

    @property
    def replicated(self) -> bool:
        return self.replicas > 1

    @property
    def repeats(self) -> int:
        """How often something was asked for again that may have happened."""
        return self.js.repeats

    async def open(
        self, options: Options, replicas: int | None, locate: Locate | None = None
    ) -> None:
        """Connects, and sees to the stream. `locate` says where a server is that may move."""
        self._wanted_replicas = replicas
        with translated("connecting"):
            self.connection = await Connection.open(
                options, on_reconnect=self._reconnected, on_error=self._complain, locate=locate
            )
        try:
            self.js = PatientJetStream(self.connection, self._stream_missing)
            self.loader = Loader(self.js, self.layout)
            self.projection = Projection(self._projection_path, self.layout)
            await self._begin(await self._ensure_stream())
            self._subscribe()
            with contextlib.suppress(WireError):  # it subscribes again with every connection
                await self.connection.flush()
        except BaseException:
            await self.connection.close()
            raise

    async def _ensure_stream(self) -> stream.StreamState:
        return await stream.ensure(
            self.js, self.layout, self.connection.server_info, self._wanted_replicas
        )

    async def _begin(self, found: stream.StreamState) -> None:
        """From here on the stream is this one."""
        self.replicas, self.created = found.replicas, found.created
        self.js.highest, self.js.anchor = found.last, None
        if self.replicated:
            with translated(f"opening the stream {self.layout.stream}"):
                await self._cast_anchor(self.layout.touch())
        self._server_ahead = found.time - time.monotonic() * 1000
        self.projection.open(f"{self.layout.stream} {self.created}")

    async def _cast_anchor(self, subject: bytes) -> None:
        """Sees to it that there is always something to read."""
        if not await self.js.last(self.layout.stream, [subject]):
            self.js.saw(await self.js.store_batch([Pending(subject, b"")]))
        self.js.anchor = subject

    def _subscribe(self) -> None:
        bell = self.layout.bell
        self.connection.subscribe(bell(DOCUMENTS), self._documents_changed)
        self.connection.subscribe(bell(LINES), self._lines_changed)
        deleted = f"$JS.EVENT.ADVISORY.STREAM.DELETED.{self.layout.stream}"
        self.connection.subscribe(deleted.encode(), self._stream_missing)

    async def close(self) -> None:
        """Commits what was accepted, gives tickets back, and hangs up."""
        self.closed.set()
        await self.committer.idle()
        for task in (self._looking, self._reading):
            if task is not None:
                task.cancel()
        self.unwatched.close()
        for line in self._lines.values():
            line.close()
        for line, ticket, _ in (*self.watch.leases.values(), *self.watch.expiries.values()):
            line.give_back([ticket])
        self._ropes.detach(self.connection)
        self._ring(self._soon)
        self._ring(self._later)
        with contextlib.suppress(Exception):
            await self.connection.flush(1.0)
        await self.connection.close()
        self.projection.close()

    # What the connection tells

    def _reconnected(self) -> None:
        """What changed meanwhile is not known, not even whether the stream is the same."""
        self.doubt_settings()
        for line in self._lines.values():
            line.forget()
        self._stream_missing()
        self._ropes.ring_all()

    def _complain(self, error: WireError) -> None:
        log.warning("%s", error)

    def _stream_missing(self, *_: object) -> None:
        """Perhaps. Whoever noticed must not wait for it: it may hold what is needed to mend it."""
        if not self.created:
            return  # it is not opened yet: whoever does that sees for himself
        if self._looking is None or self._looking.done():
            self._looking = asyncio.get_running_loop().create_task(self._look_for_stream())

    # A stream that vanished

    async def _look_for_stream(self) -> None:
        """Makes the stream again where it was deleted, and goes on with the one that is there."""
        asked = time.monotonic()
        try:
            found = await stream.info(self.js.hasty, self.layout)
            if found is None or found["created"] != self.created:
                await self._renew(found is None)
            else:
                self._compare_clocks(found, asked)
        except (WireError, EngineError) as error:
            log.debug("looking for the stream: %s", error)

    async def _renew(self, deleted: bool) -> None:
        if deleted:
            log.error(
                "the stream %s was deleted, and all jobs in it are lost; making it again",
                self.layout.stream,
            )
        else:
            log.error(
                "the stream %s was deleted and made again, and all jobs in it are lost",
                self.layout.stream,
            )
        found = await self._ensure_stream()
        for line in self._lines.values():
            line.drop()
        await self._renew_lines()
        self.doubt_settings()
        self.watch = Watch()
        self.unwatched.drop()
        self.held.clear()
        self.owed.clear()
        self.committer.forget()
        async with self._catching_up:
            await self._begin(found)
        self._ropes.ring_all()

    async def _renew_lines(self) -> None:
        """Something may stand in them already."""
        known = {place: set(line.known) for place, line in self._lines.items()}
        for place, name in self._have:
            known.setdefault(place, set()).add(name)
        self._have.clear()
        for place, names in known.items():
            await self.line(place).ensure(sorted(names | _always(place)))

    # Queues

    def known_settings(self, service: str, queue: str) -> QueueSettings | None:
        """The settings of a queue, where they are known."""
        rules = self.rules(service, queue)
        return rules.settings if rules else None

    def rules(self, service: str, queue: str) -> Rules | None:
        """The same, with the sequence that guards them. Whoever changes them rings a bell; they
        are read again from time to time, in case it was not heard."""
        if time.monotonic() - self._settings_read > FRESH and self._rules:
            self._settings_read = time.monotonic()
            self._reading = asyncio.get_running_loop().create_task(self._read_again())
        return self._rules.get(Place(service, queue))

    def doubt_settings(self) -> None:
        """They may be others by now."""
        self._doubts += 1
        self._rules.clear()

    def has_line(self, place: Place, name: str) -> bool:
        """Whether the queue is known to have this line."""
        return (place, name) in self._have

    async def settings_of(self, place: Place) -> QueueSettings:
        """The settings of a queue, read where they are not known."""
        if place not in self._rules:
            await self._read_settings([place])
        rules = self._rules.get(place)
        return rules.settings if rules else DEFAULTS

    async def paused(self, place: Place) -> bool:
        return (await self.settings_of(place)).paused

    async def _read_again(self) -> None:
        with contextlib.suppress(EngineError):  # the next time, then
            await self._read_settings(list(self._rules))

    async def _read_settings(self, places: Sequence[Place]) -> None:
        subjects = {
            self.layout.document(QUEUE_KIND, queue_document(*place)): place for place in places
        }
        with translated("reading queue settings"):
            while True:
                doubts = self._doubts
                found = await self.js.last(self.layout.stream, list(subjects))
                if doubts == self._doubts:  # else somebody has changed them meanwhile
                    break
        known = dict.fromkeys(places, Rules(DEFAULTS, 0))
        for one in found:
            sheet = _SHEET.decode(one.payload)
            settings = DEFAULTS if sheet.deleted else decode(sheet.body)
            known[subjects[one.subject]] = Rules(settings, one.seq)
        self._rules.update(known)

    def _documents_changed(self, _: bytes, __: object, ___: object, told: bytes) -> None:
        highest, *kinds = told.split(b" ")
        if QUEUE_KIND.encode() in kinds and highest.isdigit():
            self.js.saw(int(highest))
            self.doubt_settings()

    def tell_documents(self, kinds: Iterable[str]) -> None:
        """Documents of these kinds were written here."""
        if QUEUE_KIND in kinds:
            self.doubt_settings()
            self.committer.forget()
        if self.connection.connected:
            payload = f"{self.js.highest} {' '.join(kinds)}".encode()
            self.connection.publish(self.layout.bell(DOCUMENTS), payload)

    def _lines_changed(self, *_: object) -> None:
        for line in self._lines.values():
            line.forget()

    def line(self, place: Place) -> Line:
        if place not in self._lines:
            self._lines[place] = Line(self, place)
        return self._lines[place]

    async def ensure_lines(self, lines: Iterable[tuple[Place, str]]) -> None:
        """Sees to it that what is about to be stored will be found."""
        wanted: dict[Place, set[str]] = {}
        for line in lines:
            if line not in self._have:
                wanted.setdefault(line[0], set()).add(line[1])
        for place, names in wanted.items():
            names |= _always(place)
            await self.line(place).ensure(sorted(names))
            if self.connection.connected:
                self.connection.publish(self.layout.bell(LINES))
            self._have |= {(place, name) for name in names}

    def note_line(self, place: Place, name: str, seq: int) -> None:
        """What was stored stands in this line; its consumer may not know it yet."""
        if name != DUE:  # what a timer leaves comes in its own time
            self.line(place).wrote(name, seq)

    # Reading for transactions

    async def learn(self, transaction: Transaction, parts: Sequence[Part]) -> None:
        """Reads what a transaction needs to know."""
        settings = [Place(part.of, part.name) for part in parts if part.kind == "settings"]
        if settings:
            await self._read_settings(settings)
        parts_stored = [part for part in parts if part.kind not in CENSUS_KINDS]
        parts_stored += [Part("tally", p.name, p.of) for p in parts if p.kind == "census"]
        await self.loader.load(transaction, dict.fromkeys(parts_stored))
        for part in parts:
            if part.kind == "census":
                await self._take_census(transaction, part)
            elif part.kind == "notes":
                service = part.of.split(" ")[0]
                record: KeyRecord = transaction.known[Part("key", part.name, service)].value
                record = transaction.values.get(Part("key", part.name, service), record)
                notes = await self.loader.notes(service, part.name, record.taken)
                transaction.know(part, notes, -1)
                stored: KeyRecord = transaction.known[Part("key", part.name, service)].value
                await self.loader.drop_notes(service, part.name, stored.taken)
            elif part.kind == "waiting":
                await self.catch_up()
                waiting = self.projection.waiting(part.of, part.name, WAITING_KNOWN)
                transaction.know(part, waiting, -1)

    async def _take_census(self, transaction: Transaction, part: Part) -> None:
        """Counts the jobs of a queue that has got a limit."""
        tally = Part("tally", part.name, part.of)
        counts = {c.state: c.jobs for c in await self.count(part.of) if c.queue == part.name}
        known = transaction.known[tally]
        value: Tally = replace(known.value, counts=counts, counting=True)
        transaction.know(tally, value, known.last)

    # The projection

    async def catch_up(self) -> None:
        """Brings the projection to where the stream is."""
        async with self._catching_up:
            with translated("reading the journal"):
                asked = time.monotonic()
                found = await stream.info(self.js, self.layout)
                if found is not None:
                    self._compare_clocks(found, asked)
                last = found["state"]["last_seq"] if found else 0
                await self.projection.catch_up(self.js, self.layout.stream, last)

    async def count(self, service: str | None) -> list[Counted]:
        await self.catch_up()
        return self.projection.count(service)

    def tell_presence(self, worker: str, body: msgspec.Raw) -> None:
        """Lets whoever follows know that a worker is there."""
        service = msgspec.json.decode(body, type=_Beat).service
        with contextlib.suppress(WireError):  # nobody depends on it, and the next one comes soon
            self.connection.publish(self.layout.heartbeat(service, worker), bytes(body))

    def server_time(self) -> int:
        """What the server's clock shows, in milliseconds: timers go by that."""
        return round(time.monotonic() * 1000 + self._server_ahead)

    def _compare_clocks(self, found: dict[str, Any], asked: float) -> None:
        """The server's clock may be moved too, or the server be another one. Its answer was written
        between the moment it was asked and now."""
        told = milliseconds(found["ts"].encode())
        lowest, highest = told - time.monotonic() * 1000, told + 1 - asked * 1000
        self._server_ahead = min(max(self._server_ahead, lowest), highest)

    def forget(self, *ids: str) -> None:
        """What the committer remembers of these jobs is out of date."""
        if ids:
            self.committer.forget(*ids)

    def hand_out(self, job: Job) -> bool:
        """Whether this start of the job is handed out for the first time. Of two claims that lost
        their answers, each may take it for its own."""
        if self._handed_out.get(job.spec.id) == job.token:
            return False
        self._handed_out.pop(job.spec.id, None)
        self._handed_out[job.spec.id] = job.token
        if len(self._handed_out) > HANDED_OUT:
            del self._handed_out[next(iter(self._handed_out))]
        return True

    def ring_here(self, topic: str) -> None:
        """Wakes those who listen in this process."""
        self._ropes.ring_here(topic)

    def ring(self, topics: Iterable[str], later: bool = False) -> None:
        """Wakes those who listen anywhere; they read what this session has stored. What this turn
        of the event loop leads to comes first: nobody here waits for others to wake up. What most
        of them learn from their lines can be said `later`, for the others."""
        loop = asyncio.get_running_loop()
        waiting = self._later if later else self._soon
        if not waiting and later:
            loop.call_later(LATER, self._ring, waiting)
        elif not waiting:
            loop.call_soon(loop.call_soon, self._ring, waiting)
        waiting.update(topics)

    def _ring(self, waiting: set[str]) -> None:
        if waiting:
            self._ropes.ring(waiting, self.connection, self.js.highest)
            waiting.clear()


def _always(place: Place) -> set[str]:
    """The lines that a queue has whatever stands in it."""
    return {DUE} if place.queue == WATCH else {EARLY, DUE}
