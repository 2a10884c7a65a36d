"""The server's side of the NATS protocol, taken apart in bulk. Pure: bytes in, calls out."""

from __future__ import annotations

from collections.abc import Callable

from headrace.engine.nats.wire.errors import ProtocolError

Callback = Callable[[bytes, bytes | None, bytes | None, bytes], None]
"""`callback(subject, reply, headers, payload)`; headers are the raw block."""

MAX_LINE = 1 << 16
"""A control line longer than this is not one. Subjects are limited to some kilobytes."""

MAX_INFO = 1 << 20
"""INFO names every server of a cluster."""

MAX_SIZE = 72 << 20
"""The server takes at most 64 MB a message, and adds headers of its own."""


class Parser:
    """Calls `callbacks[sid]` with each message and `control` with each other line.

    A callback that raises does not stop the others: `fault` is told. After a `ProtocolError` the
    stream has no meaning any more, and the parser takes nothing further.
    """

    def __init__(
        self,
        control: Callable[[bytes], None],
        fault: Callable[[Exception], None],
        max_size: int = MAX_SIZE,
    ) -> None:
        self.callbacks: dict[bytes, Callback] = {}
        self._control, self._fault = control, fault
        self._max_size = max_size
        self._parts: list[bytes] = []
        self._held = 0
        self._need = 0
        self._broken = False

    @property
    def held(self) -> int:
        """Bytes kept until the rest of their message comes."""
        return self._held

    def feed(self, data: bytes) -> None:
        """Takes what came; raises `ProtocolError` when it is not the protocol."""
        if self._broken:
            raise ProtocolError("the stream was broken before")
        if self._parts:
            self._parts.append(data)
            self._held += len(data)
            if self._held < self._need:
                return
            data = b"".join(self._parts)
            self._parts.clear()
        try:
            used, self._need = self._take(data)
        except BaseException:
            self._broken, self._held = True, 0
            raise
        self._held = len(data) - used
        if self._held:
            self._parts.append(data[used:])

    def _take(self, data: bytes) -> tuple[int, int]:
        """Hands on every complete message. How much was used, and how many bytes from there are
        known to be needed for the next."""
        pos, length, find = 0, len(data), data.find
        callback_of, max_size = self.callbacks.get, self._max_size
        while pos < length:
            eol = find(b"\r\n", pos, pos + MAX_LINE)
            if eol < 0:
                eol = self._end_of_info(data, pos)
                if eol < 0:
                    break
            words = data[pos:eol].split(b" ")
            count = len(words)
            start = body = eol + 2
            try:
                if words[0] == b"MSG" and 4 <= count <= 5:
                    reply = words[3] if count == 5 else None
                elif words[0] == b"HMSG" and 5 <= count <= 6:
                    reply = words[3] if count == 6 else None
                    body += int(words[-2])
                else:
                    self._line(words[0], data[pos:eol])
                    pos = start
                    continue
                end = start + int(words[-1])
            except ValueError:
                raise ProtocolError(f"a message without sizes: {data[pos : pos + 128]!r}") from None
            if not start <= body <= end <= start + max_size:
                raise ProtocolError(f"a message with impossible sizes: {data[pos : pos + 128]!r}")
            if end + 2 > length:
                return pos, end + 2 - pos
            if data[end] != 13 or data[end + 1] != 10:
                raise ProtocolError(f"a message longer than it says: {data[pos : pos + 128]!r}")
            pos = end + 2
            callback = callback_of(words[2])
            if callback is not None:
                try:
                    if body == start:
                        callback(words[1], reply, None, data[start:end])
                    else:
                        callback(words[1], reply, data[start:body], data[body:end])
                except Exception as error:
                    self._fault(error)
        return pos, 0

    def _line(self, verb: bytes, line: bytes) -> None:
        if verb not in _CONTROL:
            raise ProtocolError(f"no line of the NATS protocol: {line[:128]!r}")
        self._control(line)

    def _end_of_info(self, data: bytes, pos: int) -> int:
        """Where a line ends that is incomplete, or too long for anything but INFO."""
        left = len(data) - pos
        if left < MAX_LINE and (left < 5 or data[pos : pos + 4] in _PREFIXES):
            return -1
        if not data.startswith(b"INFO ", pos):
            raise ProtocolError(f"no line of the NATS protocol: {data[pos : pos + 128]!r}")
        eol = data.find(b"\r\n", pos, pos + MAX_INFO)
        if eol < 0 and left > MAX_INFO:
            raise ProtocolError(f"an INFO of more than {MAX_INFO:,} bytes")
        return eol


_CONTROL = frozenset([b"PING", b"PONG", b"INFO", b"+OK", b"-ERR"])
_PREFIXES = frozenset([b"MSG ", b"HMSG", b"PING", b"PONG", b"INFO", b"-ERR", b"+OK\r"])
