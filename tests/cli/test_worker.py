"""`headrace worker` in a process of its own: start, log, signals, exit codes."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from headrace import State
from tests.cli.helpers import Cli, Program, until


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_worker_runs_jobs_and_ends_in_order_at_the_first_signal(
    cli: Cli, number: signal.Signals
) -> None:
    job = cli.add("hello", '{"name": "Ada"}')
    with Program(cli.folder, "worker", "tasks:app") as worker:
        worker.wait_for("is ready")
        assert cli("job", "watch", job).exit_code == 0
        worker.send(number)
        assert worker.code() == 0
    assert worker.wait_for("stopped in order")
    assert cli.json("job", "view", job)["result"] == "hello Ada"


def test_worker_says_at_its_start_what_it_is_going_to_do(folder: Path) -> None:
    with Program(folder, "worker", "tasks", "--concurrency", "7") as worker:
        worker.wait_for("is ready")
        shown = {
            line.split()[0]: line.split(None, 1)[1] for line in worker.lines if line[:2] == "  "
        }
        worker.send(signal.SIGINT)
        assert worker.code() == 0
    assert shown["service"] == "default"
    assert shown["engine"] == f"sqlite:{folder}/headrace.db"
    assert shown["queues"] == "default, mail"
    assert shown["types"] == "dies, hello, mail:send, slow, stuck"
    assert shown["concurrency"].startswith("7 jobs, 7 threads, ")
    assert shown["pid"] == str(worker.process.pid)


def test_worker_lets_running_jobs_finish(cli: Cli) -> None:
    job = cli.add("slow", '{"seconds": 1}')
    with Program(cli.folder, "worker", "tasks:app") as worker:
        until((cli.folder / "started").exists)
        worker.send(signal.SIGTERM)
        assert worker.code() == 0
    assert cli.json("job", "view", job)["state"] == State.COMPLETED


def test_worker_gives_back_what_does_not_finish_in_the_grace_period(cli: Cli) -> None:
    job = cli.add("slow", '{"seconds": 600}')
    with Program(cli.folder, "worker", "tasks:app", "--grace", "0.1") as worker:
        until((cli.folder / "started").exists)
        worker.send(signal.SIGTERM)
        assert worker.code() == 0
    after = cli.json("job", "view", job)
    assert (after["state"], after["tries"]) == (State.PENDING, 0)


def test_second_signal_leaves_at_once(cli: Cli) -> None:
    job = cli.add("slow", '{"seconds": 600}')
    with Program(cli.folder, "worker", "tasks:app") as worker:
        until((cli.folder / "started").exists)
        worker.send(signal.SIGINT)
        worker.wait_for("SIGINT: finishing")
        worker.send_again(signal.SIGINT)
        assert worker.code() == 128 + signal.SIGINT
    assert cli.json("job", "view", job)["tries"] == 0


def test_second_signal_ends_a_worker_whose_job_blocks_it(cli: Cli) -> None:
    cli.add("stuck")
    with Program(cli.folder, "worker", "tasks:app") as worker:
        until((cli.folder / "started").exists)
        worker.send(signal.SIGTERM)
        worker.send_again(signal.SIGTERM)
        assert worker.code() == 128 + signal.SIGTERM


def test_failures_are_in_the_log_with_the_handlers_own_frames(cli: Cli) -> None:
    job = cli.add("mail:send", '{"to": "nobody"}', "--app", "tasks")
    with Program(cli.folder, "worker", "tasks:app") as worker:
        (line,) = worker.wait_for(f"mail:send {job} failed its try")
        worker.wait_for(f"mail:send {job} is dead: ValueError: no such address: nobody")
        worker.send(signal.SIGINT)
        assert worker.code() == 0
    assert "WARNING" in line
    assert "tasks.py" in worker.output
    assert "executor.py" not in worker.output


def test_worker_serves_only_the_queues_it_is_told_to(cli: Cli) -> None:
    served, other = cli.add("hello", "--queue", "b"), cli.add("hello")
    with Program(cli.folder, "worker", "tasks:app", "--queue", "a=2", "--queue", "b") as worker:
        assert cli("job", "watch", served).exit_code == 0
        worker.wait_for("a=2, b=1")
        worker.send(signal.SIGINT)
        assert worker.code() == 0
    assert cli.json("job", "view", other)["state"] == State.PENDING


def test_json_makes_the_log_one_object_per_line(cli: Cli) -> None:
    with Program(cli.folder, "worker", "tasks:app", "--json") as worker:
        worker.wait_for("is ready")
        worker.send(signal.SIGINT)
        assert worker.code() == 0
    records = [json.loads(line) for line in worker.lines]
    assert {"time", "level", "logger", "message", "pid"} <= records[0].keys()
    assert records[-1]["message"] == "stopped in order"


def test_a_signal_while_the_app_still_opens_ends_the_worker(cli: Cli) -> None:
    (cli.folder / "waits.py").write_text(
        "import asyncio\n"
        "from headrace import App\n"
        "app = App('memory:')\n"
        "@app.on_start\n"
        "async def wait():\n"
        "    open('opening', 'w').close()\n"
        "    await asyncio.sleep(600)\n"
    )
    with Program(cli.folder, "worker", "waits:app") as worker:
        until((cli.folder / "opening").exists)
        worker.send(signal.SIGTERM)
        assert worker.code() == 0


def test_a_start_that_fails_is_one_line_and_exit_code_1(cli: Cli) -> None:
    (cli.folder / "fails.py").write_text(
        "from headrace import App\n"
        "app = App('memory:')\n"
        "@app.on_start\n"
        "def fail():\n"
        "    raise RuntimeError('no database')\n"
    )
    with Program(cli.folder, "worker", "fails:app") as worker:
        assert worker.code() == 1
    assert worker.lines[-1] == "Error: RuntimeError: no database; --debug shows where"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tasks:app", "--queue", "a", "--queue", "a"], "a queue is named twice"),
        (["tasks:app", "--queue", "a=0"], "'0' is not a weight"),
        (["tasks:app", "--queue", "a b"], "'a b' is not a name"),
        (["tasks:app", "--strict", "--queue", "a=2"], "--strict serves queues in order"),
        (["tasks:app", "--concurrency", "0"], "0 is not in the range 1<=x<="),
        (["tasks:app", "--lease", "10ms"], "lease: is below one second"),
        (["tasks:app", "--grace", "soon"], "'soon' is not a duration"),
        (["tasks:app", "--url", "sqlite:x.db"], "No such option '--url'"),
        ([], "Missing argument 'MODULE:APP'"),
    ],
)
def test_wrong_options_are_refused_before_anything_starts(
    cli: Cli, arguments: list[str], message: str
) -> None:
    assert message in cli.error("worker", *arguments, code=2)


def test_shared_options_before_worker_are_refused(cli: Cli) -> None:
    assert "--url is not for workers" in cli.error("--url", "x.db", "worker", "tasks:app", code=2)
