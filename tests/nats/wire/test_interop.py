"""The official client understands what ours stores, and the other way round."""

from __future__ import annotations

import nats

from headrace.engine.nats.wire.connection import Connection
from headrace.engine.nats.wire.errors import NoResponders
from headrace.engine.nats.wire.headers import build, parse
from headrace.engine.nats.wire.jetstream import JetStream
from headrace.testing.nats import NatsServer
from tests.nats.wire.support import Signal, make_consumer
from tests.support import eventually, within


async def test_messages_and_headers_are_the_same_to_both(
    server: NatsServer, connection: Connection, jetstream: JetStream, stream: str
) -> None:
    official = await nats.connect(server.url)
    theirs = official.jetstream()
    await jetstream.store(f"{stream}.ours".encode(), b"1", build({b"Key": b"value"}))
    await theirs.publish(f"{stream}.theirs", b"2", headers={"Key": "value", "Other": "x y"})
    found = await theirs.get_msg(stream, 1)
    assert (found.data, found.headers) == (b"1", {"Key": "value"})
    stored = await jetstream.message(stream, 2)
    assert stored is not None
    assert stored.payload == b"2"
    assert parse(stored.headers or b"") == {b"Key": b"value", b"Other": b"x y"}

    consumer = await make_consumer(jetstream, stream)
    subscription = await theirs.pull_subscribe_bind(consumer, stream)
    (one,) = await subscription.fetch(1)
    await one.ack_sync()
    heard = Signal()
    jetstream.pull(stream, consumer, heard).ask(1)
    await within(heard.wait())
    assert heard.calls[0][3] == b"2"
    await official.close()


async def test_requests_are_answered_by_either(server: NatsServer, connection: Connection) -> None:
    official = await nats.connect(server.url)

    async def answer(message: nats.aio.msg.Msg) -> None:
        await message.respond(b"theirs: " + message.data)

    await official.subscribe("service.theirs", cb=answer)

    async def answered() -> bool:
        try:
            return (await connection.call(b"service.theirs", b"hi")).payload == b"theirs: hi"
        except NoResponders:  # its flush may return before the server knows the subscription
            return False

    await eventually(answered)

    def ours(_: bytes, reply: bytes | None, headers: bytes | None, payload: bytes) -> None:
        connection.publish(reply or b"", b"ours: " + payload)

    connection.subscribe(b"service.ours", ours)
    await connection.flush()
    assert (await official.request("service.ours", b"hi")).data == b"ours: hi"
    await official.close()
