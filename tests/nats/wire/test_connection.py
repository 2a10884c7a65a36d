"""A connection to a server that is well."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from headrace.engine.nats.wire.connection import Connection
from headrace.engine.nats.wire.errors import (
    Closed,
    Disconnected,
    NoResponders,
    PayloadTooLarge,
    PermissionDenied,
    ProtocolError,
    TimedOut,
    Unreachable,
)
from headrace.engine.nats.wire.headers import build
from headrace.engine.nats.wire.mux import Message
from headrace.engine.nats.wire.options import Options
from headrace.testing.nats import NatsServer, with_permissions
from tests.nats.wire.support import Signal
from tests.support import eventually, within


@pytest.fixture
async def peer(server: NatsServer) -> AsyncIterator[Connection]:
    """Another client."""
    connection = await Connection.open(Options.parse(server.url))
    yield connection
    await connection.close()


class TestPublishing:
    async def test_message_reaches_the_subscriber_as_it_was(
        self, connection: Connection, peer: Connection
    ) -> None:
        heard, subject = Signal(), connection.inbox()
        peer.subscribe(subject, heard)
        await peer.flush()
        block = build({b"A": b"1"})
        connection.publish(subject, b"\r\nbinary\x00", b"answer.here", block)
        connection.publish(subject)
        await within(heard.after(2))
        assert heard.calls == [
            (subject, b"answer.here", block, b"\r\nbinary\x00"),
            (subject, None, None, b""),
        ]

    async def test_order_is_kept(self, connection: Connection, peer: Connection) -> None:
        heard, subject = Signal(), connection.inbox()
        peer.subscribe(subject, heard)
        await peer.flush()
        for number in range(5000):
            connection.publish(subject, b"%d" % number)
        await within(heard.after(5000))
        assert [int(call[3]) for call in heard.calls] == list(range(5000))

    async def test_payload_over_the_limit_is_refused_before_it_is_sent(
        self, connection: Connection
    ) -> None:
        limit = connection.max_payload
        with pytest.raises(PayloadTooLarge, match=r"max_payload"):
            connection.publish(b"a", bytes(limit + 1))
        with pytest.raises(PayloadTooLarge):
            connection.publish(b"a", bytes(limit), headers=build({b"A": b"1"}))
        await connection.flush()
        assert connection.connected

    @pytest.mark.parametrize("subject", [b"", b"a b", b"a\r\nPUB b 0", b"a\t", b" a"])
    async def test_subject_cannot_carry_another_command(
        self, connection: Connection, subject: bytes
    ) -> None:
        with pytest.raises(ProtocolError):
            connection.publish(subject)
        with pytest.raises(ProtocolError):
            connection.subscribe(subject, lambda *_: None)
        with pytest.raises(ProtocolError):
            await connection.request(subject)

    async def test_reply_cannot_carry_another_command(self, connection: Connection) -> None:
        with pytest.raises(ProtocolError):
            connection.publish(b"a", reply=b"b 0\r\n\r\nPUB c")


class TestAsking:
    async def test_answer_comes_to_who_asked(
        self, connection: Connection, peer: Connection
    ) -> None:
        subject = peer.inbox()

        def echo(_: bytes, reply: bytes | None, headers: bytes | None, payload: bytes) -> None:
            assert reply is not None
            peer.publish(reply, payload, headers=headers or b"")

        peer.subscribe(subject, echo)
        await peer.flush()
        asked = [connection.request(subject, b"%d" % number) for number in range(1000)]
        answers = await within(asyncio.gather(*asked))
        assert [int(answer.payload) for answer in answers] == list(range(1000))
        block = build({b"A": b"1"})
        assert (await connection.call(subject, b"x", block)).headers == block

    async def test_nobody_there_is_said_at_once(self, connection: Connection) -> None:
        with pytest.raises(NoResponders, match="nowhere"):
            await within(connection.request(b"nowhere"))

    async def test_time_is_limited(self, connection: Connection, peer: Connection) -> None:
        subject, heard = peer.inbox(), Signal()
        peer.subscribe(subject, heard)
        await peer.flush()
        with pytest.raises(TimedOut, match=subject.decode()):
            await connection.call(subject, timeout=0.05)
        (call,) = heard.calls
        peer.publish(call[1], b"late")
        await peer.flush()
        await connection.flush()

    async def test_several_answers_are_collected_up_to_the_last(
        self, connection: Connection, peer: Connection
    ) -> None:
        subject = peer.inbox()

        def count(_: bytes, reply: bytes | None, headers: bytes | None, payload: bytes) -> None:
            assert reply is not None
            for number in range(int(payload)):
                peer.publish(reply, b"%d" % number)
            peer.publish(reply, b"")

        def last(message: Message) -> bool:
            return not message.payload

        peer.subscribe(subject, count)
        await peer.flush()
        some, more = await within(
            asyncio.gather(
                connection.collect(subject, b"3", last), connection.collect(subject, b"300", last)
            )
        )
        assert [answer.payload for answer in some] == [b"0", b"1", b"2", b""]
        assert len(more) == 301
        with pytest.raises(NoResponders):
            await connection.collect(b"nowhere", b"", last)

    async def test_given_up_requests_are_forgotten(self, server: NatsServer) -> None:
        options = replace(Options.parse(server.url), ping_interval=0.05)
        connection = await Connection.open(options)
        connection.subscribe(b"silent.>", lambda *_: None)
        requests = [connection.request(b"silent.one") for _ in range(100)]
        for request in requests:
            request.cancel()
        parties: Any = connection._parties  # pyright: ignore[reportPrivateUsage]
        await eventually(lambda: not any(party.waiting() for party in parties))
        await connection.close()


class TestSubscribing:
    async def test_queue_shares_messages(self, connection: Connection, peer: Connection) -> None:
        subject, mine, theirs = connection.inbox(), Signal(), Signal()
        connection.subscribe(subject, mine, b"group")
        peer.subscribe(subject, theirs, b"group")
        await connection.flush()
        await peer.flush()
        for _ in range(100):
            connection.publish(subject)
        await connection.flush()
        await peer.flush()
        assert len(mine.calls) + len(theirs.calls) == 100

    async def test_closed_subscription_hears_nothing(self, connection: Connection) -> None:
        subject, heard = connection.inbox(), Signal()
        subscription = connection.subscribe(subject, heard)
        connection.publish(subject)
        await connection.flush()
        subscription.close()
        connection.publish(subject)
        await connection.flush()
        subscription.close()
        assert len(heard.calls) == 1

    async def test_callback_that_raises_is_reported_and_hurts_nobody(
        self, connection: Connection
    ) -> None:
        subject, heard, reported = connection.inbox(), Signal(), list[dict[str, Any]]()
        asyncio.get_running_loop().set_exception_handler(lambda _, found: reported.append(found))

        def broken(*_: object) -> None:
            raise ZeroDivisionError

        connection.subscribe(subject, broken)
        connection.subscribe(subject, heard)
        connection.publish(subject)
        await within(heard.wait())
        await connection.flush()
        assert [type(found["exception"]) for found in reported] == [ZeroDivisionError]


class TestPermissions:
    CONFIG = with_permissions("ada", "x", publish=["open.>"], subscribe=["_INBOX_ada.>", "open.>"])

    async def test_denied_request_fails_at_once(self) -> None:
        with NatsServer(config=self.CONFIG) as server:
            errors = Signal()
            options = Options.parse(f"nats://ada:x@{server.host}?inbox_prefix=_INBOX_ada")
            connection = await Connection.open(options, on_error=errors)
            connection.subscribe(b"open.silent", lambda *_: None)
            allowed = connection.request(b"open.silent")
            with pytest.raises(PermissionDenied, match=r"'closed.one'.*may not publish"):
                await within(connection.request(b"closed.one"))
            connection.subscribe(b"closed.two", lambda *_: None)
            await within(errors.after(2))
            assert [str(call[0]).split(";")[0] for call in errors.calls] == [
                "'closed.one': this user may not publish there",
                "'closed.two': this user may not subscribe there",
            ]
            assert not allowed.done()
            assert connection.connected
            await connection.close()
            with pytest.raises(Disconnected):
                await allowed

    async def test_inbox_that_is_denied_is_said_when_connecting(self) -> None:
        with NatsServer(config=self.CONFIG) as server:
            options = Options.parse(f"nats://ada:x@{server.host}")
            opening = Connection.open(options)
            with pytest.raises(PermissionDenied, match="inbox_prefix"):
                await opening


class TestClosing:
    async def test_what_was_published_before_is_sent(
        self, server: NatsServer, connection: Connection
    ) -> None:
        subject, heard = connection.inbox(), Signal()
        connection.subscribe(subject, heard)
        await connection.flush()
        other = await Connection.open(Options.parse(server.url))
        for _ in range(1000):
            other.publish(subject, bytes(1000))
        await other.close()
        await within(heard.after(1000))

    async def test_closed_connection_refuses_and_waiting_requests_fail(
        self, server: NatsServer
    ) -> None:
        lost = Signal()
        connection = await Connection.open(Options.parse(server.url), on_disconnect=lost)
        connection.subscribe(b"silent", lambda *_: None)
        request = connection.request(b"silent")
        await connection.flush()
        await connection.close()
        await connection.close()
        for attempt in (request, connection.request(b"silent")):
            with pytest.raises(Closed):
                await attempt
        with pytest.raises(Closed):
            connection.publish(b"a")
        with pytest.raises(Closed):
            await connection.flush()
        assert not connection.connected
        assert not lost.calls, "whoever closes knows"

    async def test_no_server_is_said_with_all_addresses(self) -> None:
        with pytest.raises(Unreachable, match=r"127.0.0.1:1.*127.0.0.1:2|127.0.0.1:2.*127.0.0.1:1"):
            await Connection.open(Options.parse("nats://127.0.0.1:1,127.0.0.1:2"))

    async def test_no_task_is_left(self, server: NatsServer) -> None:
        before = asyncio.all_tasks()
        connection = await Connection.open(Options.parse(server.url))
        await connection.close()
        assert asyncio.all_tasks() == before
