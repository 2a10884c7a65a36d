"""`headrace doctor` on NATS: version, replicas, room, durability, message size, projection."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.engine.nats import stream
from headrace.testing.nats import NatsCluster, NatsServer
from tests.cli.helpers import Cli, checks, until

pytestmark = pytest.mark.timeout(60)

BIG = "max_payload: 8MB\n"


def url_of(server: NatsServer, folder: Path, *more: str) -> str:
    query = "&".join((f"projection={folder / 'projection.db'}", *more))
    return f"{server.url}?{query}"


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    with NatsServer() as server:
        yield server


def test_durable_server_is_well(cli: Cli) -> None:
    with NatsServer(sync="always", config=BIG) as server:
        url = url_of(server, cli.folder, f"monitor={server.monitor_port}")
        cli("--url", url, "job", "add", "hello")
        found = checks(cli, "--url", url)
    own = ("server", "stream", "replicas", "storage", "durability", "max_payload", "projection")
    assert {found[name][0] for name in own} == {"ok"}
    assert "JetStream on" in found["server"][1]
    assert found["replicas"][1] == "1 of 1 server, led by n1"
    assert found["durability"][1] == "every write is synced before it is confirmed"
    assert found["projection"][1].endswith("up to date now")
    assert "of 10,737 MB" in found["storage"][1]


def test_sync_interval_that_can_lose_work_is_warned_of(cli: Cli, server: NatsServer) -> None:
    url = url_of(server, cli.folder, f"monitor={server.monitor_port}")
    health, message, remedy = checks(cli, "--url", url)["durability"]
    assert health == "warn"
    assert "synced every 120 s" in message
    assert "sync_interval: always" in remedy


def test_sync_interval_that_cannot_be_learned_is_warned_of(cli: Cli, server: NatsServer) -> None:
    url = url_of(server, cli.folder, "monitor=1")
    health, message, remedy = checks(cli, "--url", url)["durability"]
    assert health == "warn"
    assert "does not tell" in message
    assert "sync_interval: always" in remedy
    assert "?monitor=PORT" in remedy


def test_small_messages_are_warned_of(cli: Cli, server: NatsServer) -> None:
    health, message, remedy = checks(cli, "--url", url_of(server, cli.folder))["max_payload"]
    assert (health, remedy) == ("warn", "set max_payload: 8MB in the server's configuration")
    assert message.startswith("messages of up to 1 MiB")


@pytest.mark.parametrize(
    ("sync", "health", "message"),
    [
        ("", "ok", "every write is synced before it is confirmed"),
        ("&sync=1s", "warn", "synced every 1s: a power failure takes back what was confirmed"),
    ],
)
def test_server_of_a_folder_is_known(cli: Cli, sync: str, health: str, message: str) -> None:
    found = checks(cli, "--url", f"nats+embedded:{cli.folder}/n?projection={cli.folder}/p.db{sync}")
    assert found["durability"][0] == health
    assert found["durability"][1].startswith(message)
    assert found["max_payload"][:2] == ("ok", "messages of up to 8 MiB")


def test_storage_that_is_nearly_full_is_warned_of(cli: Cli) -> None:
    limits = "jetstream { max_file: 100K, max_mem: 1K }"
    users = '{ user: "u", password: "p" }'
    config = f'accounts {{ A {{ {limits}, users: [{users}] }} }}\nno_auth_user: "u"\n'
    with NatsServer(config=config) as server:
        url = url_of(server, cli.folder)
        text = json.dumps({"name": "x" * 90_000})
        cli("--url", url, "job", "add", "hello", text)
        health, message, remedy = checks(cli, "--url", url)["storage"]
    assert health == "warn"
    assert message.endswith("of 0 MB")
    assert "max_file_store" in remedy


def test_replicas_of_a_cluster_are_looked_at(cli: Cli) -> None:
    with NatsCluster() as cluster:
        query = f"projection={cli.folder / 'projection.db'}"
        url = f"{cluster.url}?{query}"
        assert checks(cli, "--url", f"{url}&namespace=one&replicas=1")["replicas"][0] == "warn"

        def well() -> tuple[str, str, str] | None:
            found = checks(cli, "--url", url)["replicas"]
            return found if found[0] == "ok" else None

        _, message, _ = until(well)  # a stream that was just made has replicas to come
        assert message.startswith("3 of 3 servers, led by n")
        leader = message.rpartition(" ")[2]
        next(server for server in cluster.servers if server.name != leader).kill()

        def warned() -> tuple[str, str, str] | None:
            found = checks(cli, "--url", url)["replicas"]
            return found if found[0] == "warn" else None

        _, message, remedy = until(warned)
        assert "not up to date: n" in message
        assert "nothing can be written" in remedy


def test_older_server_is_refused_by_name(
    cli: Cli, server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "OLDEST", (99, 0))
    health, message, remedy = checks(cli, "--url", url_of(server, cli.folder), code=1)["engine"]
    assert health == "fail"
    assert message.startswith("the NATS server is version 2.")
    assert "upgrade the server" in remedy
