"""Lines: the consumers through which the workers of a queue share what can start.

A line hands out tickets, not jobs: a ticket says that a job may be able to start, and whoever
holds it asks the job. It is taken back (`nak`) where the job was not taken, and given up (`ack`)
where it was, or where the ticket is out of date. No job depends on one: the guard decides.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

import msgspec

from headrace.core.errors import EngineUnavailable
from headrace.engine.nats.errors import CONFLICTS, translated
from headrace.engine.nats.batch import block, guard_lines
from headrace.engine.nats.layout import Layout
from headrace.engine.nats.wire.connection import Connection
from headrace.engine.nats.wire.errors import ApiError, Disconnected
from headrace.engine.nats.wire.jetstream import JetStream
from headrace.engine.nats.wire.pull import Puller, ack, ack_tokens, nak

EARLY = "early"
DUE = "due"

WINDOW = 256
"""So many tickets of jobs that are out of order are looked at to find the first."""

FRESH = 5.0
"""Seconds for which it is believed which lines a queue has."""

ANSWER = 5.0
"""Seconds that the server may take to say that a line is empty."""

ACK_WAIT = 30_000_000_000
MAX_PENDING = 200_000


class Place(NamedTuple):
    """A queue of a service."""

    service: str
    queue: str


class Ticket(NamedTuple):
    """Says that a job may be able to start, or that someone should look."""

    seq: int
    subject: bytes
    reply: bytes
    payload: bytes
    delivered: int
    pending: int

    @property
    def is_due(self) -> bool:
        """Whether a timer left it."""
        return self.subject.split(b".", 2)[1] == b"due"

    @property
    def what(self) -> tuple[str, str]:
        """`("job", id)`, or what a timer was set for: `run`, `expire` or `lease`, and whose."""
        tokens = self.subject.decode().split(".")
        return (tokens[4], tokens[5]) if self.is_due else ("job", tokens[4])

    @property
    def event(self) -> str:
        return self.subject.decode().split(".")[5]


class Home(Protocol):
    """What lines need of their session."""

    js: JetStream
    connection: Connection
    layout: Layout
    replicas: int


class _Draw:
    """Pulls from one consumer, one request at a time."""

    def __init__(self, home: Home, consumer: str) -> None:
        self._home, self._consumer = home, consumer
        self._puller: Puller | None = None
        self._got: list[Ticket] = []
        self._wanted = 0
        self._done: asyncio.Future[int] | None = None

    async def take(self, want: int) -> tuple[list[Ticket], int]:
        """At most `want` tickets that are there now, and the status that ended the request."""
        if self._puller is None:
            js = self._home.js
            self._puller = js.pull(
                self._home.layout.stream, self._consumer, self._deliver, self._empty
            )
        self._got, self._wanted = [], want
        self._done = asyncio.get_running_loop().create_future()
        self._puller.ask(want, no_wait=True)
        try:
            async with asyncio.timeout(ANSWER):
                status = await self._done
        except TimeoutError:
            status = 408
        self._done = None
        got, self._got = self._got, []
        return got, status

    def _deliver(self, subject: bytes, reply: bytes, headers: bytes | None, payload: bytes) -> None:
        info = ack_tokens(reply)
        self._got.append(
            Ticket(info.stream_seq, subject, reply, payload, info.delivered, info.pending)
        )
        if len(self._got) >= self._wanted and self._done and not self._done.done():
            self._done.set_result(200)

    def _empty(self, status: int) -> None:
        if self._done and not self._done.done():
            self._done.set_result(status)

    def close(self) -> list[Ticket]:
        """Gives up; the tickets that came too late."""
        if self._puller is not None:
            self._puller.close()
        return self._got


class Line:
    """The lines of one queue."""

    def __init__(self, home: Home, place: Place) -> None:
        self._home, self.place = home, place
        self._names: list[str] = []
        self._read_at = -FRESH
        self._draws: dict[str, _Draw] = {}
        self._lock = asyncio.Lock()
        self.kept: dict[bytes, Ticket] = {}
        """Tickets that were looked at and may be looked at again."""

    def forget(self) -> None:
        """Which lines there are must be read again."""
        self._read_at = -FRESH

    async def names(self) -> list[str]:
        """The lines that the queue has, the best priority first."""
        now = asyncio.get_running_loop().time()
        if now - self._read_at > FRESH:
            layout = self._home.layout
            with translated("reading the lines of a queue"):
                found = await self._home.js.last(layout.stream, [layout.lines(*self.place)])
            self._names = msgspec.json.decode(found[0].payload, type=list[str]) if found else []
            self._read_at = now
        return self._names

    async def gather(self, want: int, paused: bool) -> tuple[list[Ticket], bool]:
        """Tickets enough to find the first `want` jobs among them, and whether there are more.
        They are the caller's now."""
        async with self._lock:
            names = await self.names()
            if paused:
                names = [name for name in names if name == DUE]
            try:
                drawn = await asyncio.gather(*(self._draw(name, want) for name in names))
            except Disconnected as error:
                raise EngineUnavailable(f"claiming jobs: {error}") from error
            more = any(len(tickets) >= asked > 0 for tickets, asked in drawn)
            found = [*self.kept.values(), *(ticket for tickets, _ in drawn for ticket in tickets)]
            self.kept.clear()
            return found, more

    async def _draw(self, name: str, want: int) -> tuple[list[Ticket], int]:
        held = sum(_line_of(ticket) == name for ticket in self.kept.values())
        wanted = (max(want, WINDOW) if name in (EARLY, DUE) else want) - held
        if wanted <= 0:
            return [], 0
        draw = self._draws.get(name)
        if draw is None:
            draw = self._draws[name] = _Draw(self._home, self.consumer(name))
        tickets, status = await draw.take(wanted)
        if status in (409, 503):
            await self._create(name)
        return tickets, wanted

    # What becomes of tickets

    def give_up(self, tickets: Iterable[Ticket]) -> None:
        """They have been used, or are out of date."""
        for ticket in tickets:
            ack(self._home.connection, ticket.reply)

    def give_back(self, tickets: Iterable[Ticket], delay: float | None = None) -> None:
        """Somebody else may have them."""
        for ticket in tickets:
            nak(self._home.connection, ticket.reply, delay)

    def keep(self, tickets: Iterable[Ticket]) -> None:
        """They will be looked at again here."""
        self.kept.update((ticket.reply, ticket) for ticket in tickets)

    def close(self) -> None:
        for draw in self._draws.values():
            for ticket in draw.close():
                self.kept[ticket.reply] = ticket
        self.give_back(list(self.kept.values()))

    # Consumers

    def consumer(self, name: str) -> str:
        return f"{self.place.service}~{self.place.queue}~{name}"

    async def ensure(self, names: Sequence[str]) -> None:
        """Sees to it that the queue has these lines before anything stands in them."""
        layout, js = self._home.layout, self._home.js
        subject = layout.lines(*self.place)
        while True:
            with translated("reading the lines of a queue"):
                found = await js.last(layout.stream, [subject])
            have: list[str] = (
                msgspec.json.decode(found[0].payload, type=list[str]) if found else []
            )
            missing = [name for name in names if name not in have]
            if not missing:
                self._names = have
                return
            for name in missing:
                await self._create(name)
            lines = guard_lines(subject, found[0].seq if found else 0) + b"Nats-Rollup: sub\r\n"
            body = msgspec.json.encode(sorted([*have, *missing]))
            try:
                await js.store(subject, body, block(lines))
            except ApiError as error:
                if error.err_code not in CONFLICTS:
                    with translated("adding a line to a queue"):
                        raise
            self.forget()

    async def _create(self, name: str) -> None:
        layout = self._home.layout
        consumer = self.consumer(name)
        config: dict[str, object] = {
            "durable_name": consumer,
            "name": consumer,
            "ack_policy": "explicit",
            "deliver_policy": "all",
            "replay_policy": "instant",
            "ack_wait": ACK_WAIT,
            "max_deliver": -1,
            "max_ack_pending": MAX_PENDING,
            "filter_subject": self._filter(name),
        }
        body = {"stream_name": layout.stream, "config": config, "action": ""}
        with translated("adding a line to a queue"):
            await self._home.js.api(f"CONSUMER.CREATE.{layout.stream}.{consumer}", body)

    def _filter(self, name: str) -> str:
        layout = self._home.layout
        if name == EARLY:
            return layout.early(*self.place)
        if name == DUE:
            return layout.due(*self.place)
        return layout.ready(*self.place, int(name))


def _line_of(ticket: Ticket) -> str:
    if ticket.is_due:
        return DUE
    tokens = ticket.subject.split(b".")
    return EARLY if tokens[6] == b"early" else tokens[8].decode()


def line_of(subject: bytes) -> tuple[Place, str] | None:
    """The line that a message stands in, or will stand in when its timer fires."""
    tokens = subject.decode().split(".")
    family = tokens[1]
    if family == "timer":
        return Place(tokens[2], tokens[3]), DUE
    if family == "jobs" and len(tokens) > 6:
        if tokens[6] == "ready":
            return Place(tokens[2], tokens[7]), tokens[8]
        if tokens[6] == EARLY:
            return Place(tokens[2], tokens[7]), EARLY
    return None
