"""Pulling messages from a consumer, and saying what became of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple

from headrace.engine.nats.wire.connection import Connection
from headrace.engine.nats.wire.errors import ProtocolError, WireError
from headrace.engine.nats.wire.headers import status, value
from headrace.engine.nats.wire.subscription import Subscription

Deliver = Callable[[bytes, bytes, bytes | None, bytes], None]
"""`deliver(subject, ack_reply, headers, payload)`."""

NEW_LINK = 0
"""Given to `on_empty` when what was asked for has gone with its link, and there is a new one."""

OVERDUE = 5.0
"""Seconds after its end at which a request that the server has not ended is taken for lost."""


class _Ask:
    __slots__ = ("deadline", "inbox", "left")

    def __init__(self, inbox: bytes, left: int, deadline: float) -> None:
        self.inbox, self.left, self.deadline = inbox, left, deadline


class Puller:
    """Asks a consumer for messages. `outstanding` is how many may still come.

    `on_empty(status)` is told when a request ends short: 404 nothing there (`no_wait`), 408 its
    time is over, 409 the consumer is gone or its leader has changed, 503 nobody serves it,
    403 this user may not pull, `NEW_LINK`. Asking again is the caller's task.
    """

    def __init__(
        self,
        connection: Connection,
        subject: bytes,
        deliver: Deliver,
        on_empty: Callable[[int], None] | None = None,
    ) -> None:
        self.outstanding = 0
        self._connection, self._subject = connection, subject
        self._deliver, self._on_empty = deliver, on_empty
        self._loop = asyncio.get_running_loop()
        self._asks: dict[bytes, _Ask] = {}
        self._number = 0
        self._closed = False
        self._unplaced = 0
        self._inbox = b""
        self._subscription: Subscription | None = None
        self._timer: asyncio.TimerHandle | None = None
        connection.join(self)
        if connection.connected:
            self._subscribe()

    def ask(self, batch: int, expires: float = 30.0, no_wait: bool = False) -> None:
        """Asks for so many messages more; raises `Disconnected` where nobody can be asked."""
        self._number += 1
        reply = b"%b.%x" % (self._inbox, self._number)
        nanoseconds = int(expires * 1e9)
        if no_wait:
            body = b'{"batch":%d,"no_wait":true}' % batch
        else:
            body = b'{"batch":%d,"expires":%d}' % (batch, nanoseconds)
        self._connection.publish(self._subject, body, reply)
        self._place()
        deadline = self._loop.time() + (0 if no_wait else expires) + OVERDUE
        self._asks[reply] = _Ask(self._inbox, batch, deadline)
        self.outstanding += batch
        if self._timer is None:
            self._timer = self._loop.call_at(deadline, self._check)

    def close(self) -> None:
        """No more messages; what is delivered already may still be acknowledged."""
        self._closed = True
        self._connection.leave(self)
        if self._subscription is not None:
            self._subscription.close()
        if self._timer is not None:
            self._timer.cancel()
        self._asks.clear()
        self.outstanding = 0

    # what comes

    def _subscribe(self) -> None:
        """Every link has an inbox of its own, so that what was asked on another cannot be counted
        here."""
        inbox = self._inbox = self._connection.inbox()
        self._subscription = self._connection.subscribe(
            inbox + b".*", self._received, pinned=lambda: self._ended(inbox)
        )

    def _received(
        self, subject: bytes, reply: bytes | None, headers: bytes | None, payload: bytes
    ) -> None:
        if self._closed:
            return
        if reply is not None:
            self.outstanding -= 1
            self._unplaced += 1
            self._deliver(subject, reply, headers, payload)
            return
        code = status(headers)
        if code >= 400:
            self._place()
            ask = self._asks.pop(subject, None)
            if ask is not None:
                self._adjust(ask, value(headers, b"Nats-Pending-Messages"))
                self._empty(code)

    def _place(self) -> None:
        """Counts what was delivered against the requests, oldest first: messages do not tell which
        they answer, and the server does not say that a request was met in full."""
        for inbox, ask in list(self._asks.items()):
            met = min(ask.left, self._unplaced)
            ask.left -= met
            self._unplaced -= met
            if not ask.left:
                del self._asks[inbox]
        self._unplaced = 0
        self.outstanding = sum(ask.left for ask in self._asks.values())

    def _adjust(self, ask: _Ask, unmet: bytes | None) -> None:
        """A request has ended. If the server says with how many messages unmet, what was counted
        against this one by mistake is counted against the others."""
        if unmet is not None and unmet.isdigit():
            self._unplaced = max(0, int(unmet) - ask.left)
        self._place()

    def _check(self) -> None:
        """Drops requests whose end was lost."""
        self._timer = None
        self._place()
        now = self._loop.time()
        overdue = [reply for reply, ask in self._asks.items() if ask.deadline <= now]
        for reply in overdue:
            del self._asks[reply]
        self._place()
        if self._asks:
            nearest = min(ask.deadline for ask in self._asks.values())
            self._timer = self._loop.call_at(nearest, self._check)
        if overdue:
            self._empty(408)

    def _empty(self, code: int) -> None:
        if self._on_empty is not None:
            self._on_empty(code)

    # what the connection tells

    def up(self) -> None:
        self._subscribe()
        if not self.outstanding:
            self._empty(NEW_LINK)

    def _ended(self, inbox: bytes) -> None:
        """An inbox has gone with its link."""
        if self._closed:
            return
        self._place()
        for reply in [reply for reply, ask in self._asks.items() if ask.inbox == inbox]:
            del self._asks[reply]
        self._place()
        if self._connection.connected:
            self._empty(NEW_LINK)

    def down(self, error: Callable[[], WireError]) -> None:
        pass

    def denied(self, subject: bytes, error: Callable[[], WireError]) -> None:
        if subject == self._subject and self._asks:
            self._asks.clear()
            self._place()
            self._empty(403)

    def sweep(self) -> None:
        pass

    def waiting(self) -> list[asyncio.Future[Any]]:
        return []


# What becomes of a message. Nothing is said while there is no connection: the consumer delivers
# it again when its time is up.


def ack(connection: Connection, reply: bytes) -> None:
    """It is done."""
    link = connection.link
    if link is not None:
        link.write(b"PUB %b 4\r\n+ACK\r\n" % reply)


def in_progress(connection: Connection, reply: bytes) -> None:
    """It is being worked on: its time starts anew."""
    if connection.connected:
        connection.publish(reply, b"+WPI")


def nak(connection: Connection, reply: bytes, delay: float = 0.0) -> None:
    """It is to be delivered again, after the delay."""
    if connection.connected:
        word = b'-NAK {"delay":%d}' % int(delay * 1e9) if delay else b"-NAK"
        connection.publish(reply, word)


class AckInfo(NamedTuple):
    """What the reply subject of a delivered message tells."""

    stream_seq: int
    delivered: int
    """How often it was delivered, this time included."""
    pending: int
    """How many more match the consumer."""


def ack_tokens(reply: bytes) -> AckInfo:
    """`$JS.ACK.stream.consumer.delivered.seq.consumer_seq.time.pending`, or with domain and
    account before the stream and a random token at the end."""
    tokens = reply.split(b".")
    at = 4 if len(tokens) == 9 else 6
    try:
        return AckInfo(int(tokens[at + 1]), int(tokens[at]), int(tokens[at + 4]))
    except (IndexError, ValueError):
        raise ProtocolError(f"not the reply subject of a consumer: {reply[:256]!r}") from None
