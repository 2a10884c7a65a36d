"""The faults of engines that have a server, tried on a server that only echoes."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import pytest

from headrace.testing.lab.crew import Crew
from headrace.testing.lab.notes import Notes
from headrace.testing.lab.panel import Panel
from headrace.testing.lab.scene import Scene
from headrace.testing.lab.server import Server, ServerDeployment
from tests.lab.forge import PLAN
from tests.support import eventually, within

ECHO = """
import asyncio, sys

async def echo(reader, writer):
    while data := await reader.read(1000):
        writer.write(data)

async def main():
    server = await asyncio.start_server(echo, "127.0.0.1", int(sys.argv[1]))
    print("serving", flush=True)
    await server.serve_forever()

asyncio.run(main())
"""


class EchoServer:
    name = "echo"

    def __init__(self) -> None:
        with socket.socket() as free:
            free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        self.starts = 0
        self.start()

    def start(self) -> None:
        order = [sys.executable, "-c", ECHO, str(self.port)]
        self._process = subprocess.Popen(order, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        assert self._process.stdout.readline()
        self.starts += 1

    @property
    def pid(self) -> int:
        return self._process.pid

    def stop(self) -> None:
        self.signal(signal.SIGTERM)
        self._gone()

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self._gone()

    close = kill

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def _gone(self) -> None:
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


class EchoDeployment(ServerDeployment):
    name = "echo"
    port = 0

    def launch(self, folder: Path) -> list[EchoServer]:
        return [EchoServer()]

    def relaunch(self, server: Server) -> None:
        assert isinstance(server, EchoServer)
        server.start()

    def url(self, ports: Sequence[int], folder: Path) -> str:
        return f"echo://127.0.0.1:{ports[0]}"


@pytest.fixture
async def deployment(tmp_path: Path) -> AsyncIterator[EchoDeployment]:
    deployment = EchoDeployment()
    deployment.port = int((await deployment.start(tmp_path)).rpartition(":")[2])
    yield deployment
    await deployment.stop()


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    notes = Notes(tmp_path / "notes.jsonl")
    return Scene(PLAN, Crew(tmp_path, notes), Panel(tmp_path / "panel"), notes, Random(1))


class Short(Random):
    """Every fault as short as it may be."""

    def uniform(self, a: float, b: float) -> float:
        return a


@asynccontextmanager
async def connected(
    deployment: EchoDeployment,
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", deployment.port)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def echoes(deployment: EchoDeployment) -> bool:
    try:
        async with connected(deployment) as (reader, writer):
            writer.write(b"x")
            return await within(reader.read(1)) == b"x"
    except OSError:
        return False


async def test_bytes_pass_when_nothing_is_wrong(deployment: EchoDeployment) -> None:
    assert await echoes(deployment)


async def test_cut_connections_break_off_and_come_back(
    deployment: EchoDeployment, scene: Scene
) -> None:
    scene.chance = Short()
    async with connected(deployment) as (reader, writer):
        writer.write(b"x")
        assert await within(reader.read(1)) == b"x"
        assert await deployment.cut_connections(scene)
        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            await within(reader.readexactly(1))
    assert await echoes(deployment)


async def test_refused_connections_end_at_once(deployment: EchoDeployment) -> None:
    deployment.proxies[0].refusing = True
    assert not await echoes(deployment)
    deployment.proxies[0].refusing = False
    assert await echoes(deployment)


async def test_stalled_connections_pass_nothing_until_they_flow(
    deployment: EchoDeployment,
) -> None:
    async with connected(deployment) as (reader, writer):
        deployment.proxies[0].stall()
        writer.write(b"x")
        answer = asyncio.ensure_future(reader.read(1))
        done, _ = await asyncio.wait([answer], timeout=0.05)
        assert not done
        deployment.proxies[0].flow()
        assert await within(answer) == b"x"


async def test_delayed_connections_are_late_and_whole(
    deployment: EchoDeployment, scene: Scene
) -> None:
    deployment.proxies[0].delay = 0.05
    loop = asyncio.get_running_loop()
    began = loop.time()
    assert await echoes(deployment)
    assert loop.time() - began >= 0.1  # there and back
    scene.chance = Short()
    assert await deployment.delay_connections(scene)
    assert deployment.proxies[0].delay == 0


@pytest.mark.parametrize("fault", ["kill-server", "stop-server", "full-disk"])
async def test_killed_server_comes_back_where_it_was(
    deployment: EchoDeployment, scene: Scene, fault: str
) -> None:
    scene.chance = Short()
    kinds = deployment.faults
    assert await kinds[fault].fault(scene) == "echo"
    (server,) = deployment.servers
    assert isinstance(server, EchoServer)
    assert server.starts == 2
    await eventually(lambda: echoes(deployment))


@pytest.mark.parametrize("fault", ["freeze-server", "slow-server"])
async def test_frozen_server_goes_on(deployment: EchoDeployment, scene: Scene, fault: str) -> None:
    scene.chance = Short()
    assert await deployment.faults[fault].fault(scene) == "echo"
    assert await echoes(deployment)


async def test_nothing_is_done_to_a_server_that_another_fault_has_in_hand(
    deployment: EchoDeployment, scene: Scene
) -> None:
    scene.chance = Short()
    kinds = deployment.faults
    first = asyncio.ensure_future(kinds["freeze-server"].fault(scene))
    await asyncio.sleep(0)
    assert await kinds["kill-server"].fault(scene) is None
    assert await first == "echo"
