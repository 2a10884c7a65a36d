"""The stream of a namespace: created and kept in shape by whoever opens it."""

from __future__ import annotations

import logging
from typing import Any

from msgspec import Struct

from headrace.core.errors import EngineError, EngineUnavailable, StoreTooNew
from headrace.engine.nats.errors import translated
from headrace.engine.nats.layout import Layout
from headrace.engine.nats.wire.errors import ApiError, PermissionDenied
from headrace.engine.nats.wire.jetstream import JetStream
from headrace.engine.nats.wire.stored import milliseconds

log = logging.getLogger("headrace.nats")

OLDEST = (2, 12)
"""The oldest server that has atomic batches and message schedules."""

SAFE = 3
"""So many replicas are kept where so many peers are there."""

LAYOUT = 1
"""The version of what is in the stream and where; written into its metadata."""

_LAYOUT_NAME = "headrace.layout"

_NO_STREAM = 10059
_EXISTS = 10058
_TOO_FEW_PEERS = frozenset({10005, 10023, 10074})


class StreamState(Struct, frozen=True):
    """A stream as it was found."""

    created: str
    replicas: int
    last: int
    time: int
    """What the server's clock showed, in milliseconds."""


def wanted(layout: Layout, replicas: int) -> dict[str, Any]:
    """The configuration of the stream."""
    return {
        "name": layout.stream,
        "subjects": layout.subjects,
        "retention": "limits",
        "storage": "file",
        "discard": "old",
        "num_replicas": replicas,
        "max_msgs": -1,
        "max_bytes": -1,
        "max_age": 0,
        "max_msgs_per_subject": -1,
        "max_consumers": -1,
        "duplicate_window": 120_000_000_000,
        "allow_direct": True,
        "allow_rollup_hdrs": True,
        "allow_msg_ttl": True,
        "allow_atomic": True,
        "allow_msg_schedules": True,
        "republish": {
            "src": f"{layout.namespace}.due.>",
            "dest": f"{layout.namespace}.bell.due.>",
            "headers_only": True,
        },
        "metadata": {_LAYOUT_NAME: str(LAYOUT)},
    }


async def ensure(
    js: JetStream, layout: Layout, server: dict[str, Any], replicas: int | None
) -> StreamState:
    """Creates the stream or brings it into shape. `server` is what the server says of itself;
    `replicas` is how many are asked for: None leaves those of a stream that is there, and gives a
    new one as many as the cluster allows."""
    check_server(server)
    with translated(f"opening the stream {layout.stream}"):
        found = await info(js, layout)
        if found is None:
            found = await _create_somehow(js, layout, server, replicas)
        else:
            refuse_newer(layout, found["config"])
            if differs(layout, found["config"], replicas):
                found = await _reconcile(js, layout, found, replicas)
    return StreamState(
        found["created"],
        found["config"]["num_replicas"],
        found["state"]["last_seq"],
        milliseconds(found["ts"].encode()),
    )


async def info(js: JetStream, layout: Layout) -> dict[str, Any] | None:
    """What the server says of the stream; None where there is none."""
    try:
        return await js.api(f"STREAM.INFO.{layout.stream}")
    except ApiError as error:
        if error.err_code == _NO_STREAM:
            return None
        raise


def refuse_newer(layout: Layout, config: dict[str, Any]) -> None:
    """Raises where the stream has a layout that is not known here, before anything is changed."""
    version = _metadata(config).get(_LAYOUT_NAME, "1")
    if not version.isdecimal() or int(version) > LAYOUT:
        raise StoreTooNew(
            f"the stream {layout.stream} was written by a newer Headrace (layout {version}, this"
            f" one knows {LAYOUT}); upgrade Headrace here too"
        )


def _metadata(config: dict[str, Any]) -> dict[str, str]:
    return config.get("metadata") or {}


async def _reconcile(
    js: JetStream, layout: Layout, found: dict[str, Any], replicas: int | None
) -> dict[str, Any]:
    """Brings a stream into shape, for whoever may; others use it as it is."""
    config = found["config"]
    changed = config | wanted(layout, replicas or int(config["num_replicas"]))
    changed["metadata"] = _metadata(config) | changed["metadata"]
    try:
        return await js.api(f"STREAM.UPDATE.{layout.stream}", changed)
    except PermissionDenied as error:
        log.warning("the stream %s is not as it should be, and %s", layout.stream, error)
        return found


def differs(layout: Layout, have: dict[str, Any], replicas: int | None) -> bool:
    """Whether a stream is not as it should be. The server leaves out what is off, and adds what
    was left to it."""
    config = wanted(layout, replicas or int(have["num_replicas"]))
    if not config.pop("metadata").items() <= _metadata(have).items():
        return True
    return any((have.get(name) or None) != (value or None) for name, value in config.items())


async def _create_somehow(
    js: JetStream, layout: Layout, server: dict[str, Any], replicas: int | None
) -> dict[str, Any]:
    """With as many replicas as are asked for, else with as many as the cluster allows."""
    if replicas is None and server.get("cluster"):
        try:
            return await _create(js, layout, SAFE)
        except ApiError as error:
            if error.err_code not in _TOO_FEW_PEERS:
                raise
    return await _create(js, layout, replicas or 1)


async def _create(js: JetStream, layout: Layout, replicas: int) -> dict[str, Any]:
    try:
        made = await js.api(f"STREAM.CREATE.{layout.stream}", wanted(layout, replicas))
        # Whoever comes second is told a time of creation of its own.
        return await info(js, layout) or made
    except PermissionDenied:
        raise EngineError(
            f"there is no stream {layout.stream}, and this user may not make it; open it once as"
            " one who may: see `headrace nats permissions --role admin`"
        ) from None
    except ApiError as error:
        found = await info(js, layout) if error.err_code == _EXISTS else None
        if found is None:
            raise
        return found  # somebody else was quicker


def peers(server: dict[str, Any]) -> int:
    """How many servers of the cluster are seen from here: those that tell clients of themselves."""
    return max(1, len(set(server.get("connect_urls") or ()))) if server.get("cluster") else 1


def check_server(server: dict[str, Any]) -> None:
    """Refuses a server that cannot keep our stream."""
    version = str(server.get("version", ""))
    numbers = version.partition("-")[0].split(".")
    try:
        have = (int(numbers[0]), int(numbers[1]))
    except (ValueError, IndexError):
        raise EngineUnavailable(f"the NATS server does not tell its version: {version!r}") from None
    if have < OLDEST:
        raise EngineError(
            f"the NATS server is version {version}; Headrace needs 2.12 or newer for atomic"
            " batches and message schedules: upgrade the server"
        )
    if not server.get("jetstream") and not server.get("cluster"):
        raise EngineUnavailable(
            "JetStream is disabled on the NATS server; enable it with `jetstream {}` in its"
            " configuration, or start it with -js"
        )
