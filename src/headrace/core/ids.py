"""ULIDs: sortable by creation time, 26 characters. Time and chance are arguments."""

from __future__ import annotations

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PAIRS = [a + b for a in _ALPHABET for b in _ALPHABET]


def ulid(now: int, chance: int) -> str:
    """The ULID of `now` (milliseconds since the epoch) and 80 bits of `chance`."""
    value = (now & 0xFFFFFFFFFFFF) << 80 | chance & (1 << 80) - 1
    pairs = _PAIRS
    return "".join([pairs[value >> shift & 1023] for shift in range(120, -1, -10)])
