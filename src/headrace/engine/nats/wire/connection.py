"""A connection to NATS that lasts: it finds a server again for as long as it is not closed."""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Any, TypeVar

from headrace.core.errors import InvalidValue
from headrace.engine.nats.wire.errors import (
    AuthRefused,
    Closed,
    Congested,
    Disconnected,
    PayloadTooLarge,
    PermissionDenied,
    ProtocolError,
    TimedOut,
    Unreachable,
    WireError,
    shown,
)
from headrace.engine.nats.wire.link import Link
from headrace.engine.nats.wire.mux import Collections, Message, Requests, Until
from headrace.engine.nats.wire.options import Address, Options
from headrace.engine.nats.wire.parser import Callback
from headrace.engine.nats.wire.servers import Servers
from headrace.engine.nats.wire.subscription import Party, Subscription, Subscriptions

T = TypeVar("T")

Locate = Callable[[], Awaitable[Sequence[Address]]]
"""Says where the servers are now."""

_INBOX_REMEDY = "answers come there: allow it to the user, or set inbox_prefix to what is allowed"

STEADY = 5.0
"""Seconds after which a link is taken to have been a good one: the next is looked for at once."""

LINGER = 10.0
"""Seconds for which a server that is about to stop may still answer."""


class Connection:
    """Publishes, subscribes and asks. Belongs to the event loop it was opened in."""

    def __init__(
        self,
        options: Options,
        *,
        on_disconnect: Callable[[], None] | None = None,
        on_reconnect: Callable[[], None] | None = None,
        on_error: Callable[[WireError], None] | None = None,
        locate: Locate | None = None,
    ) -> None:
        """Not connected yet: use `open`."""
        self.server_info: dict[str, Any] = {}
        self.max_payload = 1 << 20
        self._options = options
        self._on_disconnect, self._on_reconnect = on_disconnect, on_reconnect
        self._on_error, self._locate = on_error, locate
        self._loop = asyncio.get_running_loop()
        self.link: Link | None = None
        """The present one; None while there is no connection."""
        self._leaving: Link | None = None
        self._settled = self._closed = False
        self._servers = Servers(options.servers)
        self._max_buffered = options.max_buffered
        self._subscriptions = Subscriptions()
        self._parties: list[Party] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._root = options.inbox_prefix + b"." + secrets.token_hex(8).encode()
        self._inboxes = count(1)
        self._requests = Requests(self)
        self._collections = Collections(self)
        self._denied_inbox: WireError | None = None
        self._since, self._wait = 0.0, options.reconnect_wait
        self._sweeper: asyncio.TimerHandle | None = None

    @classmethod
    async def open(
        cls,
        options: Options,
        *,
        on_disconnect: Callable[[], None] | None = None,
        on_reconnect: Callable[[], None] | None = None,
        on_error: Callable[[WireError], None] | None = None,
        locate: Locate | None = None,
    ) -> Connection:
        """Connects to the first server that lets us in; raises when none does. `locate` is asked
        for the servers whenever the connection was lost, if those named may have moved."""
        connection = cls(
            options,
            on_disconnect=on_disconnect,
            on_reconnect=on_reconnect,
            on_error=on_error,
            locate=locate,
        )
        try:
            await connection._first()
        except BaseException:
            await connection.close()
            raise
        return connection

    @property
    def connected(self) -> bool:
        return self.link is not None

    # sending

    def publish(
        self, subject: bytes, payload: bytes = b"", reply: bytes = b"", headers: bytes = b""
    ) -> None:
        """Sends a message soon; nobody says whether it arrived."""
        if reply and reply.split() != [reply]:
            raise _no_subject(reply)
        self.send(subject, payload, reply, headers, later=True)

    def send(
        self, subject: bytes, payload: bytes, reply: bytes, headers: bytes, *, later: bool = False
    ) -> None:
        """Sends a message that somebody waits for, unless it may go `later`. The reply is known to
        be a subject."""
        link = self.link
        if link is None:
            raise self._absence()
        if subject.split() != [subject]:
            raise _no_subject(subject)
        if headers:
            size = len(headers) + len(payload)
            sizes = b"%d %d\r\n" % (len(headers), size)
            line = b"HPUB %b %b %b%b%b\r\n" % (subject, reply, sizes, headers, payload)
        else:
            size = len(payload)
            line = b"PUB %b %b %d\r\n%b\r\n" % (subject, reply, size, payload)
        self.check_size(subject, size)
        if link.pending > self._max_buffered:
            raise Congested(
                f"{link.address} does not keep up: {link.pending:,} bytes wait to be sent; wait"
                " for drained() before publishing more"
            )
        if later:
            link.write_later(line)
        else:
            link.write(line)

    def check_size(self, subject: bytes, size: int) -> None:
        """Raises where the server would not take a message of that size."""
        if size > self.max_payload:
            raise PayloadTooLarge(subject, size, self.max_payload)

    def request(
        self, subject: bytes, payload: bytes = b"", headers: bytes = b""
    ) -> asyncio.Future[Message]:
        """The first answer. There is no time limit; it fails when the connection is lost."""
        return self._requests.ask(subject, payload, headers)

    async def call(
        self, subject: bytes, payload: bytes = b"", headers: bytes = b"", timeout: float = 5.0
    ) -> Message:
        """The first answer within the time given."""
        return await _within(timeout, self.request(subject, payload, headers), subject)

    async def collect(
        self, subject: bytes, payload: bytes, until: Until, timeout: float = 5.0
    ) -> list[Message]:
        """All answers up to the one for which `until` is true, that one included."""
        return await _within(timeout, self._collections.collect(subject, payload, until), subject)

    async def flush(self, timeout: float = 5.0) -> None:
        """Returns when the server has handled all that was sent before."""
        if self.link is None:
            raise self._absence()
        await _within(timeout, self.link.ping(), b"PING")

    async def drained(self) -> None:
        """Waits while the server does not keep up."""
        if self.link is not None:
            await self.link.drained()

    # receiving

    def inbox(self) -> bytes:
        """A fresh subject that nobody else uses."""
        return self._root + b".%x" % next(self._inboxes)

    def subscribe(
        self,
        subject: bytes,
        callback: Callback,
        queue: bytes = b"",
        *,
        pinned: Callable[[], None] | None = None,
        lingers: bool = False,
    ) -> Subscription:
        """Calls back with each message of the subject until it is closed, over reconnects."""
        if subject.split() != [subject] or (queue and queue.split() != [queue]):
            raise _no_subject(subject)
        subscription = self._subscriptions.add(
            subject, queue, callback, self._unsubscribe, pinned=pinned, lingers=lingers
        )
        if self.link is not None:
            self.link.subscribe(subscription.sid, subject, queue, callback)
        return subscription

    def _unsubscribe(self, subscription: Subscription) -> None:
        self._subscriptions.remove(subscription)
        if self.link is not None:
            self.link.unsubscribe(subscription.sid)

    def join(self, party: Party) -> None:
        """Tells the party from now on what becomes of the connection."""
        self._parties.append(party)

    def leave(self, party: Party) -> None:
        if party in self._parties:
            self._parties.remove(party)

    # connecting

    async def _first(self) -> None:
        errors: list[WireError] = []
        for address in self._servers.round():
            try:
                link = await Link.open(address, self._options, self, self._opened)
                await _within(self._options.connect_timeout, link.ping(), b"PING")
            except WireError as error:
                errors.append(error)
                self._drop()
                continue
            if self._denied_inbox:
                raise self._denied_inbox
            self._settled = True
            self._sweep()
            return
        refusals = [error for error in errors if not isinstance(error, Disconnected)]
        if refusals:
            raise refusals[0]
        raise Unreachable("; ".join(map(str, errors)) + "; start a server there or mend the URL")

    def _drop(self) -> None:
        """Gives up a link that let us in and then failed us."""
        link, self.link = self.link, None
        if link is not None:
            link.abort(Disconnected(f"{link.address}: given up"))

    def _opened(self, link: Link) -> None:
        """The link takes over, before anything else that came on it is handled."""
        if self._closed:
            link.abort(Closed(f"{link.address}: closed"))
            return
        self.link = link
        self._since = self._loop.time()
        self.informed(link)
        self._subscriptions.restore(link)
        self._tell_up()

    def _tell_up(self) -> None:
        for party in list(self._parties):
            self._hook(party.up)

    async def _reconnect(self, last: Address) -> None:
        """Tries every server in turn, with growing pauses, until one lets us in."""
        shortest, longest = self._options.reconnect_wait, self._options.reconnect_wait_max
        if self._loop.time() - self._since > STEADY:
            self._wait = shortest
        while not self._closed:
            await asyncio.sleep(self._wait * random.random())
            self._wait = min(self._wait * 2, longest)
            await self._relocate()
            for address in self._servers.round(last):
                if await self._again(address):
                    return

    async def _relocate(self) -> None:
        if self._locate is None:
            return
        try:
            self._servers.name(await self._locate())
        except Exception as error:
            self._report(Unreachable(f"the server cannot be found: {error}"))

    async def _again(self, address: Address) -> bool:
        try:
            await Link.open(address, self._options, self, self._opened)
        except AuthRefused as error:
            self._report(error)
        except InvalidValue as error:
            self._report(AuthRefused(str(error)))
        except WireError:
            pass
        except Exception as error:
            self.fault(error)  # whatever it is, looking for a server must not end with it
        else:
            if self.connected:
                self._hook(self._on_reconnect)
            return True
        return False

    # moving to another server while this one is about to stop

    async def _move(self, old: Link) -> None:
        for address in self._servers.round(old.address):
            if (address.host, address.port) == (old.address.host, old.address.port):
                continue
            with suppress(WireError, InvalidValue):
                new = await Link.open(address, self._options, self, lambda link: None)
                try:
                    await self._prepare(new)
                    if self.link is old:
                        self._swap(old, new)
                        return
                finally:
                    if self.link is not new:
                        new.abort(Closed(f"{address}: not needed"))
            if self.link is not old:
                return

    async def _prepare(self, new: Link) -> None:
        self._subscriptions.prepare(new)
        await _within(self._options.connect_timeout, new.ping(), b"PING")

    def _swap(self, old: Link, new: Link) -> None:
        """From here on everything goes over the new link; the old one only brings answers."""
        self.link = new
        self._since = self._loop.time()
        self.informed(new)
        self._subscriptions.move(old, new)
        pinned = self._subscriptions.unpin()
        waiting = [future for party in self._parties for future in party.waiting()]
        self._tell_up()
        self._spawn(self._retire(old, waiting, pinned))

    async def _retire(
        self, old: Link, waiting: list[asyncio.Future[Any]], pinned: list[Subscription]
    ) -> None:
        """Leaves the old link once it has answered, or when it takes too long."""
        try:
            if waiting:
                await asyncio.wait(waiting, timeout=LINGER)
            for one in pinned:
                old.unsubscribe(one.sid)
            with suppress(WireError):
                await _within(1, old.ping(), b"PING")
            await old.close()
        finally:
            old.abort(Closed(f"{old.address}: left"))
            for future in waiting:
                if not future.done():
                    future.set_exception(Disconnected(f"{old.address}: stopped before it answered"))
            for one in pinned:
                self._hook(one.pinned)

    def _sweep(self) -> None:
        for party in self._parties:
            party.sweep()
        self._sweeper = self._loop.call_later(self._options.ping_interval, self._sweep)

    # what links tell

    def informed(self, link: Link) -> None:
        if link is not self.link:
            return
        info = link.info
        self.server_info = info
        self.max_payload = int(info.get("max_payload", 1 << 20))
        self._servers.learn(info.get("connect_urls") or (), link.address)
        if info.get("ldm") and link is not self._leaving:
            self._leaving = link
            self._spawn(self._move(link))

    def refused(self, link: Link, text: str) -> None:
        denial = _denial(text)
        if denial is None:
            return
        subject, action = denial
        error = PermissionDenied(subject, action)
        if subject.startswith(self._root) and action == "subscribe":
            error = self._denied_inbox = PermissionDenied(subject, action, _INBOX_REMEDY)
        if action == "publish":
            for party in list(self._parties):
                self._hook(
                    partial(party.denied, subject, lambda: PermissionDenied(subject, action))
                )
        self._report(error)

    def lost(self, link: Link, error: WireError) -> None:
        if link is not self.link:
            return
        self.link = None
        if isinstance(error, AuthRefused):
            self._report(error)
        text = str(error)
        kind = Closed if self._closed else Disconnected
        for party in list(self._parties):
            party.down(lambda: kind(text))
        for one in self._subscriptions.unpin():
            self._hook(one.pinned)
        if self._settled and not self._closed:
            self._spawn(self._reconnect(link.address))
            self._hook(self._on_disconnect)

    def fault(self, error: Exception) -> None:
        self._loop.call_exception_handler(
            {"message": "a callback of a NATS connection raised", "exception": error}
        )

    # the end

    async def close(self) -> None:
        """Sends what waits and hangs up for good; what waits for an answer fails."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        if self._sweeper is not None:
            self._sweeper.cancel()
        if self.link is not None:
            await self.link.close()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _absence(self) -> Disconnected:
        if self._closed:
            return Closed("the connection is closed; open another one")
        return Disconnected("there is no connection now; it is being looked for")

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _report(self, error: WireError) -> None:
        if self._on_error is not None:
            on_error = self._on_error
            self._hook(lambda: on_error(error))

    def _hook(self, hook: Callable[[], None] | None) -> None:
        if hook is None:
            return
        try:
            hook()
        except Exception as error:
            self.fault(error)


async def _within(timeout: float, future: asyncio.Future[T], subject: bytes) -> T:
    try:
        async with asyncio.timeout(timeout):
            return await future
    except TimeoutError:
        raise TimedOut(f"{shown(subject)}: no answer in {timeout:g} s") from None


def _no_subject(subject: bytes) -> ProtocolError:
    return ProtocolError(f"{shown(subject)} is no subject: it has blanks or is empty")


def _denial(text: str) -> tuple[bytes, str] | None:
    """The subject and what was tried there, of a permissions violation."""
    if not text.lower().startswith("permissions violation for "):
        return None
    what, _, rest = text[26:].partition('"')
    subject = rest.rpartition('"')[0] or rest
    return subject.encode(), "subscribe" if what.lower().startswith("subscri") else "publish"
