"""Pulling messages from a consumer, and saying what became of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, NamedTuple

from headrace.engine.nats.wire.connection import Connection
from headrace.engine.nats.wire.errors import ProtocolError, WireError
from headrace.engine.nats.wire.headers import status

Deliver = Callable[[bytes, bytes, bytes | None, bytes], None]
"""`deliver(subject, ack_reply, headers, payload)`."""

NEW_LINK = 0
"""Given to `on_empty` when what was asked for has gone with its link, and there is a new one."""

OVERDUE = 5.0
"""Seconds after its end at which a request that the server has not ended is taken for lost."""


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
        self.deliver = deliver
        self._connection, self._subject = connection, subject
        self._on_empty = on_empty
        self._loop = asyncio.get_running_loop()
        self._free: list[_Slot] = []
        self._busy: set[_Slot] = set()
        self._timer: asyncio.TimerHandle | None = None
        connection.join(self)

    def ask(self, batch: int, expires: float = 30.0, no_wait: bool = False) -> None:
        """Asks for so many messages more; raises `Disconnected` where nobody can be asked."""
        slot = self._free.pop() if self._free else _Slot(self, self._connection)
        if no_wait:
            body, expires = b'{"batch":%d,"no_wait":true}' % batch, 0.0
        else:
            body = b'{"batch":%d,"expires":%d}' % (batch, int(expires * 1e9))
        try:
            self._connection.send(self._subject, body, slot.inbox, b"")
        except WireError:
            slot.close()
            raise
        slot.left, slot.deadline = batch, self._loop.time() + expires + OVERDUE
        self._busy.add(slot)
        self.outstanding += batch
        if self._timer is None:
            self._timer = self._loop.call_at(slot.deadline, self._check)

    def close(self) -> None:
        """No more messages; what is delivered already may still be acknowledged."""
        self._connection.leave(self)
        if self._timer is not None:
            self._timer.cancel()
        self._discard([*self._busy, *self._free])
        self._free.clear()

    # what the slots tell

    def met(self, slot: _Slot) -> None:
        """All that was asked for has come; the server says nothing of it."""
        self._busy.discard(slot)
        self._free.append(slot)

    def ended(self, slot: _Slot, code: int) -> None:
        """The request has ended before."""
        self.outstanding -= slot.left
        slot.left = 0
        self.met(slot)
        self._empty(code)

    def gone(self, slot: _Slot) -> None:
        """The slot has ended with its link."""
        if slot in self._free:
            self._free.remove(slot)
        elif slot in self._busy:
            self._discard([slot])
            if self._connection.connected:
                self._empty(NEW_LINK)

    def _discard(self, slots: Iterable[_Slot]) -> None:
        """Forgets slots for which something may still come: they must not be used again."""
        for slot in slots:
            self._busy.discard(slot)
            self.outstanding -= slot.left
            slot.close()

    def _check(self) -> None:
        """Drops requests whose end was lost."""
        self._timer, now = None, self._loop.time()
        overdue = [slot for slot in self._busy if slot.deadline <= now]
        self._discard(overdue)
        if self._busy:
            nearest = min(slot.deadline for slot in self._busy)
            self._timer = self._loop.call_at(nearest, self._check)
        if overdue:
            self._empty(408)

    def _empty(self, code: int) -> None:
        if self._on_empty is not None:
            self._on_empty(code)

    # what the connection tells

    def up(self) -> None:
        """What is asked from now on is asked on the new link."""
        self._free.clear()
        if not self._busy:
            self._empty(NEW_LINK)

    def down(self, error: Callable[[], WireError]) -> None:
        self._discard(list(self._busy))

    def denied(self, subject: bytes, error: Callable[[], WireError]) -> None:
        if subject == self._subject and self._busy:
            self._discard(list(self._busy))
            self._empty(403)

    def sweep(self) -> None:
        pass

    def waiting(self) -> list[asyncio.Future[Any]]:
        return [slot.over() for slot in self._busy]


class _Slot:
    """An inbox for one request at a time: messages do not tell which request they answer."""

    __slots__ = ("_over", "_puller", "_subscription", "deadline", "inbox", "left")

    def __init__(self, puller: Puller, connection: Connection) -> None:
        self.inbox = connection.inbox()
        self.left, self.deadline = 0, 0.0
        self._puller = puller
        self._over: asyncio.Future[None] | None = None
        self._subscription = connection.subscribe(self.inbox, self._received, pinned=self._gone)

    def _received(
        self, subject: bytes, reply: bytes | None, headers: bytes | None, payload: bytes
    ) -> None:
        if not self.left:
            return
        puller = self._puller
        if reply is not None:
            self.left -= 1
            puller.outstanding -= 1
            if not self.left:
                self._settle()
                puller.met(self)
            puller.deliver(subject, reply, headers, payload)
        else:
            code = status(headers)
            if code >= 400:
                self._settle()
                puller.ended(self, code)

    def over(self) -> asyncio.Future[None]:
        """Done when the request has ended, one way or the other."""
        self._over = asyncio.get_running_loop().create_future()
        self._over.add_done_callback(lambda over: over.cancelled() or over.exception())
        return self._over

    def close(self) -> None:
        self.left = 0
        self._settle()
        self._subscription.close()

    def _gone(self) -> None:
        self._puller.gone(self)

    def _settle(self) -> None:
        if self._over is not None and not self._over.done():
            self._over.set_result(None)


# What becomes of a message. Nothing is said while there is no connection, or one that does not keep
# up: the consumer delivers it again when its time is up.


def ack(connection: Connection, reply: bytes) -> None:
    """It is done."""
    link = connection.link
    if link is not None:
        link.write_later(b"PUB %b 4\r\n+ACK\r\n" % reply)


def in_progress(connection: Connection, reply: bytes) -> None:
    """It is being worked on: its time starts anew."""
    with suppress(WireError):
        connection.publish(reply, b"+WPI")


def nak(connection: Connection, reply: bytes, delay: float = 0.0) -> None:
    """It is to be delivered again, after the delay."""
    word = b'-NAK {"delay":%d}' % int(delay * 1e9) if delay else b"-NAK"
    with suppress(WireError):
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
