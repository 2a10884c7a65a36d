"""`headrace nats`: a server of one's own, and permissions for services."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path

from headrace import App
from tests.cli.helpers import Cli, Program


def test_permissions_are_an_entry_of_users(cli: Cli) -> None:
    text = cli("nats", "permissions", "--service", "billing").stdout
    assert "# nats://billing-worker:PASSWORD@HOST:4222?namespace=billing" in text
    assert "password: $BILLING_WORKER_PASSWORD" in text
    assert '"$JS.API.CONSUMER.MSG.NEXT.billing-jobs.*"' in text


def test_permissions_for_programs(cli: Cli) -> None:
    order = ("nats", "permissions", "--service", "billing", "--role", "producer")
    found = cli.json(*order, "--namespace", "prod")
    assert (found["user"], found["role"]) == ("billing-producer", "producer")
    assert "prod.jobs.billing.>" in found["publish"]
    assert not any("MSG.NEXT" in subject for subject in found["publish"])
    assert found["inbox_prefix"] == "_INBOX_billing-producer"
    assert found["config"].startswith("{")


def test_unknown_role_is_refused(cli: Cli) -> None:
    line = cli.error("nats", "permissions", "--service", "a", "--role", "king", code=2)
    assert "'worker', 'producer', 'admin'" in line


def test_server_runs_until_it_is_interrupted(folder: Path) -> None:
    async def use() -> None:
        async with App(f"nats+embedded:{folder / 'store'}?projection={folder / 'p.db'}") as app:
            await app.enqueue_many([app.prepare("t", {})])

    with Program(folder, "nats", "up", "store") as program:
        (line,) = program.wait_for("export HEADRACE_URL=nats+embedded:")
        assert line.endswith(f"{folder}/store")
        program.wait_for("Ctrl-C stops it")
        asyncio.run(use())
        with Program(folder, "nats", "up", "store") as second:
            second.wait_for("Error: another process runs the server of store already")
            assert second.code() == 1
        program.send(signal.SIGINT)
        assert program.code() == 0


def test_server_tells_programs_where_it_is(folder: Path) -> None:
    with Program(folder, "nats", "up", "store", "--json") as program:
        (line,) = program.wait_for("nats://")
        found = json.loads(line)
        assert found["url"].startswith("nats://")
        assert found["shared"] == f"nats+embedded:{folder}/store"
        program.send(signal.SIGTERM)
        assert program.code() == 0
