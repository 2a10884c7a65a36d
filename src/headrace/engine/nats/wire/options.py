"""Where to connect, as whom, and how patiently; read from a URL."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qsl, unquote

from headrace.core.errors import InvalidValue

DEFAULT_PORT = 4222

_FORM = "nats://HOST:PORT or tls://HOST:PORT, several hosts separated by commas"


class Address(NamedTuple):
    """One server."""

    host: str
    port: int = DEFAULT_PORT
    tls_name: str | None = None
    """The name its certificate is checked for, where that is not the host."""

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How to connect. Secrets never show in its repr."""

    servers: tuple[Address, ...]
    name: str = "headrace"
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    nkey: Path | None = None
    """A file with the seed of a user's nkey."""
    creds: Path | None = None
    """A credentials file: a user's JWT and seed. Read again at every connect."""
    tls: bool = False
    tls_first: bool = False
    """The server speaks TLS from the first byte (`handshake_first`)."""
    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    context: ssl.SSLContext | None = field(default=None, repr=False)
    """A context of your own, instead of `ca`, `cert` and `key`."""
    inbox_prefix: bytes = b"_INBOX"
    ping_interval: float = 20.0
    max_silent: int = 2
    """After so many pings without a sign of life the server is taken for dead."""
    connect_timeout: float = 5.0
    reconnect_wait: float = 0.05
    reconnect_wait_max: float = 2.0
    max_buffered: int = 64 << 20
    """Bytes that may wait to be sent before publishing is refused."""
    path: str = ""
    """What follows the hosts in the URL; of no meaning here."""
    extra: Mapping[str, str] = field(default_factory=dict[str, str])
    """The parameters of the URL that the caller said it knows."""

    @classmethod
    def parse(cls, url: str, known: Collection[str] = ()) -> Options:
        """The options of a URL. Parameters in `known` are the caller's, found in `extra`."""
        scheme, mark, rest = url.partition("://")
        if not mark or scheme not in ("nats", "tls"):
            raise InvalidValue("url", f"{redacted(url)!r} is no NATS address; use {_FORM}")
        rest, _, query = rest.partition("?")
        authority, _, path = rest.partition("/")
        credentials, _, hosts = authority.rpartition("@")
        taken = _parameters(query, known, url)
        user, password, token = _who(credentials)
        given = [bool(token), bool(user), *[name in taken for name in ("token", "nkey", "creds")]]
        if sum(given) > 1:
            raise InvalidValue(
                "url",
                f"{redacted(url)!r} says in several ways who connects; keep one of"
                " user:password@, token, nkey and creds",
            )
        if ("cert" in taken) != ("key" in taken):
            raise InvalidValue("url", f"{redacted(url)!r}: cert and key go together; give both")
        return cls(
            servers=_addresses(hosts, url),
            user=user,
            password=password,
            token=taken.get("token", token),
            nkey=_path(taken, "nkey"),
            creds=_path(taken, "creds"),
            tls=scheme == "tls" or any(name in taken for name in ("ca", "cert", "tls_first")),
            tls_first=_flag(taken, "tls_first"),
            ca=_path(taken, "ca"),
            cert=_path(taken, "cert"),
            key=_path(taken, "key"),
            inbox_prefix=_inbox(taken),
            name=taken.get("name", "headrace"),
            path=unquote(path),
            extra={name: taken[name] for name in known if name in taken},
        )

    def tls_context(self) -> ssl.SSLContext:
        """The context for connections, from the files named."""
        if self.context is not None:
            return self.context
        context = ssl.create_default_context()
        if self.ca:
            ca = self.ca
            _load("ca", ca, lambda: context.load_verify_locations(ca))
        if self.cert:
            cert, key = self.cert, self.key
            _load("cert", cert, lambda: context.load_cert_chain(cert, key))
        return context


def redacted(url: str) -> str:
    """The URL without its secrets, for messages."""
    scheme, mark, rest = url.partition("://")
    if not mark:
        scheme, rest = "", url
    rest, question, query = rest.partition("?")
    credentials, at, hosts = rest.rpartition("@")
    user, colon, _ = credentials.partition(":")
    shown = f"{user}:***" if colon else "***" if at else ""
    pairs = [pair.partition("=") for pair in query.split("&")] if query else []
    query = "&".join(
        f"{name}{equals}***" if name in _SECRET else f"{name}{equals}{text}"
        for name, equals, text in pairs
    )
    return f"{scheme}{mark}{shown}{at}{hosts}{question}{query}"


_SECRET = frozenset(["token", "password"])
_TAKEN = frozenset(
    ["token", "nkey", "creds", "ca", "cert", "key", "tls_first", "inbox_prefix", "name"]
)


def _parameters(query: str, known: Collection[str], url: str) -> dict[str, str]:
    taken: dict[str, str] = {}
    for name, text in parse_qsl(query, keep_blank_values=True):
        if name not in _TAKEN and name not in known:
            raise InvalidValue(
                "url",
                f"{redacted(url)!r}: {name!r} is not known; there are"
                f" {', '.join(sorted({*_TAKEN, *known}))}",
            )
        if not text or name in taken:
            raise InvalidValue("url", f"{redacted(url)!r}: give {name!r} one value")
        taken[name] = text
    return taken


def _who(credentials: str) -> tuple[str | None, str | None, str | None]:
    """User, password and token; a name alone is a token, as in other NATS clients."""
    user, colon, password = credentials.partition(":")
    if not credentials:
        return None, None, None
    if not colon:
        return None, None, unquote(user)
    return unquote(user), unquote(password), None


def _addresses(hosts: str, url: str) -> tuple[Address, ...]:
    return tuple(_address(host, url) for host in hosts.split(","))


def _address(text: str, url: str) -> Address:
    host, port = text, ""
    if text.startswith("["):
        host, closed, rest = text[1:].partition("]")
        port = rest.removeprefix(":")
        valid = bool(closed) and (not rest or rest.startswith(":"))
    else:
        host, _, port = text.partition(":")
        valid = True
    number = int(port) if port.isdecimal() and len(port) < 6 else 0 if port else DEFAULT_PORT
    if not valid or not host or not 0 < number < 65_536 or any(char.isspace() for char in host):
        raise InvalidValue("url", f"{redacted(url)!r} names no server; use {_FORM}")
    return Address(host, number)


def address(text: str) -> Address | None:
    """The address of a server as servers tell of each other; None where it makes no sense."""
    try:
        return _address(text, text)
    except InvalidValue:
        return None


def _path(taken: Mapping[str, str], name: str) -> Path | None:
    if name not in taken:
        return None
    path = Path(taken[name]).expanduser()
    if not path.is_file():
        raise InvalidValue("url", f"{name}={path} is no file; give the path of one")
    return path


def _flag(taken: Mapping[str, str], name: str) -> bool:
    text = taken.get(name, "false").lower()
    if text not in ("true", "false", "1", "0"):
        raise InvalidValue("url", f"{name}={text} is neither true nor false")
    return text in ("true", "1")


def _inbox(taken: Mapping[str, str]) -> bytes:
    text = taken.get("inbox_prefix", "_INBOX")
    if not text.isascii() or any(char.isspace() or char in "*>" for char in text):
        raise InvalidValue(
            "url", f"inbox_prefix={text} is no subject; use letters, digits, _ and dots"
        )
    return text.rstrip(".").encode()


def _load(what: str, path: Path, load: Callable[[], None]) -> None:
    try:
        load()
    except (OSError, ssl.SSLError) as error:
        raise InvalidValue(
            "url", f"{what}={path} cannot be used for TLS ({error}); give a PEM file"
        ) from None
