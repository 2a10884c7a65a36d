"""What `headrace doctor` says of a server, its stream, and the projection beside it."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from headrace.core.model import MAX_PAYLOAD, MAX_RESULT
from headrace.engine.nats import stream
from headrace.engine.nats.errors import translated
from headrace.engine.nats.location import Location
from headrace.engine.nats.session import Session
from headrace.engine.nats.wire.errors import WireError
from headrace.engine.protocol import Check, Checkup, Health

OK, WARN, FAIL = Health.OK, Health.WARN, Health.FAIL

ROOM = MAX_PAYLOAD + MAX_RESULT + (64 << 10)
"""A message may hold a payload and a result of the largest size, and what is said of the job."""

NEARLY_FULL = 0.8

MONITOR_PORT = 8222
"""Where servers show their monitoring unless they are told otherwise."""

_SYNC = "sync_interval: always"
_SYNC_LINE = re.compile(r'^\s*sync_interval:\s*"?([\w.]+)"?', re.MULTILINE)


class Config(Struct, frozen=True):
    """The settings of JetStream that are of interest here."""

    sync_interval: int = 0
    sync_always: bool = False
    max_storage: int = -1


class Monitored(Struct, frozen=True):
    """What the monitoring of a server says of JetStream."""

    config: Config = Config()
    storage: int = 0


async def checkup(session: Session, location: Location, now: int) -> Checkup:
    """Looks at everything; changes nothing."""
    behind = session.projection.position
    await session.catch_up()
    with translated("looking at the stream"):
        found = await stream.info(session.js, session.layout)
    assert found
    monitored = await _monitored(session, location)
    checks = [
        _server(session),
        _stream(session, found),
        _replicas(session, found),
        await _storage(session, monitored),
        _sync(location, monitored),
        _payload(session),
        _projection(session, found["state"]["last_seq"], behind),
    ]
    return Checkup(tuple(checks), tuple(session.projection.oldest_due(now)))


def _server(session: Session) -> Check:
    info = session.connection.server_info
    name, version = info.get("server_name", "?"), info.get("version", "?")
    cluster = f" of the cluster {info['cluster']}" if info.get("cluster") else ""
    return Check("server", OK, f"{name}{cluster}, nats-server {version}, JetStream on")


def _stream(session: Session, found: dict[str, Any]) -> Check:
    state, layout = found["state"], session.layout
    text = f"{layout.stream}: {state['messages']:,} messages, {state['bytes'] / 1e6:,.1f} MB"
    if stream.differs(layout, found["config"], None):
        remedy = (
            "open it once as a user who may change it: `headrace nats permissions --role admin`"
        )
        return Check("stream", WARN, f"{text}; its settings are not what they should be", remedy)
    return Check("stream", OK, text)


def _replicas(session: Session, found: dict[str, Any]) -> Check:
    replicas = int(found["config"]["num_replicas"])
    peers = stream.peers(session.connection.server_info)
    cluster: dict[str, Any] = found.get("cluster") or {}
    others: list[dict[str, Any]] = cluster.get("replicas") or []
    away = [peer["name"] for peer in others if peer.get("offline") or not peer.get("current")]
    text = f"{replicas} of {peers} server{'s' * (peers > 1)}"
    if leader := cluster.get("leader"):
        text += f", led by {leader}"
    if away:
        remedy = "start them, or look at their logs: with one more gone, nothing can be written"
        return Check("replicas", WARN, f"{text}; not up to date: {', '.join(away)}", remedy)
    if replicas < stream.SAFE <= peers:
        remedy = f"add ?replicas={stream.SAFE} to the URL, once"
        return Check("replicas", WARN, f"{text}: one server that is gone stops all jobs", remedy)
    return Check("replicas", OK, text)


async def _storage(session: Session, monitored: Monitored | None) -> Check:
    """The account's limit counts, else the server's."""
    used, most = (monitored.storage, monitored.config.max_storage) if monitored else (0, -1)
    try:
        account = await session.js.api("INFO")
        if (limit := int(account["limits"]["max_storage"])) > 0:
            used, most = int(account["storage"]), limit
        used = used or int(account["storage"])
    except WireError:
        pass  # this user may not ask
    text = f"{used / 1e6:,.1f} MB used"
    if most <= 0:
        return Check("storage", OK, f"{text}; the limit, if there is one, is not told")
    text += f" of {most / 1e6:,.0f} MB"
    if used > most * NEARLY_FULL:
        remedy = "raise max_file_store of the server or the account's limit, or keep jobs shorter"
        return Check("storage", WARN, text, remedy)
    return Check("storage", OK, text)


# Durability


def _sync(location: Location, monitored: Monitored | None) -> Check:
    if location.folder is not None:
        return _own_sync(location)
    if monitored is None:
        text = (
            "this server does not tell how often it syncs to disk; as it comes, only every two"
            " minutes, and a power failure takes back what was confirmed since"
        )
        remedy = (
            f"see that its configuration says jetstream {{ {_SYNC} }}; to have it checked, add"
            " ?monitor=PORT to the URL, the port of its monitoring"
        )
        return Check("durability", WARN, text, remedy)
    if monitored.config.sync_always:
        return Check("durability", OK, "every write is synced before it is confirmed")
    return _takes_back(f"{monitored.config.sync_interval / 1e9:g} s")


def _own_sync(location: Location) -> Check:
    """The configuration that the server of a folder was started with, whoever started it."""
    assert location.folder is not None
    config = Path(location.folder, "server.conf")
    try:
        found = _SYNC_LINE.search(config.read_text())
    except OSError:
        found = None
    sync = found[1] if found else location.sync
    if sync == "always":
        return Check("durability", OK, "every write is synced before it is confirmed")
    return _takes_back(sync)


def _takes_back(every: str) -> Check:
    text = f"synced every {every}: a power failure takes back what was confirmed since"
    return Check("durability", WARN, text, f"set jetstream {{ {_SYNC} }} in its configuration")


async def _monitored(session: Session, location: Location) -> Monitored | None:
    """What the monitoring says, if it can be reached; a client is not told these things."""
    link = session.connection.link
    if location.folder is not None or link is None:
        return None
    port = location.monitor or MONITOR_PORT
    host = f"[{link.address.host}]" if ":" in link.address.host else link.address.host

    def look() -> bytes:
        import urllib.request  # which takes its time, and nobody but the doctor needs it

        with urllib.request.urlopen(f"http://{host}:{port}/jsz", timeout=2) as answer:
            return answer.read(1 << 20)

    try:
        found = msgspec.json.decode(await asyncio.to_thread(look), type=Monitored)
    except (OSError, ValueError):
        return None
    return found if found.config.sync_interval else None


# Sizes


def _payload(session: Session) -> Check:
    most = session.connection.max_payload
    text = f"messages of up to {most / (1 << 20):.3g} MiB"
    if most < ROOM:
        remedy = "set max_payload: 8MB in the server's configuration"
        text += f"; a job with the largest payload and result needs {ROOM / (1 << 20):.3g}"
        return Check("max_payload", WARN, text, remedy)
    return Check("max_payload", OK, text)


def _projection(session: Session, last: int, behind: int) -> Check:
    """It was brought up to date just now; if it had been far behind, nobody has looked for long."""
    projection = session.projection
    where = projection.path or "in memory"
    text = f"{where}, {projection.size / 1e6:,.1f} MB, {max(0, last - behind):,} messages behind"
    lag = last - projection.position
    if lag > 0 and projection.position < behind:
        return Check("projection", WARN, f"{text}, and does not follow", f"delete {where}")
    return Check("projection", OK, f"{text}, up to date now")
