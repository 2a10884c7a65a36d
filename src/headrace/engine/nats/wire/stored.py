"""Messages as a stream holds them."""

from __future__ import annotations

from datetime import datetime
from functools import lru_cache
from typing import NamedTuple

from headrace.engine.nats.wire.errors import ProtocolError
from headrace.engine.nats.wire.mux import Message


class Stored(NamedTuple):
    """A stored message; headers are the block it was stored with, if any."""

    seq: int
    subject: bytes
    headers: bytes | None
    payload: bytes
    time_ms: int


def stored(message: Message) -> Stored:
    """The message in an answer to a direct get. The server puts fields of its own behind those
    that are stored: Nats-Stream, -Subject, -Sequence and -Time-Stamp come first, in this order."""
    block = message.headers or b""
    cut = block.rfind(b"\r\nNats-Stream: ")
    lines = block[cut + 2 :].split(b"\r\n", 4)
    if cut < 0 or len(lines) < 5 or not lines[2].startswith(b"Nats-Sequence: "):
        raise ProtocolError(f"not an answer to a direct get: {block[:256]!r}")
    return Stored(
        int(lines[2][15:]),
        lines[1][14:],
        block[:cut] + b"\r\n\r\n" if cut > 8 else None,
        message.payload,
        milliseconds(lines[3][17:]),
    )


def milliseconds(stamp: bytes) -> int:
    """A time of the server, `2026-01-31T12:00:00.123456789Z`, zeros left out at the end."""
    return _second(stamp[:19]) + int(stamp[20:23].rstrip(b"Z").ljust(3, b"0"))


@lru_cache(maxsize=1024)
def _second(stamp: bytes) -> int:
    return int(datetime.fromisoformat(stamp.decode() + "+00:00").timestamp()) * 1000
