"""`headrace doctor` on a SQLite file: schema, damage, durability, permissions, space."""

from __future__ import annotations

import shutil
from collections import namedtuple

import msgspec
import pytest

from headrace import App
from headrace.core.model import NewJob
from headrace.engine.protocol import Health
from tests.cli.helpers import Cli, checks, present


def test_everything_is_well_with_a_fresh_store_and_a_worker(cli: Cli) -> None:
    cli.work(cli.add("hello"))
    present(cli, "default")
    found = checks(cli)
    assert {health for health, _, _ in found.values()} == {"ok"}
    assert found.keys() >= {
        "engine",
        "schema",
        "integrity",
        "durability",
        "permissions",
        "file system",
        "disk space",
        "workers",
        "queue default",
        "leases",
        "clock",
    }
    assert found["durability"][1] == "journal_mode wal, synchronous full"
    assert cli("doctor").stdout.splitlines()[0].startswith("ok    engine ")


def test_a_job_that_waits_long_is_warned_of(cli: Cli) -> None:
    async def add_old(app: App) -> None:
        job: NewJob = app.prepare("hello").job
        old = msgspec.structs.replace(job, run_at=job.run_at - 3_600_000)
        await (await app.engine()).insert([[old]], app.clock.now())

    cli.do(add_old)
    present(cli, "default")
    health, message, remedy = checks(cli)["queue default"]
    assert health == "warn"
    assert "the oldest due job waits for 1 h" in message
    assert "more workers" in remedy


def test_damage_is_found(cli: Cli) -> None:
    async def fill(app: App) -> None:
        await app.enqueue_many([app.prepare("a", {"text": "x" * 500}) for _ in range(500)])

    cli.do(fill)
    file = cli.folder / "headrace.db"
    body = bytearray(file.read_bytes())
    for page in range(20, len(body) // 4096):
        body[page * 4096 : page * 4096 + 64] = b"\xa5" * 64
    file.write_bytes(bytes(body))
    found = checks(cli, code=1)
    assert any(health == "fail" for health, _, _ in found.values())


@pytest.mark.parametrize(
    ("free", "health"), [(10 << 30, Health.OK), (1 << 29, Health.WARN), (1 << 20, Health.FAIL)]
)
def test_little_disk_space_is_told(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, free: int, health: Health
) -> None:
    usage = namedtuple("usage", "total used free")(1 << 40, 0, free)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    cli.add("hello")
    code = 1 if health is Health.FAIL else 0
    assert checks(cli, code=code)["disk space"][0] == health


def test_a_file_that_anybody_may_write_is_told(cli: Cli) -> None:
    cli.add("hello")
    (cli.folder / "headrace.db").chmod(0o666)
    assert checks(cli)["permissions"][0] == "warn"


@pytest.mark.parametrize(("mounted", "health"), [("ext4", "ok"), ("nfs4", "fail"), (None, "ok")])
def test_a_file_system_that_is_not_local_is_a_danger(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, mounted: str | None, health: str
) -> None:
    monkeypatch.setattr("headrace.engine.sqlite.checkup._mounted", lambda _: mounted)
    cli.add("hello")
    assert checks(cli, code=1 if health == "fail" else 0)["file system"][0] == health


def test_less_durable_writes_are_told(cli: Cli) -> None:
    cli.add("hello")
    found = checks(cli, "--url", f"sqlite:{cli.folder}/headrace.db?synchronous=normal")
    assert "a loss of power may undo the last writes" in found["durability"][1]
