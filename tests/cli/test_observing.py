"""`headrace workers` and `headrace events`."""

from __future__ import annotations

import json
import signal

from headrace import App
from headrace.cli.observing import newest
from tests.cli.helpers import Cli, Program, present


def test_workers_lists_all_services_or_one(cli: Cli) -> None:
    present(cli, "default", jobs=("a", "b"))
    present(cli, "other", stopping=True)
    first, second = cli("workers").stdout.splitlines()[1:]
    assert first.split()[:6] == ["w-default", "default", "host", "1", "running", "2/10"]
    assert first.endswith("default, mail")
    assert "stopping" in second
    (one,) = cli.json("workers", "--service", "other")
    assert (one["id"], one["stopping"], one["queues"]) == ("w-other", True, ["default", "mail"])
    assert [worker["id"] for worker in cli.json("workers")] == ["w-default", "w-other"]


def test_workers_says_when_there_are_none(cli: Cli) -> None:
    cli.add("hello")
    assert "No workers; start one with" in cli("workers").stderr
    assert cli.json("workers") == []


def test_events_prints_the_journal_in_order(cli: Cli) -> None:
    job = cli.add("mail:send", '{"to": "x"}', "--app", "tasks")
    cli.work(job)
    other = cli.add("hello")
    lines = cli("events").stdout.splitlines()
    assert [line.split()[2] for line in lines] == [
        "created",
        "started",
        "retry",
        "started",
        "dead",
        "created",
    ]
    assert "ValueError: no such address: x" in lines[4]
    records = [json.loads(line) for line in cli("events", "--json").stdout.splitlines()]
    assert [record["seq"] for record in records] == sorted(record["seq"] for record in records)
    assert records[0]["eventType"] == "created"
    assert records[0]["payload"] == {"to": "x"}
    assert records[-1]["jobId"] == other


def test_events_narrows(cli: Cli) -> None:
    first = cli.add("a", "--queue", "q")
    second = cli.add("b")
    cli("job", "cancel", first)

    def found(*arguments: str) -> list[tuple[str, str]]:
        lines = cli("events", "--json", *arguments).stdout.splitlines()
        return [(event["jobId"], event["eventType"]) for event in map(json.loads, lines)]

    assert found("--queue", "q") == [(first, "created"), (first, "cancelled")]
    assert found("--type", "b") == [(second, "created")]
    assert found("--job", first, "--event", "cancelled") == [(first, "cancelled")]
    assert found("--event", "created", "--event", "dead") == [
        (first, "created"),
        (second, "created"),
    ]
    assert found("--after", "2") == [(first, "cancelled")]
    assert found("--limit", "1", "--event", "cancelled") == [(first, "cancelled")]
    assert found("--limit", "2") == [(first, "created"), (second, "created")]
    assert "Invalid value for '--event'" in cli.error("events", "--event", "odd", code=2)


def test_newest_is_found_whatever_the_length_of_the_journal(cli: Cli) -> None:
    async def measure(app: App) -> list[tuple[int, int]]:
        engine = await app.engine()
        found = [(await newest(engine), 0)]
        for jobs in (1, 1022, 1, 1, 1500):
            await app.enqueue_many([app.prepare("a") for _ in range(jobs)])
            last = (await engine.journal(found[-1][1], 10_000))[-1].event.seq
            found.append((await newest(engine), last))
        return found

    for found, real in cli.do(measure):
        assert found == real


def test_follow_shows_what_happens_from_now_on_until_interrupted(cli: Cli) -> None:
    cli.add("hello", "--id", "before")
    with Program(cli.folder, "events", "--follow", "--json") as events:
        # It says nothing when it is ready, so jobs are added until one is seen.
        number = 0
        while not events.lines:
            number += 1
            cli.add("hello", "--id", f"after-{number}")
        events.wait_for('"eventType":"created"')
        events.send(signal.SIGINT)
        assert events.code() == 130
    assert "before" not in events.output
    assert "Traceback" not in events.output


def test_follow_of_one_job_shows_its_past_too(cli: Cli) -> None:
    cli.add("hello", "--id", "mine", "--delay", "1h")
    with Program(cli.folder, "events", "--follow", "--job", "mine") as events:
        events.wait_for("created")
        cli("job", "cancel", "mine", "--reason", "enough")
        events.wait_for("enough")
        events.send(signal.SIGTERM)
        events.code()
