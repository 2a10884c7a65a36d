"""Pulling from consumers."""

from __future__ import annotations

import pytest

from headrace.engine.nats.wire.connection import Connection
from headrace.engine.nats.wire.errors import ProtocolError
from headrace.engine.nats.wire.jetstream import JetStream
from headrace.engine.nats.wire.options import Options
from headrace.engine.nats.wire.pull import AckInfo, ack, ack_tokens, in_progress, nak
from headrace.testing.nats import NatsServer, with_permissions
from tests.nats.wire.support import Signal, make_consumer
from tests.support import eventually, within


class Pulled:
    """A puller on a consumer of its own, and what it was told."""

    def __init__(self, jetstream: JetStream, stream: str) -> None:
        self.jetstream, self.stream = jetstream, stream
        self.heard, self.empty = Signal(), Signal()

    async def start(self, **config: object) -> Pulled:
        consumer = await make_consumer(self.jetstream, self.stream, **config)
        self.puller = self.jetstream.pull(self.stream, consumer, self.heard, self.empty)
        return self

    async def fill(self, count: int) -> None:
        for number in range(count):
            await self.jetstream.store(f"{self.stream}.a".encode(), b"%d" % number)

    async def done(self) -> bool:
        info = await self.jetstream.api(f"CONSUMER.INFO.{self.stream}.w")
        return not info["num_ack_pending"]

    def reply(self, number: int) -> bytes:
        return self.heard.calls[number][1]


@pytest.fixture
def pulled(jetstream: JetStream, stream: str) -> Pulled:
    return Pulled(jetstream, stream)


async def test_messages_come_in_order_and_are_acknowledged(
    connection: Connection, pulled: Pulled
) -> None:
    await pulled.start()
    await pulled.fill(5)
    pulled.puller.ask(10)
    await within(pulled.heard.after(5))
    assert [int(call[3]) for call in pulled.heard.calls] == list(range(5))
    assert pulled.heard.calls[0][0] == f"{pulled.stream}.a".encode()
    assert [ack_tokens(pulled.reply(n)) for n in range(5)] == [
        AckInfo(n + 1, 1, 4 - n) for n in range(5)
    ]
    assert pulled.puller.outstanding == 5
    for number in range(5):
        ack(connection, pulled.reply(number))
    await eventually(pulled.done)


async def test_unacknowledged_message_comes_again(connection: Connection, pulled: Pulled) -> None:
    await pulled.start(ack_wait=200_000_000)
    await pulled.fill(1)
    pulled.puller.ask(10)
    await within(pulled.heard.after(2))
    assert ack_tokens(pulled.reply(1)).delivered == 2
    ack(connection, pulled.reply(1))
    await eventually(pulled.done)


async def test_work_in_progress_is_not_delivered_again(
    connection: Connection, pulled: Pulled
) -> None:
    await pulled.start(ack_wait=1_000_000_000)
    await pulled.fill(1)
    pulled.puller.ask(10)
    await within(pulled.heard.after(1))
    for _ in range(10):
        in_progress(connection, pulled.reply(0))
        await connection.call(b"$JS.API.INFO")
        with pytest.raises(TimeoutError):
            await within(pulled.heard.after(2), 0.2)


async def test_nak_brings_it_back_after_the_delay(connection: Connection, pulled: Pulled) -> None:
    await pulled.start()
    await pulled.fill(1)
    pulled.puller.ask(10)
    await within(pulled.heard.after(1))
    nak(connection, pulled.reply(0))
    await within(pulled.heard.after(2))
    nak(connection, pulled.reply(1), delay=0.3)
    with pytest.raises(TimeoutError):
        await within(pulled.heard.after(3), 0.2)
    await within(pulled.heard.after(3))


