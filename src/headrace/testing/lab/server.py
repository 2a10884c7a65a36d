"""Deployments of engines that have a server: it can be killed, stopped and frozen, and what lies
between it and the processes can be cut, delayed and stalled."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from headrace.testing.lab.proxy import Proxy
from headrace.testing.lab.scene import Fault, Kind, Scene


class Server(Protocol):
    """A server that listens on loopback and keeps its port and its data over restarts. Its
    methods block."""

    port: int

    def stop(self) -> None: ...
    def kill(self) -> None: ...
    def signal(self, number: int) -> None: ...
    def close(self) -> None: ...


class ServerDeployment:
    """One server, reached through a proxy. A subclass starts the server and names the URL."""

    name = "server"
    unavailable_is_unwritten = False
    """An answer that was lost on its way says nothing."""

    def __init__(self) -> None:
        self._server: Server | None = None
        self._busy = asyncio.Lock()
        self.proxy = Proxy()

    def launch(self, folder: Path) -> Server:
        """Makes the server and starts it; blocks until it serves."""
        raise NotImplementedError

    def relaunch(self, server: Server) -> None:
        """Starts it again, on the same port and data; blocks until it serves."""
        raise NotImplementedError

    def url(self, port: int, folder: Path) -> str:
        """The URL of the server behind a port."""
        raise NotImplementedError

    async def start(self, folder: Path) -> str:
        self._server = await asyncio.to_thread(self.launch, folder)
        return self.url(await self.proxy.start("127.0.0.1", self._server.port), folder)

    async def stop(self) -> None:
        await self.proxy.close()
        if self._server is not None:
            await asyncio.to_thread(self._server.close)

    @property
    def server(self) -> Server:
        assert self._server is not None, "start it first"
        return self._server

    @property
    def faults(self) -> Mapping[str, Kind]:
        return {
            "kill-server": Kind(8, self._alone(self.kill_server)),
            "stop-server": Kind(3, self._alone(self.stop_server)),
            "freeze-server": Kind(5, self._alone(self.freeze_server)),
            "cut-connections": Kind(8, self.cut_connections),
            "delay-connections": Kind(5, self.delay_connections),
            "stall-connections": Kind(5, self.stall_connections),
        }

    def _alone(self, fault: Fault) -> Fault:
        """One thing at a time is done to the server; whoever comes meanwhile does nothing."""

        async def guarded(scene: Scene) -> str | None:
            if self._busy.locked():
                return None
            async with self._busy:
                return await fault(scene)

        return guarded

    async def kill_server(self, scene: Scene) -> str | None:
        """SIGKILL, and the same server again some moments later."""
        await asyncio.to_thread(self.server.kill)
        return await self._back(scene)

    async def stop_server(self, scene: Scene) -> str | None:
        """An orderly restart."""
        await asyncio.to_thread(self.server.stop)
        return await self._back(scene)

    async def _back(self, scene: Scene) -> str:
        try:
            await asyncio.sleep(scene.chance.uniform(0.0, 1.5))
        finally:
            await asyncio.to_thread(self.relaunch, self.server)
        return "the server"

    async def freeze_server(self, scene: Scene) -> str | None:
        """SIGSTOP: connections stand, and nobody answers."""
        self.server.signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(scene.chance.uniform(0.1, 2.0))
        finally:
            self.server.signal(signal.SIGCONT)
        return "the server"

    async def cut_connections(self, scene: Scene) -> str | None:
        """Every connection breaks off, and for a while no new one comes about."""
        self.proxy.refusing = True
        self.proxy.cut()
        try:
            await asyncio.sleep(scene.chance.uniform(0.0, 1.5))
        finally:
            self.proxy.refusing = False
        return "all connections"

    async def delay_connections(self, scene: Scene) -> str | None:
        """Every byte comes late."""
        self.proxy.delay = scene.chance.uniform(0.01, 0.2)
        try:
            await asyncio.sleep(scene.chance.uniform(0.3, 2.0))
        finally:
            self.proxy.delay = 0.0
        return "all connections"

    async def stall_connections(self, scene: Scene) -> str | None:
        """No byte comes through, and nothing breaks off."""
        self.proxy.stall()
        try:
            await asyncio.sleep(scene.chance.uniform(0.1, 2.0))
        finally:
            self.proxy.flow()
        return "all connections"
