"""The client on the event loop that workers use."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import trustme
import uvloop

from headrace.engine.nats.wire.connection import Connection
from headrace.engine.nats.wire.errors import Disconnected
from headrace.engine.nats.wire.jetstream import JetStream
from headrace.engine.nats.wire.options import Options
from headrace.testing.nats import NatsServer, with_tls
from tests.nats.wire.support import Signal, make_stream
from tests.support import within


async def lives(server: NatsServer, options: Options) -> None:
    """Stores, loses its server, finds it again and stores more."""
    lost, found = Signal(), Signal()
    connection = await Connection.open(options, on_disconnect=lost, on_reconnect=found)
    jetstream = JetStream(connection)
    await make_stream(jetstream, "S")
    stored = await asyncio.gather(*[jetstream.store(b"S.a", bytes(1000)) for _ in range(2000)])
    assert stored == list(range(1, 2001))
    connection.subscribe(b"silent", lambda *_: None)
    request = connection.request(b"silent")
    await connection.flush()
    server.restart(kill=True)
    with pytest.raises(Disconnected):
        await within(request)
    await within(found.wait())
    assert len(await jetstream.read("S", 0, limit=5000)) == 2000
    await connection.close()


def test_plain() -> None:
    with NatsServer() as server:
        uvloop.run(lives(server, Options.parse(server.url)))


def test_tls(tmp_path: Path) -> None:
    ca = trustme.CA()
    issued = ca.issue_cert("127.0.0.1")
    ca.cert_pem.write_to_path(tmp_path / "ca")
    issued.private_key_pem.write_to_path(tmp_path / "key")
    issued.cert_chain_pems[0].write_to_path(tmp_path / "cert")
    with NatsServer(config=with_tls(tmp_path / "cert", tmp_path / "key")) as server:
        uvloop.run(lives(server, Options.parse(f"tls://{server.host}?ca={tmp_path / 'ca'}")))
