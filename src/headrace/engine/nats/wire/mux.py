"""Questions and their answers: one inbox for many requests, told apart by a token."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from itertools import count
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from headrace.engine.nats.wire.errors import NoResponders, WireError

if TYPE_CHECKING:
    from headrace.engine.nats.wire.connection import Connection

T = TypeVar("T")


class Message(NamedTuple):
    """What subscriptions and requests deliver; headers are the raw block."""

    subject: bytes
    reply: bytes | None
    headers: bytes | None
    payload: bytes


class Mux(ABC, Generic[T]):
    """Requests on one inbox of a connection, each a future. They fail when the connection does."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._prefix = connection.inbox() + b"."
        self._skip = len(self._prefix)
        self._tokens = count(1)
        self._waiting: dict[bytes, tuple[asyncio.Future[T], bytes]] = {}
        self.inbox = self._prefix + b"*"
        connection.subscribe(self.inbox, self._answered, lingers=True)
        connection.join(self)

    def ask(self, subject: bytes, payload: bytes = b"", headers: bytes = b"") -> asyncio.Future[T]:
        """Publishes with a reply subject of its own; the answer is the future's."""
        future: asyncio.Future[T] = self._loop.create_future()
        token = b"%x" % next(self._tokens)
        try:
            self._connection.send(subject, payload, self._prefix + token, headers)
        except WireError as error:
            future.set_exception(error)
        else:
            self._waiting[token] = future, subject
        return future

    @abstractmethod
    def _settle(
        self,
        future: asyncio.Future[T],
        subject: bytes,
        reply: bytes | None,
        headers: bytes | None,
        payload: bytes,
    ) -> None:
        """Makes the answer the future's result."""

    def _answered(
        self, subject: bytes, reply: bytes | None, headers: bytes | None, payload: bytes
    ) -> None:
        waiting = self._waiting.pop(subject[self._skip :], None)
        if waiting is None or waiting[0].done():
            return
        if headers is not None and headers[:12] == b"NATS/1.0 503" and not payload:
            waiting[0].set_exception(NoResponders(waiting[1]))
        else:
            self._settle(waiting[0], subject, reply, headers, payload)

    # what the connection tells

    def waiting(self) -> list[asyncio.Future[T]]:
        """The requests without an answer."""
        return [future for future, _ in self._waiting.values()]

    def up(self) -> None:
        pass

    def down(self, error: Callable[[], WireError]) -> None:
        """The connection is lost: no answer will come."""
        waiting, self._waiting = self._waiting, {}
        for future, _ in waiting.values():
            if not future.done():
                future.set_exception(error())

    def denied(self, subject: bytes, error: Callable[[], WireError]) -> None:
        """The server did not let the requests to this subject through."""
        for token in [token for token, (_, asked) in self._waiting.items() if asked == subject]:
            future, _ = self._waiting.pop(token)
            if not future.done():
                future.set_exception(error())

    def sweep(self) -> None:
        """Forgets requests that the caller has given up."""
        for token in [token for token, (future, _) in self._waiting.items() if future.done()]:
            del self._waiting[token]


class Requests(Mux[Message]):
    """One answer each."""

    def _settle(
        self,
        future: asyncio.Future[Message],
        subject: bytes,
        reply: bytes | None,
        headers: bytes | None,
        payload: bytes,
    ) -> None:
        future.set_result(Message(subject, reply, headers, payload))


Until = Callable[[Message], bool]


class Collections(Mux[list[Message]]):
    """Several answers each, until one is the last."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self._parts: dict[asyncio.Future[list[Message]], tuple[list[Message], Until]] = {}

    def collect(
        self, subject: bytes, payload: bytes, until: Until
    ) -> asyncio.Future[list[Message]]:
        """All answers, the one included for which `until` is true."""
        future = self.ask(subject, payload)
        if not future.done():
            self._parts[future] = [], until
            future.add_done_callback(self._parts.pop)
        return future

    def _answered(
        self, subject: bytes, reply: bytes | None, headers: bytes | None, payload: bytes
    ) -> None:
        token = subject[self._skip :]
        waiting = self._waiting.get(token)
        if waiting is None:
            return
        future, asked = waiting
        if future.done():
            del self._waiting[token]
            return
        parts, until = self._parts[future]
        if not parts and headers is not None and headers[:12] == b"NATS/1.0 503":
            del self._waiting[token]
            future.set_exception(NoResponders(asked))
            return
        message = Message(subject, reply, headers, payload)
        parts.append(message)
        if until(message):
            del self._waiting[token]
            future.set_result(parts)

    def _settle(
        self,
        future: asyncio.Future[list[Message]],
        subject: bytes,
        reply: bytes | None,
        headers: bytes | None,
        payload: bytes,
    ) -> None:
        raise NotImplementedError
