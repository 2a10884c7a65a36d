"""`headrace job`: add, list, view, cancel, retry, delete, watch."""

from __future__ import annotations

import json

import pytest

from headrace import App, WorkerOptions
from headrace.core.model import Dedup, DedupMode, OnLost, OnParentFailure, WhenFull
from headrace.core.retry import Steps
from tests.cli.helpers import Cli

# add


def test_add_writes_the_job_and_prints_its_id(cli: Cli) -> None:
    job = cli.add("mail:new", '{"to": "ada", "n": 12345678901234567890, "f": 1.10}')
    view = cli.json("job", "view", job)
    assert (view["type"], view["queue"], view["state"]) == ("mail:new", "default", "pending")
    assert view["payload"]["n"] == 12345678901234567890
    assert '"f": 1.10' in cli("job", "view", job).stdout


def test_add_takes_every_option(cli: Cli) -> None:
    parent = cli.add("first")
    options = """--queue mail --priority 2 --delay 1h30m --ttl 2h --timeout 90s --deadline 3h
        --max-tries 4 --id mine --unique once --key tenant --key /tenant --max-active 2
        --tag a --tag b --metadata by=me --metadata url=http://x/?a=b"""
    cli.add("second", '{"tenant": 7}', *options.split(), "--depends-on", parent)
    view = cli.json("job", "view", "mine")
    assert view["queue"] == "mail"
    assert view["state"] == "blocked"
    assert (view["priority"], view["max_tries"]) == (2, 4)
    assert (view["ttl"], view["timeout"]) == (7200, 90)
    assert view["deadline"] > view["run_at"] > view["created_at"]
    assert view["unique"] == "once"
    assert view["key"]["name"] == "tenant:7"
    assert view["tags"] == ["a", "b"]
    assert view["metadata"] == {"by": "me", "url": "http://x/?a=b"}
    assert view["depends_on"] == [parent]


def test_add_takes_every_rule(cli: Cli) -> None:
    parent = cli.add("first")
    options = """--priority 0 --lifo --retry 5s,1m --on-parent-failure wait --key k --max-queued 0
        --when-full replace-oldest --on-lost block"""
    job = cli.spec(cli.add("second", *options.split(), "--depends-on", parent))
    assert (job.priority, job.lifo, job.retry) == (0, True, Steps((5000, 60_000)))
    assert (job.depends_on, job.on_parent_failure) == ((parent,), OnParentFailure.WAIT)
    assert job.key
    assert (job.key.max_queued, job.key.when_full, job.key.on_lost) == (
        0,
        WhenFull.REPLACE_OLDEST,
        OnLost.BLOCK,
    )


def test_add_takes_every_rule_of_a_dedup_key(cli: Cli) -> None:
    def dedup(*options: str) -> Dedup | None:
        return cli.spec(cli.add("t", *options)).dedup

    assert dedup("--unique", "a") == Dedup("a")
    assert dedup("--unique", "b", "--throttle", "1m", "--extend") == Dedup(
        "b", DedupMode.THROTTLE, 60_000, True
    )
    assert dedup("--unique", "c", "--debounce", "5s") == Dedup("c", DedupMode.DEBOUNCE, 5000)
    kept = dedup("--keep-last")
    assert kept
    assert (kept.mode, kept.key[:2]) == (DedupMode.KEEP_LAST, "t#")
    wrong = {
        "give one of --throttle, --debounce and --keep-last": ["--throttle", "1s", "--keep-last"],
        "--extend is about --throttle": ["--extend"],
        "'often' is not a retry policy": ["--retry", "often"],
    }
    for message, options in wrong.items():
        assert message in cli("job", "add", "t", *options, code=2).stderr


def test_add_hands_the_trace_over(cli: Cli) -> None:
    trace = "0af7651916cd43dd8448eb211c80319c"
    parent = f"00-{trace}-b7ad6b7169203331-01"
    job = cli.add("hello", "--request-id", "r-1", "--traceparent", parent, "--tracestate", "a=1")
    view = cli.json("job", "view", job)
    assert (view["request_id"], view["trace_id"]) == ("r-1", trace)
    assert "traceparent: 'x' is not a W3C" in cli.error("job", "add", "t", "--traceparent", "x")


