"""One TCP connection to one server, from the handshake to its end."""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol, cast

import msgspec

from headrace.engine.nats.wire.auth import credentials, offered
from headrace.engine.nats.wire.errors import (
    AuthRefused,
    Closed,
    Disconnected,
    ProtocolError,
    Unreachable,
    WireError,
)
from headrace.engine.nats.wire.options import Address, Options
from headrace.engine.nats.wire.parser import Callback, Parser

HIGH_WATER = 1 << 20
"""Bytes in the transport from which on `drained()` waits."""

QUIET = 0.002
"""Seconds after which a link on which nothing was sent sends at once."""


class Owner(Protocol):
    """Who is told what happens on a link."""

    def informed(self, link: Link) -> None:
        """The server has sent a new INFO."""
        ...

    def refused(self, link: Link, text: str) -> None:
        """The server has sent an error."""
        ...

    def lost(self, link: Link, error: WireError) -> None:
        """An open link is gone."""
        ...

    def fault(self, error: Exception) -> None:
        """A callback has raised."""
        ...


class Link(asyncio.Protocol):
    """Reads by the chunk, writes once per turn of the event loop while there is much to write, and
    watches that the server lives."""

    def __init__(
        self, address: Address, options: Options, owner: Owner, opened: Callable[[Link], None]
    ) -> None:
        self.address = address
        self.info: dict[str, Any] = {}
        self.pending = 0
        """Bytes that wait to be sent; while the server does not keep up, at least that many."""
        self._options, self._owner, self._opened = options, owner, opened
        self._loop = asyncio.get_running_loop()
        self._parser = Parser(self._control, owner.fault)
        self._callbacks = self._parser.callbacks
        self._subscribed: set[bytes] = set()
        self._transport: asyncio.Transport | None = None
        self._out: list[bytes] = []
        self._scheduled = self._deferred = self._paused = self._heard = self._live = False
        self._silent, self._sent_at = 0, 0.0
        self._drained: asyncio.Future[None] | None = None
        self._pongs: deque[Callable[[WireError | None], None]] = deque()
        self._tick: asyncio.TimerHandle | None = None
        self._greeting: asyncio.Future[None] = self._loop.create_future()
        self._reason: WireError | None = None
        self._gone: asyncio.Future[None] = self._loop.create_future()
        self._fate: WireError | None = None

    # opening

    @classmethod
    async def open(
        cls, address: Address, options: Options, owner: Owner, opened: Callable[[Link], None]
    ) -> Link:
        """A link on which the server has let us in. `opened` is called before anything that the
        server sends afterwards is handled."""
        link = cls(address, options, owner, opened)
        try:
            async with asyncio.timeout(options.connect_timeout):
                await link._connect()
        except BaseException as error:
            link.abort(Unreachable(f"{address}: the handshake failed"))
            raise _explained(error, address) from None
        return link

    async def _connect(self) -> None:
        options, (host, port, tls_name) = self._options, self.address
        name = tls_name or host
        if options.tls_first:
            await self._loop.create_connection(
                lambda: self, host, port, ssl=options.tls_context(), server_hostname=name
            )
        else:
            await self._loop.create_connection(lambda: self, host, port)
        await self._greeting
        if not options.tls_first and (options.tls or self.info.get("tls_required")):
            await self._secure(name)
        ready: asyncio.Future[None] = self._loop.create_future()

        def pong(error: WireError | None) -> None:
            if error is None:
                self._open()
            _settle(ready, error)

        self.write(self._hello())
        self._await_pong(pong)
        await ready

    async def _secure(self, name: str) -> None:
        if not (self.info.get("tls_required") or self.info.get("tls_available")):
            raise Unreachable(
                f"{self.address} does not offer TLS; connect with nats://, or give the server a"
                " certificate"
            )
        assert self._transport is not None
        secured = await self._loop.start_tls(
            self._transport, self, self._options.tls_context(), server_hostname=name
        )
        assert secured is not None
        self.connection_made(secured)

    def _hello(self) -> bytes:
        options = self._options
        fields = {
            "verbose": False,
            "pedantic": False,
            "headers": True,
            "no_responders": True,
            "echo": True,
            "protocol": 1,
            "lang": "python",
            "version": "1",
            "name": options.name,
            "tls_required": options.tls,
            **credentials(options, self.info.get("nonce"), str(self.address)),
        }
        return b"CONNECT " + msgspec.json.encode(fields) + b"\r\n"

    def _open(self) -> None:
        self._live = True
        self._tick = self._loop.call_later(self._options.ping_interval, self._watch)
        self._opened(self)

    # writing

    def write(self, data: bytes) -> None:
        """Sends together with all else of this turn; what comes after some quiet, at once."""
        self._out.append(data)
        self.pending += len(data)
        if self._scheduled:
            return
        if self._loop.time() - self._sent_at > QUIET:
            self._send()
        else:
            self._scheduled = True
            self._loop.call_soon(self._send)

    def write_later(self, data: bytes) -> None:
        """Sends with what is written next, or else a turn later: nobody waits for it, and what the
        next turn brings may be waited for."""
        self._out.append(data)
        self.pending += len(data)
        if not self._scheduled and not self._deferred:
            self._deferred = True
            self._loop.call_soon(self._defer)

    def _defer(self) -> None:
        self._deferred = False
        if self._out and not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._send)

    def _send(self) -> None:
        self._scheduled = False
        transport = self._transport
        if self._out and transport is not None:
            if not transport.is_closing():
                transport.write(b"".join(self._out))
            self._out.clear()
            self._sent_at = self._loop.time()
            self.pending = transport.get_write_buffer_size()

    def subscribe(
        self, sid: bytes, subject: bytes, queue: bytes, callback: Callback | None
    ) -> None:
        """Asks for the messages of a subject; without a callback they are dropped for now."""
        self._subscribed.add(sid)
        if callback is not None:
            self._callbacks[sid] = callback
        self.write(b"SUB %b %b %b\r\n" % (subject, queue, sid))

    def attach(self, sid: bytes, subject: bytes, queue: bytes, callback: Callback) -> None:
        """Delivers the messages of a subject from now on, whether it was subscribed to or not."""
        self._callbacks[sid] = callback
        if sid not in self._subscribed:
            self.subscribe(sid, subject, queue, callback)

    def unsubscribe(self, sid: bytes) -> None:
        self._callbacks.pop(sid, None)
        if sid in self._subscribed:
            self._subscribed.discard(sid)
            self.write(b"UNSUB %b\r\n" % sid)

    def ping(self) -> asyncio.Future[None]:
        """Done when the server has handled all that was sent before."""
        done: asyncio.Future[None] = self._loop.create_future()

        self._await_pong(lambda error: _settle(done, error))
        return done

    def _await_pong(self, pong: Callable[[WireError | None], None]) -> None:
        if self._fate is not None:
            pong(self._fate)
        else:
            self._pongs.append(pong)
            self.write(b"PING\r\n")

    async def drained(self) -> None:
        """Waits while the server does not keep up."""
        self._send()
        while self._paused and not self._gone.done():
            if self._drained is None:
                self._drained = self._loop.create_future()
            await asyncio.shield(self._drained)

    # what the transport tells

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop has classes of its own
        self._transport.set_write_buffer_limits(high=HIGH_WATER)

    def data_received(self, data: bytes) -> None:
        self._heard = True
        try:
            self._parser.feed(data)
        except ProtocolError as error:
            self.abort(ProtocolError(f"{self.address}: {error}"))

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        assert self._transport is not None
        self.pending = self._transport.get_write_buffer_size() + sum(map(len, self._out))
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(
            Disconnected(f"{self.address}: the connection was lost{f' ({exc})' if exc else ''}")
        )

    def _wake(self) -> None:
        waiter, self._drained = self._drained, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    # what the server tells

    def _control(self, line: bytes) -> None:
        verb = line[:4]
        if verb == b"PING":
            self.write(b"PONG\r\n")
        elif verb == b"PONG":
            if self._pongs:
                self._pongs.popleft()(None)
        elif verb == b"INFO":
            self._informed(line[5:])
        elif verb == b"-ERR":
            self._refused(line[5:].strip().strip(b"'").decode("utf-8", "replace"))

    def _informed(self, text: bytes) -> None:
        try:
            self.info = msgspec.json.decode(text, type=dict[str, Any])
        except msgspec.DecodeError as error:
            raise ProtocolError(f"INFO is no JSON object ({error})") from None
        if not self._greeting.done():
            self._greeting.set_result(None)
        elif self._live:
            self._owner.informed(self)

    def _refused(self, text: str) -> None:
        if "permissions violation" not in text.lower():
            self._reason = self._verdict(text)
        self._owner.refused(self, text)

    def _verdict(self, text: str) -> WireError:
        if "authorization" in text.lower() or "authentication" in text.lower():
            return AuthRefused(
                f"{self.address} refuses {offered(self._options)} ({text}); give the user, token,"
                " nkey or creds that the server's configuration has"
            )
        return Disconnected(f"{self.address}: the server said {text!r} and hung up")

    # the end

    def _watch(self) -> None:
        """Pings, and gives up on a server that has said nothing since several pings."""
        self._silent = 0 if self._heard else self._silent + 1
        self._heard = False
        if self._silent >= self._options.max_silent + 1:
            silence = self._silent * self._options.ping_interval
            self.abort(Disconnected(f"{self.address}: not a byte in {silence:g} s"))
            return
        self._await_pong(lambda error: None)
        self._tick = self._loop.call_later(self._options.ping_interval, self._watch)

    async def close(self) -> None:
        """Sends what waits and hangs up."""
        self._send()
        if self._transport is not None and not self._gone.done():
            self._transport.close()
            try:
                async with asyncio.timeout(1):
                    await asyncio.shield(self._gone)
            except TimeoutError:
                self.abort(Closed(f"{self.address}: closed"))

    def abort(self, error: WireError) -> None:
        """Hangs up at once; what waits to be sent is dropped."""
        if self._transport is not None:
            self._transport.abort()
        self._end(error)

    def _end(self, error: WireError) -> None:
        if self._gone.done():
            return
        error = self._fate = self._reason or error
        self._gone.set_result(None)
        if self._tick is not None:
            self._tick.cancel()
        self._out.clear()
        self._paused = False
        self._wake()
        if not self._greeting.done():
            self._greeting.set_exception(error)
            self._greeting.exception()  # it may be that nobody waits for it
        while self._pongs:
            self._pongs.popleft()(error)
        if self._live:
            self._owner.lost(self, error)


def _settle(future: asyncio.Future[None], error: WireError | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)


def _explained(error: BaseException, address: Address) -> BaseException:
    """What went wrong at opening, as an error that says what to do."""
    match error:
        case ssl.SSLCertVerificationError():
            return Unreachable(
                f"{address}: its certificate is not trusted ({error.verify_message}); name the"
                " authority that signed it with ca=PATH"
            )
        case TimeoutError():
            return Unreachable(f"{address} does not answer")
        case OSError():
            return Unreachable(f"{address}: {error.strerror or error}")
        case Disconnected() if not isinstance(error, Unreachable):
            return Unreachable(str(error))
        case _:
            return error
