"""A TCP proxy in front of a server: its connections can be cut, refused, delayed and stalled."""

from __future__ import annotations

import asyncio
from contextlib import suppress

_CHUNK = 65_536


class Proxy:
    """Passes bytes on, as long as it is let."""

    def __init__(self) -> None:
        self._target = ("127.0.0.1", 0)
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self.refusing = False
        """New connections are closed at once."""
        self.delay = 0.0
        """Seconds by which bytes are late, in both directions."""

    async def start(self, host: str, port: int) -> int:
        """Listens; returns its own port."""
        self._target = (host, port)
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        self.cut()
        self.flow()

    def cut(self) -> None:
        """Breaks every connection off, wherever it is."""
        for writer in list(self._writers):
            writer.transport.abort()

    def stall(self) -> None:
        """Passes nothing on any more, and breaks nothing off."""
        self._flowing.clear()

    def flow(self) -> None:
        """Goes on after `stall`."""
        self._flowing.set()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.refusing:
            writer.transport.abort()
            return
        try:
            far_reader, far_writer = await asyncio.open_connection(*self._target)
        except OSError:
            writer.transport.abort()
            return
        both = (writer, far_writer)
        self._writers.update(both)
        try:
            await asyncio.gather(self._pass(reader, far_writer), self._pass(far_reader, writer))
        finally:
            self._writers.difference_update(both)
            for one in both:
                one.transport.abort()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(_CHUNK):
                if self.delay:
                    await asyncio.sleep(self.delay)
                await self._flowing.wait()
                writer.write(data)
                await writer.drain()
        writer.close()
