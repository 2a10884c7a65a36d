"""`headrace dead`: list, replay, dismiss."""

from __future__ import annotations

import pytest

from headrace import App, WorkerOptions
from tests.cli.helpers import Cli


@pytest.fixture
def dead(cli: Cli) -> list[str]:
    """Three dead jobs, the oldest first."""
    ids = [cli.add("mail:send", f'{{"to": "{name}"}}', "--app", "tasks") for name in "abc"]
    cli.work(*ids)
    return ids


def test_list_shows_the_last_error(cli: Cli, dead: list[str]) -> None:
    rows = cli("dead", "list").stdout.splitlines()[1:]
    assert [row.split()[0] for row in rows] == dead[::-1]
    assert "ValueError: no such address: c" in rows[0]
    assert [job["id"] for job in cli.json("dead", "list", "--text", "address: b")] == [dead[1]]
    assert cli.json("dead", "list", "--queue", "default") == []


def test_replay_by_id_brings_jobs_back(cli: Cli, dead: list[str]) -> None:
    assert cli("dead", "replay", dead[0]).stdout == f"{dead[0]}  replayed\n"
    assert cli.json("job", "view", dead[0])["state"] == "pending"
    error = cli.error("dead", "replay", dead[0])
    assert f"job {dead[0]} cannot be replayed" in error


def test_dismiss_by_id_takes_jobs_out_of_the_list(cli: Cli, dead: list[str]) -> None:
    cli("dead", "dismiss", dead[0], "--reason", "known")
    view = cli.json("job", "view", dead[0])
    assert (view["state"], view["events"][-1]["reason"]) == ("dismissed", "known")
    assert len(cli.json("dead", "list")) == 2


def test_bulk_names_the_count_and_asks(cli: Cli, dead: list[str]) -> None:
    error = cli.error("dead", "replay", "--all", code=2)
    assert error == "Error: Replay 3 dead jobs? Nobody can be asked here; repeat it with --yes"
    assert len(cli.json("dead", "list")) == len(dead)


@pytest.mark.parametrize("which", [["--all"], ["--queue", "mail"], ["--type", "mail:send"]])
def test_bulk_replay_says_exactly_how_many(cli: Cli, dead: list[str], which: list[str]) -> None:
    assert cli("dead", "replay", *which, "--yes").stdout == f"replayed {len(dead)} jobs\n"
    assert cli.json("dead", "list") == []
    assert cli.json("dead", "replay", *which, "--yes") == {"replayed": 0, "refused": 0}


def test_bulk_dismiss_by_text(cli: Cli, dead: list[str]) -> None:
    dismissed = cli.json("dead", "dismiss", "--text", "address: b", "--yes", "--reason", "known")
    assert dismissed == {"dismissed": 1, "refused": 0}
    assert cli.json("job", "view", dead[1])["state"] == "dismissed"


def test_bulk_in_many_batches_keeps_count(cli: Cli) -> None:
    async def fill(app: App) -> None:
        @app.task(max_tries=1)
        async def bad() -> None:
            raise ValueError("bad")

        refs = await app.enqueue_many([bad.prepare() for _ in range(1200)])
        worker = app.worker(WorkerOptions())
        await worker.start()
        for answer in refs:
            assert answer.ref
            await answer.ref.wait(20)
        await worker.stop()

    cli.do(fill)
    assert cli("dead", "replay", "--all", "--yes").stdout == "replayed 1,200 jobs\n"
    assert cli("queue", "purge", "default", "--yes").stdout == (
        "deleted 1,200 jobs of queue default\n"
    )


@pytest.mark.parametrize("which", [[], ["--all", "--queue", "q"], ["x", "--all"]])
def test_exactly_one_way_to_say_which(cli: Cli, dead: list[str], which: list[str]) -> None:
    assert "say which: job ids, a filter" in cli.error("dead", "replay", *which, code=2)
    assert len(cli.json("dead", "list")) == len(dead)
