"""Peers that are not NATS servers, and wires that break in the middle of a word."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from headrace.engine.nats.wire.connection import Connection
from headrace.engine.nats.wire.errors import Disconnected, Unreachable, WireError
from headrace.engine.nats.wire.headers import build
from headrace.engine.nats.wire.jetstream import JetStream
from headrace.engine.nats.wire.options import Options
from headrace.testing.nats import NatsServer
from tests.nats.wire.proxy import Proxy
from tests.nats.wire.support import Signal, make_stream
from tests.support import eventually, within


@pytest.fixture
async def proxy(server: NatsServer) -> AsyncIterator[Proxy]:
    async with Proxy(server.port) as proxy:
        yield proxy


@pytest.mark.parametrize(
    "greeting",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"INFO nonsense\r\n",
        b"INFO []\r\n",
        b"INFO {}\r\nHELLO\r\n",
        b"\x15\x03\x01\x00\x02\x02\x16",
        b"",
    ],
)
async def test_peer_that_is_no_nats_server_is_said(greeting: bytes) -> None:
    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(greeting)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(greet, "127.0.0.1", 0) as peer:
        host, port = peer.sockets[0].getsockname()
        opening = Connection.open(Options.parse(f"nats://{host}:{port}"))
        with pytest.raises(WireError, match=f"{host}:{port}"):
            await within(opening)


async def test_peer_that_says_nothing_is_given_up() -> None:
    loop = asyncio.get_running_loop()
    async with await loop.create_server(asyncio.Protocol, "127.0.0.1", 0) as peer:
        host, port = peer.sockets[0].getsockname()
        options = replace(Options.parse(f"nats://{host}:{port}"), connect_timeout=0.2)
        opening = Connection.open(options)
        with pytest.raises(Unreachable, match="does not answer"):
            await within(opening)


async def test_garbage_in_the_stream_makes_a_new_connection(proxy: Proxy) -> None:
    lost, found = Signal(), Signal()
    connection = await Connection.open(
        Options.parse(proxy.url), on_disconnect=lost, on_reconnect=found
    )
    connection.subscribe(b"silent", lambda *_: None)
    request = connection.request(b"silent")
    proxy.inject(b"garbage\r\n")
    with pytest.raises(Disconnected, match="garbage"):
        await within(request)
    await within(found.wait())
    await connection.flush()
    await connection.close()


async def test_bytes_may_come_one_by_one(proxy: Proxy) -> None:
    proxy.piece = 1
    connection, heard = await Connection.open(Options.parse(proxy.url)), Signal()
    connection.subscribe(b"a", heard)
    block = build({b"A": b"1"})
    connection.publish(b"a", b"\r\nMSG a 1 1\r\n", b"r", block)
    await within(heard.wait())
    assert heard.calls == [(b"a", b"r", block, b"\r\nMSG a 1 1\r\n")]
    await connection.close()


async def test_nothing_confirmed_is_lost_when_the_wire_breaks_again_and_again(
    proxy: Proxy,
) -> None:
    connection = await Connection.open(Options.parse(proxy.url))
    jetstream = JetStream(connection)
    stream = await make_stream(jetstream, "S")
    confirmed, unknown = set[int](), set[int]()

    async def produce(start: int) -> None:
        for number in range(start, start + 200):
            try:
                await jetstream.store(b"S.a", b"%d" % number)
                confirmed.add(number)
            except Disconnected:
                unknown.add(number)
                await asyncio.sleep(0.01)

    producers = [asyncio.ensure_future(produce(1000 * n)) for n in range(10)]
    while not all(producer.done() for producer in producers):
        await asyncio.wait(producers, timeout=0.02)
        proxy.cut()
    await within(asyncio.gather(*producers))
    await eventually(lambda: answers(connection))
    stored = [int(one.payload) for one in await jetstream.read(stream, 0, limit=5000)]
    assert confirmed <= set(stored)
    assert set(stored) <= confirmed | unknown
    assert len(stored) == len(set(stored)), "nothing is sent twice"
    assert unknown
    await connection.close()


async def answers(connection: Connection) -> bool:
    try:
        await connection.flush()
    except WireError:
        return False
    return True


async def test_server_that_hangs_up_at_once_is_not_besieged(proxy: Proxy) -> None:
    connection = await Connection.open(Options.parse(proxy.url))
    before = proxy.accepted
    for _ in range(100):
        proxy.cut()
        await asyncio.sleep(0.02)
    assert proxy.accepted - before < 30
    await connection.close()
