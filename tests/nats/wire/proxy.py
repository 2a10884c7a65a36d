"""A man in the middle who spoils a connection."""

from __future__ import annotations

import asyncio
import contextlib
from types import TracebackType


class Proxy:
    """Passes bytes between clients and a server, until told otherwise."""

    def __init__(self, port: int) -> None:
        self.target = port
        self.piece = 1 << 16
        """How many bytes are passed at a time."""
        self.accepted = 0
        self._writers: list[tuple[asyncio.StreamWriter, asyncio.StreamWriter]] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Proxy:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._server.close()
        self.cut()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    def cut(self) -> None:
        """Breaks every connection, in the middle of whatever is said."""
        for pair in self._writers:
            for writer in pair:
                writer.transport.abort()
        self._writers.clear()

    def inject(self, data: bytes) -> None:
        """Says something to the clients in the server's name."""
        for client, _ in self._writers:
            client.write(data)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        theirs, ours = await asyncio.open_connection("127.0.0.1", self.target)
        self._writers.append((writer, ours))
        for source, sink in ((reader, ours), (theirs, writer)):
            task = asyncio.ensure_future(self._pass(source, sink))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pass(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(self.piece):
                sink.write(data)
                await sink.drain()
        sink.transport.abort()
