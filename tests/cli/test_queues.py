"""`headrace queue`: list, show, set, pause, resume, drain, purge, delete."""

from __future__ import annotations

from typing import Any

import pytest

from headrace import App, QueueSettings, State
from headrace.core.queue import RateLimit, Retention
from headrace.core.retry import Steps
from tests.cli.helpers import Cli


def settings(cli: Cli, name: str) -> QueueSettings:
    async def read(app: App) -> Any:
        return await app.queue(name).settings()

    return cli.do(read)


def test_list_counts_jobs_by_state(cli: Cli) -> None:
    done = cli.add("hello")
    cli.work(done)
    cli.add("hello", "--delay", "1h")
    cli("queue", "pause", "mail")
    header, default, mail = cli("queue", "list").stdout.splitlines()
    assert header.split()[:4] == ["QUEUE", "STATUS", "WORKERS", "PENDING"]
    assert default.split() == ["default", "running", "0", "1", "0", "0", "0", "1", "0", "0"]
    assert mail.split() == ["mail", "paused", "0", "0", "0", "0", "0", "0", "0", "0"]
    queues = cli.json("queue", "list")
    assert queues[0]["counts"] == {"completed": 1, "pending": 1}
    assert queues[1]["paused"] is True


def test_show_marks_what_was_set(cli: Cli) -> None:
    cli("queue", "set", "mail", "max_tries=20", "max_runtime=2h")
    text = cli("queue", "show", "mail").stdout
    assert "max_tries              20  (set)" in text
    assert "retention.completed    1d\n" in text
    shape = cli.json("queue", "show", "mail")["settings"]
    assert (shape["max_tries"], shape["max_runtime"]) == (20, 7200)
    assert shape["retry"]["text"] == "1m"
    assert shape["retention"]["dead"] == {"age": None, "count": None}


def test_show_of_an_unknown_queue_names_those_there_are(cli: Cli) -> None:
    cli.add("hello")
    error = cli.error("queue", "show", "mial")
    assert error == "Error: queue 'mial' has neither jobs nor settings; queues are default"


def test_set_reads_every_setting(cli: Cli) -> None:
    pairs = """max_active=5 max_runtime=1h30m max_tries=3 retry=5s,1m,10m weight=4 max_age=1d
        max_entries=1000 discard=old rate=10/5s+20 dead_letters=off retention.completed=90s
        retention.dead=30d retention.dead.count=50 retention.failed=forever"""
    cli("queue", "set", "mail", *pairs.split(), "--force")
    assert settings(cli, "mail") == QueueSettings(
        max_active=5,
        max_runtime=5_400_000,
        max_tries=3,
        retry=Steps((5_000, 60_000, 600_000)),
        weight=4,
        max_age=86_400_000,
        max_entries=1000,
        discard=QueueSettings().discard.__class__.OLD,
        rate=RateLimit(10, 5000, 20),
        dead_letters=False,
        retention={
            State.COMPLETED: Retention(90_000),
            State.DEAD: Retention(2_592_000_000, 50),
            State.FAILED: Retention(),
        },
    )


def test_what_show_writes_set_reads(cli: Cli) -> None:
    pairs = ["max_active=5", "rate=10/5s+20", "retry=5s,1m", "retention.dead.count=7"]
    cli("queue", "set", "one", *pairs, "max_age=36h", "--force")
    shown = cli("queue", "show", "one").stdout.partition("Settings\n")[2]
    again = ["=".join(line.removesuffix("(set)").split()) for line in shown.splitlines()]
    cli("queue", "set", "two", *again, "--force")
    shape = [cli.json("queue", "show", name)["settings"] for name in ("one", "two")]
    assert shape[0] == shape[1]


def test_set_none_goes_back_to_the_default(cli: Cli) -> None:
    cli("queue", "set", "q", "max_tries=20", "max_runtime=2h", "rate=5/m", "retention.dead=90d",
        "max_active=3", "--force")  # fmt: skip
    names = ("max_tries", "max_runtime", "rate", "retention.dead", "max_active")
    cli("queue", "set", "q", *(f"{name}=none" for name in names), "--force")
    assert settings(cli, "q") == QueueSettings()


