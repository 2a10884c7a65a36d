"""From a URL to an engine."""

from __future__ import annotations

import os

from headrace.core.errors import InvalidValue
from headrace.engine.protocol import Engine

DEFAULT_URL = "sqlite:headrace.db"


def engine_of(given: str | os.PathLike[str] | Engine | None) -> Engine:
    """The engine that was given, or that is named."""
    if given is None or isinstance(given, str | os.PathLike):
        return engine_for(given)
    if not callable(getattr(given, "insert", None)):
        raise InvalidValue("url", f"{given!r} is not a URL, a path or an engine")
    return given


def engine_for(url: str | os.PathLike[str] | None) -> Engine:
    """The engine that a URL names; `$HEADRACE_URL`, else a SQLite file here, where none is
    given."""
    text = os.fspath(url) if url is not None else os.environ.get("HEADRACE_URL") or DEFAULT_URL
    scheme, colon, _ = text.partition(":")
    if text.startswith("memory:"):
        from headrace.engine.memory import MemoryEngine

        return MemoryEngine(text)
    if scheme == "sqlite" or not colon or scheme.lower() in _DRIVES:
        from headrace.engine.sqlite import SqliteEngine

        return SqliteEngine(text)
    if scheme in ("nats", "tls", "nats+embedded"):
        from headrace.engine.nats import NatsEngine

        return NatsEngine(text)
    raise InvalidValue(
        "url",
        f"{text!r} names no engine; use sqlite:PATH for a file, nats://HOST:PORT for a JetStream"
        " server, nats+embedded:PATH for one of your own, or memory: for tests",
    )


_DRIVES = frozenset("abcdefghijklmnopqrstuvwxyz")
"""`C:\\jobs.db` is a path, not a URL."""
