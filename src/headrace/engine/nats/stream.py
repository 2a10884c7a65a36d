"""The stream of a namespace: created and kept in shape by whoever opens it."""

from __future__ import annotations

import asyncio
from typing import Any

from msgspec import Struct

from headrace.core.errors import EngineError, EngineUnavailable
from headrace.engine.nats.errors import translated
from headrace.engine.nats.layout import Layout
from headrace.engine.nats.wire.errors import ApiError
from headrace.engine.nats.wire.jetstream import JetStream

OLDEST = (2, 12)
"""The oldest server that has atomic batches and message schedules."""

_NO_STREAM = 10059
_EXISTS = 10058
_STARTING = frozenset({10005, 10008, 10009, 10074, 10122})
"""A cluster that has not found its leader or its peers yet."""

START_LIMIT = 20.0


class StreamState(Struct, frozen=True):
    """A stream as it was found."""

    created: str
    replicas: int
    last: int


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
            "src": f"{layout.namespace}.>",
            "dest": f"{layout.namespace}.bell.>",
            "headers_only": True,
        },
    }


async def ensure(
    js: JetStream, layout: Layout, server: dict[str, Any], replicas: int | None
) -> StreamState:
    """Creates the stream or brings it into shape."""
    _check_version(str(server.get("version", "0")))
    async with asyncio.timeout(START_LIMIT):
        while True:
            try:
                return await _ensure(js, layout, server, replicas)
            except ApiError as error:
                if error.err_code not in _STARTING and error.code != 503:
                    with translated(f"opening the stream {layout.stream}"):
                        raise
                await asyncio.sleep(0.1)


async def _ensure(
    js: JetStream, layout: Layout, server: dict[str, Any], replicas: int | None
) -> StreamState:
    found = await info(js, layout)
    if found is None:
        config = wanted(layout, replicas or await _replicas(js, server))
        try:
            with translated_missing():
                found = await js.api(f"STREAM.CREATE.{layout.stream}", config)
        except ApiError as error:
            if error.err_code != _EXISTS:
                raise
            found = await info(js, layout)
            assert found
    else:
        have = found["config"]
        config = wanted(layout, replicas or have["num_replicas"])
        if any(have.get(name) != value for name, value in config.items() if value):
            found = await js.api(f"STREAM.UPDATE.{layout.stream}", have | config)
    return StreamState(
        found["created"], found["config"]["num_replicas"], found["state"]["last_seq"]
    )


async def info(js: JetStream, layout: Layout) -> dict[str, Any] | None:
    """What the server says of the stream; None where there is none."""
    try:
        with translated_missing():
            return await js.api(f"STREAM.INFO.{layout.stream}")
    except ApiError as error:
        if error.err_code == _NO_STREAM:
            return None
        raise


def translated_missing() -> Any:
    """Nobody answering the API means that JetStream is off."""
    return translated_only_unavailable()


class translated_only_unavailable:
    """Leaves what the API says, translates everything else."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None and not isinstance(error, ApiError):
            with translated("opening the stream"):
                raise error


async def _replicas(js: JetStream, server: dict[str, Any]) -> int:
    """Three where three peers are there, else one."""
    if not server.get("cluster"):
        return 1
    try:
        account = await js.api("INFO")
    except ApiError:
        return 1
    return 3 if len(server.get("connect_urls") or ()) >= 3 or _peers(account) >= 3 else 1


def _peers(account: dict[str, Any]) -> int:
    return int(account.get("cluster", {}).get("size", 0)) if account else 0


def _check_version(version: str) -> None:
    numbers = version.split("-")[0].split(".")
    try:
        have = (int(numbers[0]), int(numbers[1]))
    except (ValueError, IndexError):
        raise EngineUnavailable(f"the server does not tell its version ({version!r})") from None
    if have < OLDEST:
        raise EngineError(
            f"the NATS server is version {version}; Headrace needs 2.12 or newer for atomic"
            " batches and message schedules"
        )
