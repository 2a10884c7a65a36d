"""A proxy that lets a message through and keeps the answer to itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

_CHUNK = 65_536

Told = Callable[[bytes], bool]


class Swallower:
    """Stands between a client and a server.

    `swallow(trigger)` arms it: once the client has sent something for which `trigger` is true,
    nothing of what the server says comes back any more, until `cut`. With `drop(trigger)` the
    server does not hear it either.
    """

    def __init__(self) -> None:
        self._target = ("127.0.0.1", 0)
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._trigger: Told | None = None
        self._drops = False
        self.swallowed = asyncio.Event()
        """Set when an answer has been kept, or what it would have answered."""

    async def start(self, port: int) -> str:
        """Listens; returns the address to use in the place of the server's."""
        self._target = ("127.0.0.1", port)
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def swallow(self, trigger: Told) -> None:
        self._trigger, self._drops = trigger, False
        self.swallowed.clear()

    def drop(self, trigger: Told) -> None:
        self._trigger, self._drops = trigger, True
        self.swallowed.clear()

    def cut(self) -> None:
        """Breaks every connection off; new ones pass everything on."""
        self._trigger = None
        for writer in list(self._writers):
            writer.transport.abort()

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        self.cut()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(*self._target)
        both = (writer, far_writer)
        self._writers.update(both)
        silent = asyncio.Event()
        try:
            await asyncio.gather(
                self._forth(reader, far_writer, silent), self._back(far_reader, writer, silent)
            )
        except (OSError, asyncio.CancelledError):
            pass  # cut off, or the test is over
        finally:
            self._writers.difference_update(both)
            for one in both:
                one.transport.abort()

    async def _forth(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, silent: asyncio.Event
    ) -> None:
        while data := await reader.read(_CHUNK):
            if self._trigger is not None and self._trigger(data):
                silent.set()
            if silent.is_set() and self._drops:
                self.swallowed.set()
                continue
            writer.write(data)
            await writer.drain()
        writer.close()

    async def _back(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, silent: asyncio.Event
    ) -> None:
        while data := await reader.read(_CHUNK):
            if silent.is_set():
                self.swallowed.set()
                continue
            writer.write(data)
            await writer.drain()
        writer.close()
