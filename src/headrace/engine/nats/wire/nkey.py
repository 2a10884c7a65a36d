"""NATS keys: an Ed25519 seed in base32, with a kind and a checksum."""

from __future__ import annotations

import base64
import binascii

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

USER = 20 << 3
ACCOUNT = 0
OPERATOR = 14 << 3
_SEED = 18 << 3
_KINDS = frozenset([USER, ACCOUNT, OPERATOR, 13 << 3, 2 << 3, 23 << 3])


class KeyPair:
    """A seed that signs."""

    def __init__(self, kind: int, seed: bytes) -> None:
        self._kind, self._raw = kind, seed
        self._key = Ed25519PrivateKey.from_private_bytes(seed)

    @classmethod
    def from_seed(cls, text: str) -> KeyPair:
        """Raises `ValueError` for what is no seed."""
        try:
            raw = base64.b32decode(text + "=" * (-len(text) % 8))
        except binascii.Error:
            raise ValueError("not base32") from None
        if len(raw) != 36 or _checksum(raw[:-2]) != raw[-2:]:
            raise ValueError("cut off or mistyped: its checksum is wrong")
        kind = (raw[0] & 7) << 5 | (raw[1] & 0xF8) >> 3
        if raw[0] & 0xF8 != _SEED or kind not in _KINDS:
            raise ValueError("a key, but not a seed: seeds begin with S")
        return cls(kind, raw[2:34])

    @property
    def seed(self) -> str:
        return _text(bytes([_SEED | self._kind >> 5, (self._kind & 31) << 3]) + self._raw)

    @property
    def public(self) -> str:
        return _text(bytes([self._kind]) + self._key.public_key().public_bytes_raw())

    def sign(self, data: bytes) -> bytes:
        return self._key.sign(data)


def _text(raw: bytes) -> str:
    return base64.b32encode(raw + _checksum(raw)).rstrip(b"=").decode()


def _checksum(raw: bytes) -> bytes:
    return binascii.crc_hqx(raw, 0).to_bytes(2, "little")
