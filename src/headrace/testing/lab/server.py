"""Deployments of engines that have servers: they can be killed, stopped, frozen and slowed, their
disk can be full, and what lies between them and the processes can be cut, delayed and stalled."""

from __future__ import annotations

import asyncio
import resource
import signal
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from headrace.testing.lab.proxy import Proxy
from headrace.testing.lab.scene import Fault, Kind, Scene


class Server(Protocol):
    """A server that listens on loopback and keeps its port and its data over restarts. Its
    methods block."""

    name: str
    port: int

    @property
    def pid(self) -> int: ...

    def stop(self) -> None: ...
    def kill(self) -> None: ...
    def signal(self, number: int) -> None: ...
    def close(self) -> None: ...


class ServerDeployment:
    """Servers, each reached through a proxy. A subclass starts them and names the URL."""

    name = "server"
    unavailable_is_unwritten = False
    """An answer that was lost on its way says nothing."""

    def __init__(self) -> None:
        self._busy = asyncio.Lock()
        self.servers: Sequence[Server] = ()
        self.proxies: list[Proxy] = []

    def launch(self, folder: Path) -> Sequence[Server]:
        """Makes the servers and starts them; blocks until they serve."""
        raise NotImplementedError

    def relaunch(self, server: Server) -> None:
        """Starts one again, on the same port and data; blocks until it serves."""
        raise NotImplementedError

    def url(self, ports: Sequence[int], folder: Path) -> str:
        """The URL of the servers behind these ports."""
        raise NotImplementedError

    async def start(self, folder: Path) -> str:
        self.servers = await asyncio.to_thread(self.launch, folder)
        self.proxies = [Proxy() for _ in self.servers]
        ports = [
            await proxy.start("127.0.0.1", server.port)
            for proxy, server in zip(self.proxies, self.servers, strict=True)
        ]
        return self.url(ports, folder)

    async def stop(self) -> None:
        for proxy in self.proxies:
            await proxy.close()
        for server in self.servers:
            await asyncio.to_thread(server.close)

    @property
    def faults(self) -> Mapping[str, Kind]:
        return {
            "kill-server": Kind(8, self._alone(self.kill_server)),
            "stop-server": Kind(3, self._alone(self.stop_server)),
            "freeze-server": Kind(5, self._alone(self.freeze_server)),
            "slow-server": Kind(4, self._alone(self.slow_server)),
            "full-disk": Kind(3, self._alone(self.full_disk)),
            "cut-connections": Kind(8, self.cut_connections),
            "delay-connections": Kind(5, self.delay_connections),
            "stall-connections": Kind(5, self.stall_connections),
        }

    def _alone(self, fault: Callable[[Scene, Server], Awaitable[None]]) -> Fault:
        """One thing at a time is done to one of the servers, so that a cluster keeps its majority;
        whoever comes meanwhile does nothing."""

        async def guarded(scene: Scene) -> str | None:
            if self._busy.locked():
                return None
            async with self._busy:
                server = scene.chance.choice(self.servers)
                await fault(scene, server)
                return server.name

        return guarded

    async def kill_server(self, scene: Scene, server: Server) -> None:
        """SIGKILL, and the same server again some moments later."""
        await asyncio.to_thread(server.kill)
        await self._back(scene, server)

    async def stop_server(self, scene: Scene, server: Server) -> None:
        """An orderly restart."""
        await asyncio.to_thread(server.stop)
        await self._back(scene, server)

    async def _back(self, scene: Scene, server: Server) -> None:
        try:
            await asyncio.sleep(scene.chance.uniform(0.0, 1.5))
        finally:
            await asyncio.to_thread(self.relaunch, server)

    async def freeze_server(self, scene: Scene, server: Server) -> None:
        """SIGSTOP: connections stand, and nobody answers."""
        server.signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(scene.chance.uniform(0.1, 2.0))
        finally:
            server.signal(signal.SIGCONT)

    async def slow_server(self, scene: Scene, server: Server) -> None:
        """It gets on a fifth of the time only, as one whose disk does not keep up."""
        end = time.monotonic() + scene.chance.uniform(0.5, 2.0)
        try:
            while time.monotonic() < end:
                server.signal(signal.SIGSTOP)
                await asyncio.sleep(0.04)
                server.signal(signal.SIGCONT)
                await asyncio.sleep(0.01)
        finally:
            server.signal(signal.SIGCONT)

    async def full_disk(self, scene: Scene, server: Server) -> None:
        """No file of the server grows for a while. Then, as an operator would who has made room,
        it is started again: a store that could not write stays closed until then."""
        _, hard = resource.prlimit(server.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (0, hard))
        try:
            await asyncio.sleep(scene.chance.uniform(0.2, 1.5))
        finally:
            resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (hard, hard))
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(self.relaunch, server)

    async def cut_connections(self, scene: Scene) -> str | None:
        """Connections break off, and for a while no new ones come about."""
        proxies = self._some(scene)
        for proxy in proxies:
            proxy.refusing = True
            proxy.cut()
        try:
            await asyncio.sleep(scene.chance.uniform(0.0, 1.5))
        finally:
            for proxy in proxies:
                proxy.refusing = False
        return self._names(proxies)

    async def delay_connections(self, scene: Scene) -> str | None:
        """Every byte comes late."""
        proxies, delay = self._some(scene), scene.chance.uniform(0.01, 0.2)
        for proxy in proxies:
            proxy.delay = delay
        try:
            await asyncio.sleep(scene.chance.uniform(0.3, 2.0))
        finally:
            for proxy in proxies:
                proxy.delay = 0.0
        return self._names(proxies)

    async def stall_connections(self, scene: Scene) -> str | None:
        """No byte comes through, and nothing breaks off."""
        proxies = self._some(scene)
        for proxy in proxies:
            proxy.stall()
        try:
            await asyncio.sleep(scene.chance.uniform(0.1, 2.0))
        finally:
            for proxy in proxies:
                proxy.flow()
        return self._names(proxies)

    def _some(self, scene: Scene) -> Sequence[Proxy]:
        """The ways to one server, or to all."""
        return scene.chance.choice([*([proxy] for proxy in self.proxies), self.proxies])

    def _names(self, proxies: Sequence[Proxy]) -> str:
        pairs = zip(self.proxies, self.servers, strict=True)
        return f"connections to {', '.join(server.name for p, server in pairs if p in proxies)}"
