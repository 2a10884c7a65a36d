"""Driving the command line: in this process for most commands, in its own for workers."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import psutil
from click.testing import CliRunner, Result

from headrace import App, WorkerOptions
from headrace.app.workers import ECHO
from headrace.cli.loading import load_app
from headrace.cli.root import headrace
from headrace.core.model import Job, NewJob
from headrace.runtime.presence import Presence, beat

LIMIT = 30.0
"""Seconds after which something that should have happened never will."""

TASKS = """
import asyncio, os, sys, time
from headrace import App, JobContext

app = App("sqlite:headrace.db")

@app.task
async def hello(name: str = "world") -> str:
    return f"hello {name}"

@app.task(queue="mail", type="mail:send", max_tries=2, retry=0)
def send(to: str) -> None:
    raise ValueError(f"no such address: {to}")

@app.task
async def slow(ctx: JobContext, seconds: float) -> str:
    ctx.log("info", "about to wait")
    ctx.progress("wait", "for a while", 1, 4)
    open("started", "w").close()
    await asyncio.sleep(seconds)
    return "done"

@app.task
async def stuck() -> None:
    open("started", "w").close()
    time.sleep(600)

@app.task
def dies() -> None:
    os.kill(os.getpid(), 9)
"""


def until(condition: Callable[[], Any], what: str = "the condition") -> Any:
    """Waits for a true answer, and returns it."""
    deadline = time.monotonic() + LIMIT
    while not (answer := condition()):
        assert time.monotonic() < deadline, f"{what} did not come true in {LIMIT:g} s"
        time.sleep(0.02)
    return answer


def forget(folder: Path) -> None:
    """Unloads the modules of a project: each command imports them anew, as a new process does."""
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith(f"{folder}{os.sep}"):
            del sys.modules[name]


class Cli:
    """Runs commands in this process, in one directory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.app = App(f"sqlite:{folder / 'headrace.db'}")

    def __call__(self, *arguments: str, code: int = 0, stdin: str | None = None) -> Result:
        forget(self.folder)
        result = CliRunner().invoke(headrace, list(arguments), input=stdin)
        assert result.exit_code == code, f"{result.exit_code}: {result.output}"
        assert "Traceback" not in result.stderr
        return result

    def json(self, *arguments: str, code: int = 0) -> Any:
        return json.loads(self(*arguments, "--json", code=code).stdout)

    def error(self, *arguments: str, code: int = 1) -> str:
        """The one line on stderr of a command that fails."""
        result = self(*arguments, code=code)
        assert result.stdout == ""
        (line,) = result.stderr.splitlines()
        assert line.startswith("Error: ")
        return line

    def add(self, type: str, *arguments: str) -> str:
        return self("job", "add", type, *arguments).stdout.strip()

    def spec(self, job_id: str) -> NewJob:
        """A job as it was added."""
        job: Job = self.do(lambda app: app.job(job_id).get())
        return job.spec

    def do(self, work: Callable[[App], Any], app: App | None = None) -> Any:
        """Runs a coroutine function on the store."""

        async def run() -> Any:
            async with app or self.app as opened:
                return await work(opened)

        return asyncio.run(run())

    def work(self, *ids: str) -> None:
        """Works with the tasks of tasks.py until these jobs have ended."""

        async def run(app: App) -> None:
            worker = app.worker(WorkerOptions(queues=app.task_queues))
            await worker.start()
            for job_id in ids:
                await app.job(job_id).wait(LIMIT)
            await worker.stop()

        forget(self.folder)
        self.do(run, load_app("tasks:app"))


class Program:
    """`headrace …` in a process of its own, read line by line."""

    def __init__(self, folder: Path, *arguments: str, prefix: Sequence[str] = ()) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        for name in ("HEADRACE_URL", "NO_COLOR", "FORCE_COLOR"):
            environment.pop(name, None)
        self.process = subprocess.Popen(
            [*prefix, sys.executable, "-m", "headrace", *arguments],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_: object) -> None:
        """Whatever the test found, nothing is left behind: the lifeline ends the children."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(LIMIT)
        self._reader.join(LIMIT)
        assert self.process.stdout
        self.process.stdout.close()

    @property
    def output(self) -> str:
        return "\n".join(self.lines)

    def wait_for(self, text: str, count: int = 1) -> list[str]:
        """Waits until so many lines have the text, and returns them."""

        def found() -> list[str] | None:
            lines = [line for line in list(self.lines) if text in line]
            return lines if len(lines) >= count else None

        deadline = time.monotonic() + LIMIT
        while (lines := found()) is None:
            ended = self.process.poll() is not None and not self._reader.is_alive()
            assert not (ended and found() is None), f"no {text!r} in\n{self.output}"
            assert time.monotonic() < deadline, f"no {text!r} in\n{self.output}"
            time.sleep(0.02)
        return lines

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def send_again(self, number: signal.Signals) -> None:
        """A second signal: one that comes sooner would be taken for the echo of the first."""
        time.sleep(2 * ECHO)
        self.process.send_signal(number)

    def code(self) -> int:
        """The exit code, once everything is read."""
        code = self.process.wait(LIMIT)
        self._reader.join(LIMIT)
        return code


def pids(lines: Sequence[str]) -> list[int]:
    """The process ids at the ends of lines."""
    return [int(line.rpartition(" ")[2]) for line in lines]


def alive(pid: int) -> bool:
    """Whether a process runs; one that only waits to be reaped does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def present(cli: Cli, service: str, **fields: object) -> None:
    """A worker that was just heard of."""

    async def put(app: App) -> None:
        presence = Presence(
            id=f"w-{service}",
            service=service,
            queues=("default", "mail"),
            concurrency=10,
            host="host",
            pid=1,
            version="1.0",
            started_at=app.clock.now(),
            beat_at=app.clock.now(),
        )
        presence = msgspec.structs.replace(presence, **fields)
        await (await app.engine()).put([beat(presence, 60_000)], app.clock.now())

    cli.do(put)


def checks(cli: Cli, *arguments: str, code: int = 0) -> dict[str, tuple[str, str, str]]:
    """What `doctor` found: health, message and remedy by name."""
    return {
        check["name"]: (check["health"], check["message"], check["remedy"])
        for check in cli.json("doctor", *arguments, code=code)
    }