def test_add_reads_the_payload_from_stdin(cli: Cli) -> None:
    added = cli("job", "add", "hello", "-", "--json", stdin=' {"name": "Eve"}\n')
    assert json.loads(added.stdout)["payload"] == {"name": "Eve"}


def test_add_runs_at_a_time(cli: Cli) -> None:
    job = cli.add("hello", "--run-at", "2090-01-31T12:00:00+02:00")
    view = cli.json("job", "view", job)
    assert (view["run_at"], view["shown"]) == ("2090-01-31T10:00:00.000Z", "scheduled")


def test_add_with_an_app_uses_the_tasks_options_and_signature(cli: Cli) -> None:
    job = cli.add("mail:send", '{"to": "ada"}', "--app", "tasks", "--priority", "1")
    view = cli.json("job", "view", job)
    assert (view["queue"], view["max_tries"], view["priority"]) == ("mail", 2, 1)
    error = cli.error("job", "add", "mail:send", '{"to": 5}', "--app", "tasks")
    assert "the payload does not fit mail:send: Expected `str`, got `int`" in error


def test_add_refuses_a_duplicate_and_names_the_one_in_the_way(cli: Cli) -> None:
    first = cli.add("hello", "--unique", "k")
    assert f"is a duplicate: {first} holds the key 'k'" in cli.error(
        "job", "add", "hello", "--unique", "k"
    )
    cli.add("hello", "--id", "mine")
    assert "has an id that exists" in cli.error("job", "add", "hello", "--id", "mine")
    assert "which does not exist" in cli.error("job", "add", "hello", "--depends-on", "nobody")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["a b"], "'a b' is not a name"),
        (["t", "{"], "PAYLOAD is not JSON"),
        (["t", "[1]"], "PAYLOAD is not a JSON object"),
        (["t", "--delay", "-5"], "'-5' is not a duration"),
        (["t", "--delay", "5x"], "'5x' is not a duration; write 90s"),
        (["t", "--delay", "1m", "--run-at", "2090-01-01T00:00:00Z"], "not both"),
        (["t", "--run-at", "tomorrow"], "'tomorrow' is not a time"),
        (["t", "--run-at", "2090-01-01T00:00:00"], "has no time zone; add Z"),
        (["t", "--priority", "10"], "10 is not in the range 0<=x<=9"),
        (["t", "--max-tries", "0"], "0 is not in the range 1<=x<="),
        (["t", "--max-tries", "9" * 30], "is not in the range 1<=x<="),
        (["t", '{"a": "\udcff"}'], "PAYLOAD is not JSON"),
        (["t", '{"a":' * 3000], "PAYLOAD is not JSON"),
        (["t", "--id", "a/b"], "'a/b' is not a name"),
        (["t", "--queue", ""], "'' is not a name"),
        (["t", "--metadata", "novalue"], "'novalue' is not KEY=VALUE"),
        (["t", "--depends-on", "?"], "'?' is not a name"),
        (["t", "--nonsense"], "No such option '--nonsense'"),
        ([], "Missing argument 'TYPE'"),
    ],
)
def test_add_checks_what_it_is_given(cli: Cli, arguments: list[str], message: str) -> None:
    error = cli.error("job", "add", *arguments, code=2)
    assert message in error
    assert error.endswith("see 'headrace job add --help'")
    assert not (cli.folder / "headrace.db").exists()


def test_add_refuses_a_key_that_is_not_in_the_payload(cli: Cli) -> None:
    assert "nothing at '/tenant'" in cli.error("job", "add", "hello", "--key", "/tenant")


# list


def test_list_narrows_by_everything_it_offers(cli: Cli) -> None:
    mine = cli.add("a", '{"word": "needle"}', "--queue", "q", "--tag", "t", "--key", "k")
    cli.add("b", "--delay", "1h")

    def found(*arguments: str) -> list[str]:
        return [job["id"] for job in cli.json("job", "list", *arguments)]

    assert len(found()) == 2
    for narrowed in (
        ["--queue", "q"],
        ["--type", "a"],
        ["--tag", "t"],
        ["--key", "k"],
        ["--text", "needle"],
        ["--state", "pending", "--queue", "q", "--since", "1h"],
    ):
        assert found(*narrowed) == [mine], narrowed
    assert found("--until", "1h") == []
    assert len(found("--since", "2020-01-01T00:00:00Z")) == 2
    assert found("--state", "dead") == []


