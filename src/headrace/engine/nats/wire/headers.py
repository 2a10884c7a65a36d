"""Header blocks: `NATS/1.0[ status[ description]]`, then `Name: value` lines, then an empty one."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.engine.nats.wire.errors import ProtocolError

VERSION = b"NATS/1.0"
_START = VERSION + b"\r\n"


def build(fields: Mapping[bytes, bytes]) -> bytes:
    """A complete block; refuses what would forge another field."""
    return b"".join([_START, *[_line(name, value) for name, value in fields.items()], b"\r\n"])


def extend(block: bytes, more: bytes) -> bytes:
    """The block with further complete lines (`Name: value\\r\\n`) at its end."""
    if not block:
        return _START + more + b"\r\n"
    return block[:-2] + more + b"\r\n"


def parse(block: bytes) -> dict[bytes, bytes]:
    """The fields of a block; of a repeated name the last."""
    if not block.startswith(VERSION):
        raise ProtocolError(f"a header block starts with {block[:16]!r}, not with NATS/1.0")
    fields: dict[bytes, bytes] = {}
    for line in block.split(b"\r\n")[1:]:
        if line:
            name, colon, value = line.partition(b":")
            if not colon:
                raise ProtocolError(f"a header line without a colon: {line[:64]!r}")
            fields[name] = value.strip()
    return fields


def value(block: bytes | None, name: bytes) -> bytes | None:
    """The first value of one field, without parsing the others."""
    if block is None:
        return None
    at = block.find(b"\r\n" + name + b":")
    if at < 0:
        return None
    at += len(name) + 3
    return block[at : block.find(b"\r\n", at)].strip()


def status(block: bytes | None) -> int:
    """The status of a block's first line; 0 where it has none."""
    if block is None or block[8:9] != b" ":
        return 0
    digits = block[9:12]
    return int(digits) if digits.isdigit() else 0


def description(block: bytes) -> str:
    """The words after the status."""
    return block[13 : block.find(b"\r\n")].decode("utf-8", "replace")


def _line(name: bytes, value: bytes) -> bytes:
    if not name or not _NAME.issuperset(name):
        raise ProtocolError(f"{name!r} is not the name of a header: use printable ASCII, no colon")
    if b"\r" in value or b"\n" in value:
        raise ProtocolError(f"header {name.decode()}: a value may not have line breaks")
    return b"%b: %b\r\n" % (name, value)


_NAME = frozenset(range(33, 127)) - {ord(":")}
