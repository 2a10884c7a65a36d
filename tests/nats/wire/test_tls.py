"""Connections over TLS."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
import trustme

from headrace.engine.nats.wire.connection import Connection
from headrace.engine.nats.wire.errors import Unreachable
from headrace.engine.nats.wire.options import Address, Options
from headrace.testing.nats import NatsServer, with_tls
from tests.nats.wire.support import Signal
from tests.support import within


class Files(NamedTuple):
    ca: Path
    cert: Path
    key: Path
    client_cert: Path
    client_key: Path


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """An authority, a server on loopback and a client."""
    folder, ca = tmp_path_factory.mktemp("tls"), trustme.CA()
    files = Files(*[folder / name for name in Files._fields])
    ca.cert_pem.write_to_path(files.ca)
    for issued, cert, key in (
        (ca.issue_cert("127.0.0.1", "localhost"), files.cert, files.key),
        (ca.issue_cert("ada@example.org"), files.client_cert, files.client_key),
    ):
        issued.private_key_pem.write_to_path(key)
        for blob in issued.cert_chain_pems:
            blob.write_to_path(cert, append=True)
    return files


async def talks(options: Options) -> bool:
    connection = await Connection.open(options)
    heard = Signal()
    connection.subscribe(b"a", heard)
    for _ in range(100):
        connection.publish(b"a", bytes(20_000))
    await within(heard.after(100))
    await connection.close()
    return True


async def test_messages_pass(files: Files) -> None:
    with NatsServer(config=with_tls(files.cert, files.key)) as server:
        assert await talks(Options.parse(f"tls://{server.host}?ca={files.ca}"))
        assert await talks(Options.parse(f"tls://localhost:{server.port}?ca={files.ca}"))
        assert await talks(Options.parse(f"nats://{server.host}?ca={files.ca}"))


async def test_authority_that_is_not_trusted_is_named_with_the_remedy(files: Files) -> None:
    with NatsServer(config=with_tls(files.cert, files.key)) as server:
        for url in (f"tls://{server.host}", server.url):
            opening = Connection.open(Options.parse(url))
            with pytest.raises(Unreachable, match="ca=PATH"):
                await opening


async def test_certificate_of_another_name_is_refused(files: Files) -> None:
    with NatsServer(config=with_tls(files.cert, files.key)) as server:
        options = Options.parse(f"tls://{server.host}?ca={files.ca}")
        other = Address("127.0.0.1", server.port, tls_name="elsewhere.example")
        opening = Connection.open(replace(options, servers=(other,)))
        with pytest.raises(Unreachable, match="not trusted"):
            await opening


async def test_client_shows_its_certificate(files: Files) -> None:
    with NatsServer(config=with_tls(files.cert, files.key, files.ca)) as server:
        url = f"tls://{server.host}?ca={files.ca}"
        shown = f"{url}&cert={files.client_cert}&key={files.client_key}"
        assert await talks(Options.parse(shown))
        opening = Connection.open(Options.parse(url))
        with pytest.raises(Unreachable):
            await opening


async def test_tls_from_the_first_byte(files: Files) -> None:
    with NatsServer(config=with_tls(files.cert, files.key, first=True)) as server:
        assert await talks(Options.parse(f"tls://{server.host}?ca={files.ca}&tls_first=true"))


async def test_server_without_tls_is_refused(server: NatsServer, files: Files) -> None:
    opening = Connection.open(Options.parse(f"tls://{server.host}?ca={files.ca}"))
    with pytest.raises(Unreachable, match="does not offer TLS"):
        await opening


async def test_connection_is_found_again(files: Files) -> None:
    with NatsServer(config=with_tls(files.cert, files.key)) as server:
        found = Signal()
        connection = await Connection.open(
            Options.parse(f"tls://{server.host}?ca={files.ca}"), on_reconnect=found
        )
        server.restart(kill=True)
        await within(found.wait())
        await connection.flush()
        await connection.close()