def test_set_says_what_changed(cli: Cli) -> None:
    assert cli("queue", "set", "q", "max_tries=20").stdout == "queue q: max_tries is 20, was 10\n"
    assert cli("queue", "set", "q", "max_tries=20").stdout == "queue q: nothing to change\n"
    assert cli.json("queue", "set", "q", "max_tries=30")["change"] == "update"


def test_a_first_limit_on_an_unused_queue_needs_no_force(cli: Cli) -> None:
    assert cli.json("queue", "set", "q", "max_active=1")["change"] == "update"


def test_a_change_that_may_hurt_needs_force(cli: Cli) -> None:
    cli.json("queue", "set", "q", "max_tries=10")
    error = cli.error("queue", "set", "q", "max_tries=1", "max_active=1")
    assert "max_active is lowered; max_tries is lowered; repeat it with --force" in error
    assert settings(cli, "q") == QueueSettings()
    assert cli.json("queue", "set", "q", "max_tries=1", "--force")["change"] == "migration"


@pytest.mark.parametrize(
    ("pair", "message"),
    [
        ("max_tries", "'max_tries' is not KEY=VALUE"),
        ("max_tries=many", "max_tries: 'many' is not a whole number"),
        ("max_active=99999999999", "is not a whole number up to 1,000,000,000"),
        ("rate=99999999999/s", "is not a rate"),
        ("max_tries=0", "max_tries: 0 is not a whole number from 1"),
        ("max_runtime=soon", "max_runtime: 'soon' is not a duration"),
        ("max_runtime=0", "max_runtime: 0.0 is not a positive number"),
        ("retry=often", "retry: 'often' is not a retry policy; use one of 1m, 10m"),
        ("rate=fast", "rate: 'fast' is not a rate"),
        ("rate=5/0s", "rate: needs"),
        ("discard=both", "discard: 'both' is not new or old"),
        ("dead_letters=perhaps", "dead_letters: 'perhaps' is not on or off"),
        ("retention.active=1d", "retention.active: is not a setting"),
        ("retention.dead.age=1d", "retention.dead.age: is not a setting"),
        ("paused=yes", "paused: is not set like this; use `queue pause`"),
        ("colour=red", "colour: is not a queue setting; settings are max_active"),
    ],
)
def test_set_checks_what_it_is_given(cli: Cli, pair: str, message: str) -> None:
    assert message in cli.error("queue", "set", "q", pair, code=2)


def test_pause_drain_and_resume(cli: Cli) -> None:
    cli.add("hello", "--queue", "q")
    assert cli("queue", "pause", "q").stdout == "queue q is paused: 1 waiting, 0 running\n"
    assert cli("queue", "drain", "q").stdout == "queue q is draining: 1 waiting, 0 running\n"
    error = cli.error("job", "add", "hello", "--queue", "q")
    assert "queue 'q' is draining; resume it first" in error
    assert cli.json("queue", "resume", "q")["paused"] is False
    cli.add("hello", "--queue", "q")


def test_purge_names_the_count_and_deletes_what_waits(cli: Cli) -> None:
    done = cli.add("hello")
    cli.work(done)
    for _ in range(3):
        cli.add("hello")
    error = cli.error("queue", "purge", "default", code=2)
    assert "Delete 3 waiting jobs of queue default? Nobody can be asked here" in error
    assert cli("queue", "purge", "default", "--yes").stdout == "deleted 3 jobs of queue default\n"
    purged = cli.json("queue", "purge", "default", "--ended", "--yes")
    assert purged == {"queue": "default", "deleted": 1}
    assert "has neither jobs nor settings" in cli.error("queue", "purge", "default", "--yes")


def test_delete_needs_force_while_jobs_wait(cli: Cli) -> None:
    cli.add("hello")
    error = cli.error("queue", "delete", "default", "--yes")
    assert "holds 1 waiting job; purge it, or repeat it with --force" in error
    error = cli.error("queue", "delete", "default", "--force", code=2)
    assert "Delete queue default with its settings and 1 job?" in error
    text = cli("queue", "delete", "default", "--force", "--yes").stdout
    assert text == "deleted 1 job of queue default; the queue is gone\n"
    assert cli.json("queue", "list") == []