def test_list_knows_the_states_that_are_only_shown(cli: Cli) -> None:
    later = cli.add("a", "--delay", "1h")
    paused = cli.add("a", "--queue", "q")
    cli("queue", "pause", "q")
    assert [job["id"] for job in cli.json("job", "list", "--state", "scheduled")] == [later]
    assert [job["id"] for job in cli.json("job", "list", "--state", "paused")] == [paused]
    assert len(cli.json("job", "list", "--state", "scheduled", "--state", "pending")) == 2


def test_list_goes_on_at_a_cursor(cli: Cli) -> None:
    ids = [cli.add("a") for _ in range(5)]
    first = cli("job", "list", "--limit", "2")
    assert "More follow: --cursor" in first.stderr
    seen: list[str] = []
    cursor: list[str] = []
    while page := cli.json("job", "list", "--limit", "2", *cursor):
        seen += [job["id"] for job in page]
        cursor = ["--cursor", page[-1]["cursor"]]
    assert seen == ids[::-1]
    assert len(cli.json("job", "list", "--all", "--limit", "1")) == 5
    for wrong in ("x", "9" * 30, ""):
        assert "is not a cursor" in cli.error("job", "list", "--cursor", wrong, code=2)


def test_list_is_a_plain_table_when_nobody_looks(cli: Cli) -> None:
    job = "x" * 128
    cli.add("a" * 128, "--id", job, "--queue", "q" * 128)
    header, row = cli("job", "list").stdout.splitlines()
    assert header.split() == ["ID", "STATE", "QUEUE", "TYPE", "TRIES", "CREATED", "NOTE"]
    assert row.split()[:4] == [job, "pending", "q" * 128, "a" * 128]
    assert "\x1b" not in row


def test_list_of_nothing_says_so_on_stderr(cli: Cli) -> None:
    cli("queue", "pause", "q")
    assert cli("job", "list").stderr == "No jobs.\n"
    assert cli("job", "list", "--json").stdout == "[]\n"


@pytest.mark.parametrize("option", [["--limit", "0"], ["--state", "odd"], ["--since", "1 day"]])
def test_list_checks_what_it_is_given(cli: Cli, option: list[str]) -> None:
    assert f"Invalid value for '{option[0]}'" in cli.error("job", "list", *option, code=2)


# view


def test_view_tells_the_whole_story_of_a_dead_job(cli: Cli) -> None:
    job = cli.add("mail:send", '{"to": "nobody"}', "--app", "tasks")
    cli.work(job)
    text = cli("job", "view", job).stdout
    for part in (
        f"mail:send {job}",
        "state     dead",
        "tries     2 of 2",
        '    "to": "nobody"',
        "created",
        "try 1 on w-",
        "retry         ValueError: no such address: nobody",
        "try 2  2",
        "Traceback (most recent call last):",
        "raise ValueError(",
    ):
        assert part in text, part
    view = cli.json("job", "view", job)
    assert [event["eventType"] for event in view["events"]] == [
        "created",
        "started",
        "retry",
        "started",
        "dead",
    ]
    assert [error["try"] for error in view["errors"]] == [1, 2]


def test_view_shows_progress_logs_result_and_parents(cli: Cli) -> None:
    parent = cli.add("hello")
    child = cli.add("slow", '{"seconds": 0}', "--depends-on", parent)
    assert f"it waits for {parent} to complete" in cli("job", "view", child).stdout
    cli.work(parent, child)
    text = cli("job", "view", child).stdout
    assert "[#####---------------] 25 %  1/4  wait: for a while" in text
    assert "info     about to wait" in text
    assert '"done"' in text
    assert f'{parent}  completed  "hello world"' in text
    view = cli.json("job", "view", child)
    assert view["parents"] == [{"id": parent, "state": "completed", "result": "hello world"}]
    assert view["logs"][0]["message"] == "about to wait"
    assert view["progress"] == {
        "step": "wait",
        "message": "for a while",
        "current": 1.0,
        "total": 4.0,
    }


