"""`headrace doctor`: what is well, what is not, and what to do."""

from __future__ import annotations

import pytest

from headrace import App
from headrace.cli import doctor
from headrace.core.claims import ClaimRequest, Share
from headrace.runtime.clock import SystemClock
from tests.cli.helpers import Cli, checks, present


def test_jobs_that_nobody_will_run_are_warned_of(cli: Cli) -> None:
    cli.add("hello", "--queue", "lonely")
    cli.add("hello", "--queue", "still")
    cli("queue", "pause", "still")
    found = checks(cli)
    assert found["workers"][:2] == ("warn", "none, and 2 jobs waiting")
    health, message, remedy = found["queue lonely"]
    assert health == "warn"
    assert message.startswith("no worker serves it; 1 waiting, 0 running")
    assert "--queue lonely" in remedy
    assert found["queue still"][2] == "`headrace queue resume still`"
    text = cli("doctor").stdout
    assert "→ `headrace queue resume still`" in text


def test_leases_that_ran_out_are_found(cli: Cli) -> None:
    cli.add("hello")

    async def claim(app: App) -> None:
        request = ClaimRequest(
            service="default",
            worker="w-gone",
            shares=(Share("default", 1),),
            limit=1,
            lease=-60_000,
            now=app.clock.now(),
        )
        await (await app.engine()).claim(request)

    cli.do(claim)
    assert checks(cli)["leases"][0] == "warn"
    present(cli, "default")
    assert checks(cli, code=1)["leases"][:2] == ("fail", "1 active job with a lease that ran out")


def test_dead_letters_are_counted(cli: Cli) -> None:
    cli.work(cli.add("mail:send", '{"to": "x"}', "--app", "tasks"))
    assert checks(cli)["dead letters"][:2] == ("warn", "1 dead job")


def test_a_clock_that_differs_is_noticed(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    cli.add("hello")
    real = doctor.App.__init__

    class Late:
        def now(self) -> int:
            return SystemClock().now() - 600_000

    def init(self: App, *args: object, **kwargs: object) -> None:
        real(self, *args, **kwargs)  # pyright: ignore[reportArgumentType]
        self.clock = Late()  # pyright: ignore[reportAttributeAccessIssue]

    monkeypatch.setattr(App, "__init__", init)
    health, message, remedy = checks(cli, code=1)["clock"]
    assert health == "fail"
    assert message.startswith("the newest event is ")
    assert "NTP" in remedy


def test_a_worker_whose_clock_is_ahead_is_noticed(cli: Cli) -> None:
    cli.add("hello")
    present(cli, "default", beat_at=4_102_444_800_000)
    assert checks(cli)["clock"][0] == "warn"


def test_a_store_that_is_not_there_is_not_made(cli: Cli) -> None:
    found = checks(cli, "--url", "sqlite:none.db", code=1)
    assert found["engine"][0] == "fail"
    assert "none.db does not exist" in found["engine"][1]
    assert not (cli.folder / "none.db").exists()


def test_a_file_that_is_no_store_is_named(cli: Cli) -> None:
    (cli.folder / "junk.db").write_text("junk " * 1000)
    health, message, remedy = checks(cli, "--url", "sqlite:junk.db", code=1)["engine"]
    assert (health, remedy) == ("fail", "give another path")
    assert "is not a SQLite database" in message


def test_memory_is_well_too(cli: Cli) -> None:
    assert {health for health, _, _ in checks(cli, "--url", "memory:").values()} == {"ok"}
