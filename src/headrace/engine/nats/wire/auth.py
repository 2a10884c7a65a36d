"""What a client says about itself to be let in."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.core.errors import InvalidValue
from headrace.engine.nats.wire.errors import AuthRefused
from headrace.engine.nats.wire.options import Options

if TYPE_CHECKING:
    from headrace.engine.nats.wire.nkey import KeyPair


def credentials(options: Options, nonce: str | None, server: str) -> dict[str, Any]:
    """The fields of CONNECT that say who connects; a nonce is signed where there is a key."""
    if options.creds:
        jwt, seed = _read_creds(options.creds)
        return {"jwt": jwt, "sig": _sign(seed, nonce, server, options.creds)[1]}
    if options.nkey:
        public, signature = _sign(_read(options.nkey, "nkey"), nonce, server, options.nkey)
        return {"nkey": public, "sig": signature}
    if options.token:
        return {"auth_token": options.token}
    if options.user is not None:
        return {"user": options.user, "pass": options.password or ""}
    return {}


def offered(options: Options) -> str:
    """What was shown to the server, in words and without secrets."""
    if options.creds:
        return f"the credentials of {options.creds}"
    if options.nkey:
        return f"the nkey of {options.nkey}"
    if options.token:
        return "a token"
    if options.user is not None:
        return f"user {options.user!r} and a password"
    return "no credentials"


def _sign(seed: str, nonce: str | None, server: str, path: Path) -> tuple[str, str]:
    if not nonce:
        raise AuthRefused(
            f"{server} does not take keys; connect with user and password, or give it nkeys or"
            " an operator in its configuration"
        )
    pair = _pair(seed, path)
    signature = base64.urlsafe_b64encode(pair.sign(nonce.encode())).rstrip(b"=").decode()
    return pair.public, signature


def _pair(seed: str, path: Path) -> KeyPair:
    try:
        from headrace.engine.nats.wire.nkey import KeyPair
    except ImportError:
        raise InvalidValue(
            "url", "nkey and creds need the package cryptography: pip install 'headrace[nats]'"
        ) from None
    try:
        return KeyPair.from_seed(seed)
    except ValueError as error:
        raise InvalidValue("url", f"{path} holds no usable nkey seed ({error})") from None


def _read(path: Path, what: str) -> str:
    try:
        return path.read_text("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidValue("url", f"{what}={path} cannot be read ({error})") from None


def _read_creds(path: Path) -> tuple[str, str]:
    """The JWT and the seed of a credentials file, each between dashed lines."""
    blocks: list[str] = []
    inside = False
    for line in _read(path, "creds").splitlines():
        if line.startswith("---"):
            inside = "BEGIN" in line
        elif inside and line.strip():
            blocks.append(line.strip())
            inside = False
    if len(blocks) != 2:
        raise InvalidValue(
            "url",
            f"creds={path} is no credentials file: it needs a user JWT and a seed between"
            " BEGIN and END lines, as `nsc generate creds` writes them",
        )
    return blocks[0], blocks[1]
