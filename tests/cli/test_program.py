"""What holds for the whole program: options, errors, pipes, interrupts, terminals."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest

from headrace import App, __version__
from headrace.cli.root import headrace
from tests.cli.helpers import Cli, Program
from tests.support import subcommands


def run(
    folder: Path, *arguments: str, shell: str | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Runs the program to its end, in a process of its own."""
    program = [sys.executable, "-m", "headrace", *arguments]
    return subprocess.run(
        ["bash", "-c", shell.replace("headrace", " ".join(program))] if shell else program,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def on_terminal(
    folder: Path, *arguments: str, answer: str = "", **environment: str
) -> tuple[int, str]:
    """Runs the program on a terminal of its own, and types an answer."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(folder)
        os.environ.update({"PYTHONPATH": os.pathsep.join(sys.path), "TERM": "xterm"})
        os.environ.update(environment)
        os.execv(sys.executable, [sys.executable, "-m", "headrace", *arguments])
    text = b""
    try:
        while True:
            text += os.read(terminal, 4096)
            if answer and b"[y/N]" in text:
                os.write(terminal, answer.encode())
                answer = ""
    except OSError:  # the program has closed its terminal
        pass
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os.close(terminal)
    return code, text.decode().replace("\r\n", "\n")


# Options


def test_shared_options_stand_before_or_after_the_command(cli: Cli) -> None:
    url = f"sqlite:{cli.folder / 'other.db'}"
    cli("job", "add", "a", "--id", "x", "--url", url, "--service", "s")
    for arguments in (
        ["--url", url, "--service", "s", "--json", "job", "list"],
        ["job", "--url", url, "--service", "s", "--json", "list"],
        ["job", "list", "--url", url, "--service", "s", "--json"],
        ["--url", "sqlite:wrong.db", "--json", "job", "list", "--url", url, "--service", "s"],
    ):
        assert '"id":"x"' in cli(*arguments).stdout, arguments
    assert cli("--json", "--url", url, "job", "list").stdout == "[]\n"


def test_the_url_comes_from_the_environment(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_URL", f"sqlite:{cli.folder / 'env.db'}")
    cli.add("a")
    assert (cli.folder / "env.db").exists()


def test_app_gives_url_and_service_and_stands_alone(cli: Cli) -> None:
    (cli.folder / "shop.py").write_text(
        "from headrace import App\napp = App('sqlite:shop.db', service='shop')\n"
    )
    cli("--app", "shop:app", "job", "add", "a")
    assert cli.json("--app", "shop", "job", "list")[0]["service"] == "shop"
    error = cli.error("job", "list", "--app", "shop", "--url", "sqlite:x.db", code=2)
    assert "--app says which url already" in error


def test_reading_never_makes_a_store(cli: Cli) -> None:
    commands = ["job list", "job view x", "queue list", "dead list", "workers", "events"]
    for command in commands:
        error = cli.error(*command.split())
        assert f"{cli.folder}/headrace.db does not exist; name the store with --url" in error
    assert not (cli.folder / "headrace.db").exists()


def test_a_store_in_memory_cannot_be_seen_from_here(cli: Cli) -> None:
    assert "lives inside one process" in cli.error("job", "add", "a", "--url", "memory:")


def test_version_and_help(cli: Cli) -> None:
    assert cli("--version").stdout == f"headrace {__version__}\n"
    assert cli("-h").stdout.startswith("Usage: ")


def test_every_command_has_help_and_the_shared_options(cli: Cli) -> None:
    def walk(command: click.Command, path: list[str]) -> None:
        text = cli(*path, "--help").stdout
        assert "--json" in text, path
        assert "--debug" in text, path
        for name, below in subcommands(command).items():
            assert below.help, [*path, name]
            walk(below, [*path, name])

    walk(headrace, [])


def test_importing_the_command_line_is_cheap(folder: Path) -> None:
    code = "import sys, headrace.cli; print({'click', 'rich'} & set(sys.modules))"
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert answer.stdout == "set()\n"
    code = "import sys\ntry: headrace.cli.main()\nexcept SystemExit: print('rich' in sys.modules)"
    answer = subprocess.run(
        [sys.executable, "-c", f"import headrace.cli\n{code}", "--help"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert answer.stdout.splitlines()[-1] == "False"


# Errors


def test_errors_are_one_line_and_tracebacks_need_debug(cli: Cli) -> None:
    cli.add("a")
    plain = run(cli.folder, "job", "view", "nobody")
    assert plain.returncode == 1
    assert plain.stderr.splitlines() == [
        "Error: job 'nobody' does not exist; it may have been deleted or pruned by retention"
    ]
    debug = run(cli.folder, "job", "view", "nobody", "--debug")
    assert "JobNotFound" in debug.stderr
    assert debug.stderr.splitlines()[-1] == plain.stderr.strip()


def test_what_nobody_expected_is_one_line_too(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(self: App) -> None:
        raise ZeroDivisionError("oops\nnext line")

    cli.add("a")
    monkeypatch.setattr(App, "queues", fail)
    error = cli.error("queue", "list")
    assert error == "Error: ZeroDivisionError: oops next line; --debug shows where"


def test_usage_errors_end_with_2_and_point_to_help(cli: Cli) -> None:
    assert cli.error("job", "lsit", code=2) == (
        "Error: No such command 'lsit'. Did you mean 'list'?; see 'headrace job --help'"
    )
    assert "No such option '--jsn'" in cli.error("job", "list", "--jsn", code=2)
    assert "'a b' is not a name" in cli.error("job", "list", "--service", "a b", code=2)


# Pipes and interrupts


def test_a_reader_that_leaves_is_no_error(cli: Cli) -> None:
    async def fill(app: App) -> None:
        await app.enqueue_many([app.prepare("a", {"text": "x" * 200}) for _ in range(3000)])

    cli.do(fill)
    for command in ("events", "events --json", "job list --all", "job list --all --json"):
        answer = run(cli.folder, shell=f"headrace {command} | head -n 1")
        assert answer.returncode == 0
        assert answer.stderr == "", command
        assert len(answer.stdout.splitlines()) == 1
    assert run(cli.folder, shell="headrace queue list | true").stderr == ""


def test_interrupt_says_nothing_and_ends_with_130(cli: Cli) -> None:
    job = cli.add("a", "--delay", "1h")
    with Program(cli.folder, "job", "watch", job) as program:
        program.wait_for("created")
        program.send(signal.SIGINT)
        assert program.code() == 130
    assert "Traceback" not in program.output
    assert "Aborted" not in program.output


# Terminals


def test_a_terminal_gets_colour_unless_no_color_says_otherwise(cli: Cli) -> None:
    job = cli.add("hello")
    cli.work(job)
    code, text = on_terminal(cli.folder, "job", "list", COLUMNS="60")
    assert code == 0
    assert job in text
    assert "\x1b[32mcompleted" in text
    _, text = on_terminal(cli.folder, "job", "list", COLUMNS="200", NO_COLOR="1")
    assert "\x1b[32m" not in text
    assert job in text


@pytest.mark.parametrize(("answer", "code"), [("y\n", 0), ("n\n", 1), ("\x03", 130), ("\x04", 1)])
def test_a_person_is_asked_before_jobs_are_deleted(cli: Cli, answer: str, code: int) -> None:
    cli.add("hello")
    ended, text = on_terminal(cli.folder, "queue", "purge", "default", answer=answer)
    assert "Delete 1 waiting job of queue default? [y/N]" in text
    assert ended == code
    assert "Traceback" not in text
    assert len(cli.json("job", "list")) == (0 if code == 0 else 1)


def test_text_that_the_locale_cannot_show_is_no_error(cli: Cli) -> None:
    cli.add("hello", '{"name": "Zoë ✓"}', "--id", "mine")
    answer = run(cli.folder, "job", "view", "mine", PYTHONIOENCODING="ascii")
    assert answer.returncode == 0
    assert "Zo\\xeb \\u2713" in answer.stdout
