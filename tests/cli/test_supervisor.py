"""Several worker processes, reloading, and PID 1."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from headrace import State
from tests.cli.helpers import TASKS, Cli, Program, alive, pids, until


def test_processes_work_side_by_side_and_end_in_order(cli: Cli) -> None:
    job = cli.add("hello")
    with Program(cli.folder, "worker", "tasks:app", "--processes", "2") as supervisor:
        workers = pids(supervisor.wait_for("is ready", 2))
        assert len(set(workers)) == 2
        assert cli("job", "watch", job).exit_code == 0
        supervisor.send(signal.SIGTERM)
        assert supervisor.code() == 0
    assert len(supervisor.wait_for("stopped in order", 2)) == 2
    assert not any(map(alive, workers))


def test_a_process_that_dies_is_started_again_with_growing_delays(cli: Cli) -> None:
    cli.add("dies", "--max-tries", "1")
    with Program(cli.folder, "worker", "tasks:app", "--processes", "2") as supervisor:
        (first,) = supervisor.wait_for("was killed by SIGKILL")
        assert "starting it again in 0.5 s" in first
        number = re.search(r"worker process (\d)", first)
        assert number
        workers = pids(supervisor.wait_for(f"[{number[1]}] worker w-", 2))
        os.kill(workers[-1], signal.SIGKILL)
        second = supervisor.wait_for("was killed by SIGKILL", 2)[-1]
        assert "starting it again in 1 s" in second
        supervisor.wait_for("is ready", 4)
        supervisor.send(signal.SIGINT)
        assert supervisor.code() == 0


def test_second_signal_to_the_supervisor_leaves_at_once(cli: Cli) -> None:
    cli.add("slow", '{"seconds": 600}')
    with Program(cli.folder, "worker", "tasks:app", "--processes", "2") as supervisor:
        workers = pids(supervisor.wait_for("is ready", 2))
        until((cli.folder / "started").exists)
        supervisor.send(signal.SIGTERM)
        supervisor.wait_for("finishing running jobs", 2)
        supervisor.send_again(signal.SIGTERM)
        assert supervisor.code() == 128 + signal.SIGTERM
    assert not any(map(alive, workers))


def test_processes_stop_in_order_when_their_supervisor_is_killed(cli: Cli) -> None:
    with Program(cli.folder, "worker", "tasks:app", "--processes", "2") as supervisor:
        workers = pids(supervisor.wait_for("is ready", 2))
        supervisor.send(signal.SIGKILL)
        supervisor.wait_for("the supervisor is gone", 2)
        supervisor.wait_for("stopped in order", 2)
        until(lambda: not any(map(alive, workers)))


def test_what_cannot_start_at_all_is_not_tried_again(folder: Path) -> None:
    with Program(folder, "worker", "task:app", "--processes", "2") as supervisor:
        assert supervisor.code() == 2
    assert "did you mean 'tasks'?" in supervisor.output
    assert "cannot start; see above" in supervisor.output


def test_a_changed_file_restarts_the_worker(cli: Cli) -> None:
    tasks = cli.folder / "tasks.py"
    with Program(cli.folder, "worker", "tasks:app", "--reload") as supervisor:
        supervisor.wait_for("is ready")
        tasks.write_text(TASKS.replace("hello {name}", "good morning {name}"))
        supervisor.wait_for("tasks.py changed; restarting")
        supervisor.wait_for("is ready", 2)
        job = cli.add("hello")
        assert cli("job", "watch", job).exit_code == 0
        supervisor.send(signal.SIGINT)
        assert supervisor.code() == 0
    assert cli.json("job", "view", job)["result"] == "good morning world"


def test_a_broken_file_waits_for_its_repair(folder: Path) -> None:
    tasks = folder / "tasks.py"
    with Program(folder, "worker", "tasks:app", "--reload") as supervisor:
        supervisor.wait_for("is ready")
        tasks.write_text("app = (")
        supervisor.wait_for("tasks.py, line 1: '(' was never closed")
        supervisor.wait_for("waiting for a changed file")
        tasks.write_text(TASKS)
        supervisor.wait_for("is ready", 2)
        supervisor.send(signal.SIGINT)
        assert supervisor.code() == 0


def test_a_reload_gives_back_a_long_job_for_the_new_code(cli: Cli) -> None:
    job = cli.add("slow", '{"seconds": 600}')
    with Program(cli.folder, "worker", "tasks:app", "--reload", "--grace", "0.1") as supervisor:
        until((cli.folder / "started").exists)
        (cli.folder / "tasks.py").write_text(
            TASKS.replace("asyncio.sleep(seconds)", "asyncio.sleep(0)")
        )
        assert cli("job", "watch", job).exit_code == 0
        supervisor.send(signal.SIGINT)
        assert supervisor.code() == 0
    after = cli.json("job", "view", job)
    assert (after["state"], after["tries"]) == (State.COMPLETED, 1)


# PID 1

UNSHARE = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]


def _can_unshare() -> bool:
    if shutil.which("unshare") is None:
        return False
    return subprocess.run([*UNSHARE, "true"], capture_output=True).returncode == 0


@pytest.mark.skipif(not _can_unshare(), reason="needs the right to make a pid namespace")
def test_as_pid_1_it_passes_signals_on_and_reaps_orphans(folder: Path) -> None:
    (folder / "orphans.py").write_text(
        "import subprocess\n"
        "from headrace import App\n"
        "app = App('memory:')\n"
        "@app.on_start\n"
        "def leave_one_behind():\n"
        "    subprocess.run(['sh', '-c', '(sleep 0.1; touch orphaned) & exit'], check=True)\n"
    )
    with Program(folder, "worker", "orphans:app", prefix=UNSHARE) as program:
        program.wait_for("supervisor pid 1")
        program.wait_for("is ready")
        (init,) = _children(program.process.pid)
        until((folder / "orphaned").exists)
        until(lambda: len(_children(init)) == 1, "that only the worker is left below PID 1")
        os.kill(init, signal.SIGTERM)
        assert program.code() == 0
    assert "stopped in order" in program.output


def _children(pid: int) -> list[int]:
    return [int(text) for text in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