def test_view_says_why_a_job_is_not_running(cli: Cli) -> None:
    job = cli.add("hello", "--queue", "q")
    cli("queue", "pause", "q")
    why = cli.json("job", "view", job)["why"]
    assert why == ["queue 'q' is paused; resume it", "no worker serves queue 'q'; start one"]
    assert (
        "Why it is not running\n  queue 'q' is paused; resume it" in cli("job", "view", job).stdout
    )


def test_view_does_not_let_a_job_steer_the_terminal(cli: Cli) -> None:
    async def fail(app: App) -> str:
        @app.task(max_tries=1)
        def nasty() -> None:
            raise ValueError("\x1b[2Jcleared \x9b31m \u202ereversed")

        ref = await nasty.enqueue()
        worker = app.worker(WorkerOptions())
        await worker.start()
        await ref.wait(20)
        await worker.stop()
        return ref.id

    job = cli.do(fail)
    for command in (["job", "view", job], ["job", "list"], ["dead", "list"], ["events"]):
        text = cli(*command).stdout
        assert "\\x1b[2Jcleared \\x9b31m \\u202ereversed" in text
        assert not {"\x1b", "\x9b", "\u202e"} & set(text)


# act


def test_cancel_ends_waiting_jobs_and_names_those_it_cannot(cli: Cli) -> None:
    waiting, ended = cli.add("hello", "--delay", "1h"), cli.add("hello")
    cli.work(ended)
    result = cli("job", "cancel", waiting, ended, "nobody", "--reason", "no need", code=1)
    assert result.stdout == f"{waiting}  cancelled\n"
    assert result.stderr.splitlines() == [
        f"Error: job {ended} has ended already: completed",
        "Error: job 'nobody' does not exist; it may have been deleted or pruned by retention",
    ]
    assert cli.json("job", "view", waiting)["events"][-1]["reason"] == "no need"


def test_retry_brings_jobs_back(cli: Cli) -> None:
    job = cli.add("hello")
    assert "cannot be retried" in cli.error("job", "retry", job)
    cli.work(job)
    assert cli("job", "retry", job).stdout == f"{job}  retried, pending\n"
    assert cli.json("job", "view", job)["tries"] == 0


def test_waiting_jobs_are_given_another_priority_made_due_and_free_their_keys(cli: Cli) -> None:
    job = cli.add("hello", "--delay", "1h", "--unique", "once")
    assert cli("job", "set-priority", "0", job).stdout == f"{job}  priority 0\n"
    assert cli("job", "free-unique", job).stdout == f"{job}  dedup key freed\n"
    cli.add("hello", "--unique", "once")
    assert cli.json("job", "run-now", job)[0]["done"] == "due now, pending"
    view = cli.json("job", "view", job)
    assert (view["priority"], view["shown"]) == (0, "pending")
    cli.work(job)
    for command in (["set-priority", "1"], ["run-now"], ["free-unique"]):
        assert "the job is completed" in cli.error("job", *command, job)


def test_delete_needs_yes_where_nobody_can_be_asked(cli: Cli) -> None:
    job = cli.add("hello")
    error = cli.error("job", "delete", job, code=2)
    assert error == "Error: Delete 1 job? Nobody can be asked here; repeat it with --yes"
    assert cli.json("job", "delete", job, "--yes") == [
        {"id": job, "ok": True, "done": "deleted", "error": None}
    ]
    assert "does not exist" in cli.error("job", "view", job)


def test_watch_ends_with_the_job_and_its_exit_code_tells_how(cli: Cli) -> None:
    good, bad = cli.add("hello"), cli.add("mail:send", '{"to": "x"}', "--app", "tasks")
    cli.work(good, bad)
    assert "completed" in cli("job", "watch", good).stdout
    assert "ValueError: no such address: x" in cli("job", "watch", bad, code=1).stdout
    (line,) = cli("job", "watch", good, "--json").stdout.splitlines()
    record = json.loads(line)
    assert (record["state"], record["event"], record["final"]) == ("completed", "completed", True)
