"""Lines: the consumers through which the workers of a queue share what can start.

A line hands out tickets, not jobs: a ticket says that a job may be able to start, and whoever
holds it asks the job. It is taken back (`nak`) where the job was not taken, and given up (`ack`)
where it was, or where the ticket is out of date. No job depends on one: the guard decides.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, Protocol

import msgspec

from headrace.core.errors import EngineUnavailable, StoreReadOnly
from headrace.engine.nats.batch import ROLLUP, block, guard_lines
from headrace.engine.nats.errors import Conflict, translated
from headrace.engine.nats.layout import Layout
from headrace.engine.nats.patience import PatientJetStream
from headrace.engine.nats.tickets import DUE, EARLY, Place, Ticket
from headrace.engine.nats.tickets import read as read_ticket
from headrace.engine.nats.wire.connection import Connection
from headrace.engine.nats.wire.errors import WireError
from headrace.engine.nats.wire.jetstream import Pending
from headrace.engine.nats.wire.pull import NEW_LINK, Puller, ack, nak
from headrace.engine.protocol import work_topic

WINDOW = 256
"""So many tickets of jobs that are out of order are looked at to find the first."""

FRESH = 5.0
"""Seconds for which it is believed which lines a queue has."""

ANSWER = 5.0
"""Seconds that the server may take to say that a line is empty."""

SILENT = -1
"""It did not say."""

GONE = (409, 503)
"""The consumer was deleted, or its leader has changed: see to it that there is one."""

PAUSES = (0.0, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0)
"""Seconds after which a consumer is asked again that was just made: on a cluster it must first find
its leader."""

NOTHING = 404
EMPTY = (200, NOTHING, 408)
"""There is nothing else in the line now."""

LINGER = 30.0
"""Seconds for which a worker lets tickets come by themselves."""

TRUST = 1.0
"""Seconds for which a line that was empty, and from which tickets come by themselves, is not asked
for any."""

SOON = 16
"""The most tickets that come by themselves to a worker that found nothing, and the most of jobs
that are out of order."""

LAG, CLUSTER_LAG = 0.2, 1.0
"""Seconds for which a consumer may not know yet what is stored."""

SCARCE, AMPLE = 0.05, 2.0
"""Seconds for which tickets are kept that were not needed: as long as nobody else has any, and
while there are more."""

HELD = 1.0
"""Seconds for which the ticket of a job that is not due yet is kept: it comes some time ahead."""

TICK = 0.001
"""Seconds by which two readings of a clock may differ that counts milliseconds."""

ACK_WAIT = 10_000_000_000
"""Nanoseconds after which the ticket of somebody who was killed is handed out again."""

MAX_PENDING = 200_000


class Home(Protocol):
    """What lines need of their session."""

    js: PatientJetStream
    connection: Connection
    layout: Layout

    @property
    def replicated(self) -> bool: ...
    def ring_here(self, topic: str) -> None: ...


class _Draw:
    """Pulls from one consumer, one request at a time."""

    def __init__(self, home: Home, consumer: str, late: Callable[[Ticket], None]) -> None:
        self._home, self._consumer, self._late = home, consumer, late
        self.seen = 0
        """The highest sequence of all that came."""
        self.bare_at = -TRUST
        """When there was nothing more in the line, as far as is known."""
        self._puller: Puller | None = None
        self._got: list[Ticket] = []
        self._wanted = 0
        self._done: asyncio.Future[int] | None = None

    async def take(self, want: int) -> tuple[list[Ticket], int]:
        """At most `want` tickets that are there now, and the status that ended the request: 200
        where all came. Those that come too late, or by themselves, are told to `late`."""
        if self._puller is None:
            self._puller = self._home.js.pull(
                self._home.layout.stream, self._consumer, self._deliver, self._empty
            )
        self._wanted = want
        done = self._done = asyncio.get_running_loop().create_future()
        try:
            self._puller.ask(want, no_wait=True)
            async with asyncio.timeout(ANSWER):
                status = await done
        except TimeoutError:
            status = SILENT
        finally:
            self._done = None
        got, self._got = self._got, []
        for ticket in got[want:]:
            self._late(ticket)  # others may be waiting for some
        return got[:want], status

    @property
    def lingers(self) -> bool:
        """Whether tickets come by themselves."""
        return self._puller is not None and self._puller.outstanding > 0

    def linger(self, want: int) -> None:
        """Lets so many tickets come by themselves for a while. More are asked for before the last
        has come: the next one would have to wait for the question."""
        if self._puller is not None and self._puller.outstanding <= want // 2:
            with suppress(WireError):
                self._puller.ask(want - self._puller.outstanding, expires=LINGER)

    def _deliver(self, subject: bytes, reply: bytes, headers: bytes | None, payload: bytes) -> None:
        ticket = read_ticket(subject, reply, payload)
        self.seen = max(self.seen, ticket.seq)
        self.bare_at = -TRUST if ticket.pending else asyncio.get_running_loop().time()
        self._home.js.saw(ticket.seq)
        if self._done is None:
            self._late(ticket)
            return
        self._got.append(ticket)
        if len(self._got) >= self._wanted and not self._done.done():
            self._done.set_result(200)

    def _empty(self, status: int) -> None:
        if status == NOTHING:
            self.bare_at = asyncio.get_running_loop().time()
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
        self._wrote: dict[str, int] = {}
        self._back: dict[str, float] = {}
        self._arrived: list[Ticket] = []
        self.cleared = 0
        """Up to where what timers left was deleted."""
        self.kept: dict[bytes, Ticket] = {}
        """Tickets that were looked at and may be looked at again."""
        self._held: dict[bytes, Ticket] = {}
        """Tickets whose time has not come."""

    @property
    def known(self) -> list[str]:
        """The lines that the queue had when they were read last."""
        return self._names

    def forget(self) -> None:
        """Which lines there are must be read again."""
        self._read_at = -FRESH

    async def names(self) -> list[str]:
        """The lines that the queue has, the best priority first."""
        now = asyncio.get_running_loop().time()
        if now - self._read_at > FRESH:
            self._names, _ = await self._read()
            self._read_at = now
        return self._names

    async def _read(self) -> tuple[list[str], int]:
        """The lines that are stored, and the sequence that guards them."""
        layout = self._home.layout
        with translated("reading the lines of a queue"):
            found = await self._home.js.last(layout.stream, [layout.lines(*self.place)])
        if not found:
            return [], 0
        return msgspec.json.decode(found[0].payload, type=list[str]), found[0].seq

    async def gather(self, want: int, paused: bool) -> tuple[list[Ticket], set[str]]:
        """The first tickets of every line, which are the caller's now, and the lines that have
        more."""
        async with self._lock:
            names = await self.names()
            if paused:
                names = [name for name in names if name == DUE]
            found, held = self._with_kept(want)
            more = {name for name, count in held.items() if count >= want}
            if not paused:
                names = [n for n in names if not self._needs_no_look(n, held.get(n, 0), want)]
            if not names:
                return found, more
            drawn = await asyncio.gather(
                *(self._draw(name, want, held.get(name, 0)) for name in names),
                return_exceptions=True,
            )
            trouble: list[BaseException] = []
            for name, answer in zip(names, drawn, strict=True):
                if isinstance(answer, BaseException):
                    trouble.append(answer)
                else:
                    tickets, full = answer
                    more |= {name} if full else set()
                    found += tickets
            if trouble:
                self.hand_on(found)
                raise trouble[0]
            return self._with_kept(want, found)[0], more

    def _with_kept(
        self, want: int, found: Sequence[Ticket] = ()
    ) -> tuple[list[Ticket], dict[str, int]]:
        """What was found, has come by itself and was kept, as much of it as is wanted, and how many
        of each line; they are the caller's now."""
        tickets, spare = list(found), list[Ticket]()
        held: dict[str, int] = {}
        for ticket in tickets:
            held[ticket.line] = held.get(ticket.line, 0) + 1
        for ticket in sorted([*self.kept.values(), *self._arrived]):  # by their place in the stream
            count = held.get(ticket.line, 0)
            if count < want or ticket.line in (EARLY, DUE):
                held[ticket.line] = count + 1
                tickets.append(ticket)
                self.kept.pop(ticket.reply, None)
            elif ticket.reply not in self.kept:
                spare.append(ticket)
        self._arrived.clear()
        self.hand_on(spare)
        return tickets, held

    def _needs_no_look(self, name: str, held: int, want: int) -> bool:
        """Whether enough of a line is there, or it was empty just now and hands out by itself what
        comes; what this session has put into it, or given back, must have come that way."""
        if held >= want and name not in (EARLY, DUE):
            return True
        draw, now = self._draws.get(name), asyncio.get_running_loop().time()
        return (
            draw is not None
            and draw.lingers
            and now - draw.bare_at < TRUST
            and draw.seen >= self._wrote.get(name, 0)
            and now > self._back.get(name, 0.0)
        )

    async def _draw(self, name: str, want: int, held: int) -> tuple[list[Ticket], bool]:
        """What is there beside the tickets that are `held`, and whether there may be more."""
        wanted = (max(want, WINDOW) if name in (EARLY, DUE) else want) - held
        if wanted <= 0:
            return [], True
        draw = self._draws.get(name)
        if draw is None:
            draw = self._draws[name] = _Draw(self._home, self.consumer(name), self._came)
        with translated("claiming jobs"):
            tickets, status = await draw.take(wanted)
            for pause in PAUSES:
                if tickets or status not in (*GONE, NEW_LINK):
                    break
                if status in GONE:
                    await self._create(name)
                await asyncio.sleep(pause)
                tickets, status = await draw.take(wanted)
            if status not in EMPTY and not tickets:
                raise _unanswered(self.consumer(name), status)
            tickets += await self._expected(name, draw, wanted - len(tickets))
        return tickets, len(tickets) >= wanted

    async def _expected(self, name: str, draw: _Draw, wanted: int) -> list[Ticket]:
        """What this session has put into the line, or given back to it, though the consumer may not
        have it yet; unless somebody else was given it, or it comes by itself."""
        clock = asyncio.get_running_loop().time
        tickets: list[Ticket] = []
        expected, back = self._wrote.pop(name, 0), self._back.pop(name, 0.0)
        deadline = clock() + (CLUSTER_LAG if self._home.replicated else LAG)
        while len(tickets) < wanted and clock() < deadline:
            if draw.seen >= expected and (tickets or draw.lingers or clock() > back):
                break
            if draw.lingers and not self._home.replicated:
                break
            handed_out = draw.lingers and await self._handed_out(name, expected)
            if not handed_out:
                await asyncio.sleep(LAG / 40)
            tickets += (await draw.take(wanted - len(tickets)))[0]
            if handed_out:
                break  # and the answer came after it, if it was handed out here
        return tickets

    async def _handed_out(self, name: str, seq: int) -> bool:
        """Whether somebody was given what was put into a line. The leader of a consumer may hear of
        it later than whoever put it there; one server does not."""
        found = await self._info(name)
        return found is None or found["delivered"]["stream_seq"] >= seq

    def wrote(self, name: str, seq: int) -> None:
        """This session put something into a line."""
        self._wrote[name] = max(seq, self._wrote.get(name, 0))

    def linger(self, want: int) -> None:
        """Lets so many tickets come by themselves; the queue's bell tells of them."""
        for name, draw in self._draws.items():
            draw.linger(min(want, SOON) if name in (EARLY, DUE) else want)

    def _came(self, ticket: Ticket) -> None:
        """A ticket came by itself; those that came with it are told of together."""
        self._arrived.append(ticket)
        if len(self._arrived) == 1:
            self._home.ring_here(work_topic(*self.place))
            asyncio.get_running_loop().call_soon(self._keep)

    def _keep(self) -> None:
        """Keeps what has come, unless a claim was quicker."""
        self.hand_on(self._arrived)
        self._arrived.clear()

    # What becomes of tickets

    def give_up(self, tickets: Iterable[Ticket]) -> None:
        """They have been used, or are out of date."""
        for ticket in tickets:
            ack(self._home.connection, ticket.reply)

    def give_back(self, tickets: Iterable[Ticket], delay: float = 0.0) -> None:
        """Somebody else may have them."""
        for ticket in tickets:
            nak(self._home.connection, ticket.reply, delay)
            if not delay:
                self._back[ticket.line] = asyncio.get_running_loop().time() + LAG

    def hold(self, ticket: Ticket, seconds: float) -> None:
        """Its time comes after so many seconds: until then it is kept, or, if that is long, given
        back."""
        if seconds > HELD:
            self.give_back([ticket], min(seconds - HELD / 2, 3600))
            return
        self._held[ticket.reply] = ticket
        asyncio.get_running_loop().call_later(seconds + TICK, self._ripe, ticket.reply)

    def _ripe(self, reply: bytes) -> None:
        ticket = self._held.pop(reply, None)
        if ticket is not None:
            self.hand_on([ticket])
            self._home.ring_here(work_topic(*self.place))

    def hand_on(self, tickets: Iterable[Ticket]) -> None:
        """Nobody needs them now. The next claim here may; after a moment others may too."""
        tickets = list(tickets)
        if not tickets:
            return
        self.kept.update((ticket.reply, ticket) for ticket in tickets)
        moment = AMPLE if any(ticket.pending for ticket in tickets) else SCARCE
        replies = [ticket.reply for ticket in tickets]
        asyncio.get_running_loop().call_later(moment, self._let_go, replies)

    def _let_go(self, replies: Sequence[bytes]) -> None:
        self.give_back([self.kept.pop(reply) for reply in replies if reply in self.kept])

    def drop(self) -> None:
        """Its stream is gone: whatever is held means nothing now."""
        self.cleared = 0
        for draw in self._draws.values():
            draw.close()
        self._draws.clear()
        self._arrived.clear()
        self.kept.clear()
        self._held.clear()
        self.forget()

    def close(self) -> None:
        late = [ticket for draw in self._draws.values() for ticket in draw.close()]
        self.give_back([*late, *self._arrived, *self.kept.values(), *self._held.values()])
        self._arrived.clear()
        self._held.clear()

    # Consumers

    def consumer(self, name: str) -> str:
        return f"{self.place.service}~{self.place.queue}~{name}"

    async def ensure(self, names: Sequence[str]) -> None:
        """Sees to it that the queue has these lines before anything stands in them."""
        subject = self._home.layout.lines(*self.place)
        while True:
            have, last = await self._read()
            missing = [name for name in names if name not in have]
            if not missing:
                self._names = have
                return
            for name in missing:
                await self._create(name)
            lines = guard_lines(subject, last) + ROLLUP
            body = msgspec.json.encode(sorted([*have, *missing]))
            with suppress(Conflict), translated("adding a line to a queue"):
                await self._home.js.store_batch([Pending(subject, body, block(lines))])
            self.forget()

    async def idle(self) -> bool:
        """Whether nothing stands in the lines, and nobody has anything of theirs in hand."""
        if self.kept or self._arrived or self._held:
            return False
        for name in await self.names():
            found = await self._info(name)
            if found is None or found["num_pending"] or found["num_ack_pending"]:
                return False
        return True

    async def floor(self, name: str) -> int:
        """The sequence up to which everything in the line was given up; 0 where nothing was."""
        found = await self._info(name) if name in await self.names() else None
        return found["ack_floor"]["stream_seq"] if found else 0

    async def _info(self, name: str) -> dict[str, Any] | None:
        """What the server tells of a line; None where it tells nothing."""
        subject = f"CONSUMER.INFO.{self._home.layout.stream}.{self.consumer(name)}"
        try:
            return await self._home.js.api(subject)
        except WireError:
            return None

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


def _unanswered(consumer: str, status: int) -> EngineUnavailable:
    if status == 403:
        return StoreReadOnly(
            f"claiming jobs: this user may not pull from the consumer {consumer}; see `headrace"
            " nats permissions --role worker` for what a worker needs"
        )
    return EngineUnavailable(f"claiming jobs: the consumer {consumer} does not answer ({status})")
