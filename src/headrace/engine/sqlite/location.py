"""Where a store is: `sqlite:jobs.db`, `sqlite:///var/lib/jobs.db?synchronous=normal`, or a path."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal
from urllib.parse import parse_qsl, unquote

from headrace.core.errors import InvalidValue
from headrace.core.values import milliseconds

Synchronous = Literal["full", "normal"]
"""`full` survives a loss of power with every answered write; `normal` may lose the last ones, but
never damages the store."""

BUSY_TIMEOUT = 10.0
"""Seconds to wait for a write lock that another program holds."""


@dataclass(frozen=True, slots=True)
class Location:
    """A file, and how to open it."""

    path: str
    synchronous: Synchronous = "full"
    busy_timeout: float = BUSY_TIMEOUT
    direct: bool = True
    """Whether an event loop may commit itself while that is quick; see pace.py."""

    @property
    def url(self) -> str:
        return f"sqlite:{self.path}"


def locate(
    where: str | os.PathLike[str],
    synchronous: str | None = None,
    busy_timeout: float | None = None,
    direct: bool | None = None,
) -> Location:
    """The location that a URL or a path names; arguments win over the URL's parameters."""
    text = os.fspath(where)
    given: dict[str, str] = {}
    if text.startswith("sqlite:"):
        text, _, query = text.removeprefix("sqlite:").partition("?")
        if text.startswith("//"):
            host, _, rest = text[2:].partition("/")
            if host:
                raise InvalidValue(
                    "url", f"{where!r} names a host; write sqlite:///absolute/path or sqlite:path"
                )
            text = f"/{rest}"
        text = unquote(text)
        given = dict(parse_qsl(query, keep_blank_values=True))
    if not text or text.startswith(":memory:"):
        raise InvalidValue(
            "url", f"{where!r} names no file; for jobs that need not survive use memory://"
        )
    for name in given:
        if name not in ("synchronous", "busy_timeout", "direct"):
            raise InvalidValue(
                "url",
                f"{name!r} is not a parameter; known are synchronous, busy_timeout and direct",
            )
    chosen = synchronous or given.get("synchronous", "full")
    if chosen not in ("full", "normal"):
        raise InvalidValue("synchronous", f"{chosen!r} is not one of full, normal")
    if busy_timeout is None:
        busy_timeout = _number(given.get("busy_timeout", str(BUSY_TIMEOUT)))
    busy_timeout = milliseconds("busy_timeout", busy_timeout) / 1000
    if direct is None:
        direct = _switch("direct", given.get("direct", "on"))
    return Location(os.path.abspath(text), chosen, busy_timeout, direct)


def _switch(field: str, text: str) -> bool:
    if text not in ("on", "off"):
        raise InvalidValue(field, f"{text!r} is not one of on, off")
    return text == "on"


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InvalidValue("busy_timeout", f"{text!r} is not a number of seconds") from None