class TestOutstanding:
    async def test_nothing_there_is_said_at_once(self, pulled: Pulled) -> None:
        await pulled.start()
        await pulled.fill(2)
        pulled.puller.ask(5, no_wait=True)
        await within(pulled.empty.wait())
        assert pulled.empty.calls == [(404,)]
        assert (len(pulled.heard.calls), pulled.puller.outstanding) == (2, 0)

    async def test_request_ends_with_its_time(self, pulled: Pulled) -> None:
        await pulled.start()
        await pulled.fill(2)
        pulled.puller.ask(5, expires=0.3)
        assert pulled.puller.outstanding == 5
        await within(pulled.empty.wait())
        assert pulled.empty.calls == [(408,)]
        assert (len(pulled.heard.calls), pulled.puller.outstanding) == (2, 0)

    async def test_several_requests_are_counted_right(self, pulled: Pulled) -> None:
        """The server serves them in turn, and says only of one that ends early what is left."""
        await pulled.start()
        pulled.puller.ask(50, expires=60)
        pulled.puller.ask(50, expires=0.5)
        pulled.puller.ask(10, expires=60)
        await pulled.fill(30)
        await within(pulled.heard.after(30))
        assert pulled.puller.outstanding == 80
        await within(pulled.empty.wait())
        left = pulled.puller.outstanding
        await pulled.fill(left + 1)
        await within(pulled.heard.after(30 + left))
        assert pulled.puller.outstanding == 0
        info = await pulled.jetstream.api(f"CONSUMER.INFO.{pulled.stream}.w")
        assert (info["num_waiting"], info["num_pending"]) == (0, 1)
        pulled.puller.ask(1)
        assert pulled.puller.outstanding == 1

    async def test_deleted_consumer_ends_all_requests(self, pulled: Pulled) -> None:
        await pulled.start()
        pulled.puller.ask(5)
        pulled.puller.ask(7)
        await pulled.fill(1)
        await within(pulled.heard.after(1))
        await pulled.jetstream.api(f"CONSUMER.DELETE.{pulled.stream}.w")
        await within(pulled.empty.after(2))
        assert {call[0] for call in pulled.empty.calls} == {409}
        assert pulled.puller.outstanding == 0
        pulled.puller.ask(5)
        await within(pulled.empty.after(3))
        assert pulled.empty.calls[-1] == (503,)
        assert pulled.puller.outstanding == 0

    async def test_lost_request_does_not_count_for_ever(
        self, pulled: Pulled, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("headrace.engine.nats.wire.pull.OVERDUE", 0.1)
        connection = pulled.jetstream._connection  # pyright: ignore[reportPrivateUsage]
        connection.subscribe(b"hole", lambda *_: None)
        puller = type(pulled.jetstream.pull("S", "w", pulled.heard))(
            connection, b"hole", pulled.heard, pulled.empty
        )
        puller.ask(5, expires=0.1)
        await within(pulled.empty.wait())
        assert (pulled.empty.calls, puller.outstanding) == ([(408,)], 0)

    async def test_closed_puller_hears_nothing(self, pulled: Pulled) -> None:
        await pulled.start()
        pulled.puller.ask(5)
        pulled.puller.close()
        pulled.puller.close()
        await pulled.fill(1)
        assert not pulled.heard.calls
        assert pulled.puller.outstanding == 0

    async def test_user_who_may_not_pull_is_told(self) -> None:
        config = with_permissions("ada", "x", publish=["a"], subscribe=["_INBOX.>"])
        with NatsServer(config=config) as server:
            connection = await Connection.open(Options.parse(f"nats://ada:x@{server.host}"))
            empty = Signal()
            puller = JetStream(connection).pull("S", "w", lambda *_: None, empty)
            puller.ask(5)
            await within(empty.wait())
            assert (empty.calls, puller.outstanding) == ([(403,)], 0)
            await connection.close()


class TestReplySubjects:
    def test_both_forms_are_read(self) -> None:
        short = b"$JS.ACK.S.w.2.40.50.1794803624679853895.7"
        long = b"$JS.ACK._.ACCHASH.S.w.2.40.50.1794803624679853895.7.random"
        assert ack_tokens(short) == ack_tokens(long) == AckInfo(40, 2, 7)
        assert ack_tokens(long.removesuffix(b".random")) == AckInfo(40, 2, 7)

    @pytest.mark.parametrize("reply", [b"", b"_INBOX.a.b", b"$JS.ACK.S.w.x.y.z.1.2"])
    def test_other_subject_is_refused(self, reply: bytes) -> None:
        with pytest.raises(ProtocolError):
            ack_tokens(reply)
