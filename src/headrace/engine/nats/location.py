"""Where an engine's stream is: from its URL."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from urllib.parse import parse_qsl

from msgspec import Struct

from headrace.core.errors import InvalidValue
from headrace.engine.nats.layout import DEFAULT_NAMESPACE, Layout
from headrace.engine.nats.wire.options import Options, redacted

EMBEDDED = "nats+embedded:"
KNOWN = ("namespace", "replicas", "projection", "monitor", "sync")


class Location(Struct, frozen=True):
    """What a URL says: whom to connect to, or which folder's own server to run."""

    url: str
    layout: Layout
    options: Options | None
    folder: str | None = None
    sync: str = "always"
    replicas: int | None = None
    projection: str | None = None
    monitor: int | None = None
    """The port of the server's monitoring; only the doctor looks there."""


def locate(url: str) -> Location:
    """Reads `nats://…`, `tls://…` or `nats+embedded:PATH`."""
    if url.startswith(EMBEDDED):
        rest, _, query = url.removeprefix(EMBEDDED).partition("?")
        folder = rest.removeprefix("//") or "headrace-nats"
        extra = dict(parse_qsl(query, keep_blank_values=True))
        unknown = extra.keys() - set(KNOWN)
        if unknown:
            raise InvalidValue(
                "url", f"{url!r}: {min(unknown)!r} is not known; there are {', '.join(KNOWN)}"
            )
        options = None
    else:
        options = Options.parse(url, KNOWN)
        extra, folder = dict(options.extra), None
        if "sync" in extra:
            raise InvalidValue("url", "sync is a setting of nats+embedded: only; see the server's")
    layout = Layout(extra.get("namespace", DEFAULT_NAMESPACE))
    shown = redacted(url) if folder is None else url
    return Location(
        shown,
        layout,
        options,
        folder,
        _sync(extra.get("sync", "always")),
        _replicas(extra.get("replicas")),
        _projection(extra.get("projection"), shown, layout),
        _monitor(extra.get("monitor")),
    )


def _sync(text: str) -> str:
    if not re.fullmatch(r"always|[1-9][0-9]{0,8}(ms|s|m|h)", text):
        raise InvalidValue("url", f"sync={text}: how often to sync to disk, as always or 10s")
    return text


def _replicas(text: str | None) -> int | None:
    if text is None:
        return None
    if text not in ("1", "3", "5"):
        raise InvalidValue("url", f"replicas={text}: JetStream keeps 1, 3 or 5")
    return int(text)


def _monitor(text: str | None) -> int | None:
    if text is None:
        return None
    if not text.isdecimal() or not 0 < int(text) < 65536:
        raise InvalidValue("url", f"monitor={text}: the port of the server's monitoring, as 8222")
    return int(text)


def _projection(path: str | None, url: str, layout: Layout) -> str:
    """A file that all processes of this user share; it may be deleted at any time."""
    if path is not None:
        return path
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    name = hashlib.blake2b(f"{url}\n{layout.namespace}".encode(), digest_size=8).hexdigest()
    return str(cache / "headrace" / f"{name}.db")
