"""Runs a page the way a reader would: its files, its workers, its blocks and its commands.

Everything happens in one scratch folder with one store, in the order of the page:

- a python block that starts with `# name.py` becomes that file, is imported, and, if it is a
  `test_*.py`, is run by pytest;
- any other python block runs in a process of its own; what its comments say that it prints, it
  must print;
- `$ headrace …` runs and must end with 0, or, where the page shows an `Error:`, must not;
- `$ headrace worker …` runs beside the page from the moment its module is there.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.docs.markdown import Block, Command, blocks, commands, missing

HERE = Path(__file__).parent
PATIENCE = 30
"""Seconds that a block or a command may take."""

NOT_RUN = ("make ", "export HEADRACE_URL=")
"""What the tests, or the folder of the page, do by themselves."""

ENDLESS = re.compile(r"headrace\s+(worker|events\s.*(-f|--follow))\b")
"""Commands that go on until they are told to stop."""

READY = "is ready"
"""What a worker logs when it has begun."""


class PageRun:
    """One page in one folder."""

    def __init__(self, page: Path, folder: Path) -> None:
        self.page, self.folder = page, folder
        self._url = f"sqlite:{folder / 'jobs.db'}"
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")},
            "HEADRACE_URL": self._url,
            "XDG_CACHE_HOME": str(folder / ".cache"),
            "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])),
            "PYTHONUNBUFFERED": "1",
            "NO_COLOR": "1",
            "COLUMNS": "200",
        }
        self._beside: list[tuple[Command, subprocess.Popen[bytes]]] = []
        self._pending: list[Command] = []

    def run(self, given: list[Block]) -> None:
        """Runs the page; `given` are files that readers have from the README."""
        page = list(blocks(self.page))
        shown = [c for block in page if block.language == "console" for c in commands(block)]
        odd = [str(c) for c in shown if not c.text.startswith(("headrace ", *NOT_RUN))]
        assert not odd, f"{odd}: only headrace is run here; show other programs as text"
        own = {block.file for block in page}
        for block in given:
            if block.file not in own:
                self._write(block)
        self._pending = [command for command in shown if ENDLESS.match(command.text)]
        try:
            self._start_ready(own)
            for block in page:
                self._block(block, own)
            assert not self._pending, f"{self._pending[0]}: its module is nowhere on the page"
        except (AssertionError, subprocess.TimeoutExpired) as error:
            for log in sorted(self.folder.glob("beside_*")):
                error.add_note(f"{log.name} ends with\n{log.read_text()[-2000:]}")
            raise
        finally:
            self._stop_all()

    def _block(self, block: Block, own: set[str | None]) -> None:
        if block.language == "python" and block.file:
            self._write(block)
            own.discard(block.file)
            module = block.file.removesuffix(".py").replace("/", ".")
            self._stop_all(module)
            self._run([sys.executable, "-W", "error", "-c", f"import {module}"], str(block))
            if Path(block.file).name.startswith("test_"):
                pytest = "-m pytest -q -p no:cacheprovider -p no:xdist -o asyncio_mode=auto"
                self._run([sys.executable, *pytest.split(), block.file], str(block))
            self._start_ready(own)
        elif block.language == "python":
            self._python(block)
        elif block.language == "console":
            for command in commands(block):
                if command.text.startswith("headrace ") and not ENDLESS.match(command.text):
                    self._console(command)

    def _write(self, block: Block) -> None:
        assert block.file
        path = self.folder / block.file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block.text)

    def _python(self, block: Block) -> None:
        file = self.folder / f"block_{block.line}.txt"
        file.write_text(block.text)
        order = [sys.executable, "-W", "error", HERE / "run_block.py", block.page, block.line, file]
        answer = self._run([str(part) for part in order], str(block))
        absent = missing(block.promised, answer.stdout)
        assert absent is None, f"{block}: was to print {absent!r}, printed\n{answer.stdout}"

    def _console(self, command: Command) -> None:
        fails = any(line.startswith("Error:") for line in command.shown)
        answer = self._run(["sh", "-c", command.text], str(command), fails=fails)
        absent = missing(command.shown, answer.stdout + answer.stderr)
        assert absent is None, (
            f"{command}: was to show {absent!r}, showed\n{answer.stdout}{answer.stderr}"
        )

    def _run(
        self, order: list[str], what: str, *, fails: bool = False
    ) -> subprocess.CompletedProcess[str]:
        answer = subprocess.run(
            order,
            cwd=self.folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        assert (answer.returncode != 0) is fails, (
            f"{what}: ended with {answer.returncode}\n{answer.stdout}{answer.stderr}"
        )
        return answer

    # Workers

    def _start_ready(self, unwritten: set[str | None]) -> None:
        """Starts what only waited for its module."""
        for command in list(self._pending):
            if _module(command) not in unwritten:
                self._pending.remove(command)
                self._start(command)

    def _start(self, command: Command) -> None:
        number = len(list(self.folder.glob("beside_*")))
        with (self.folder / f"beside_{number}.log").open("wb") as log:
            process = subprocess.Popen(
                ["sh", "-c", f"exec {command.text}"],
                cwd=self.folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._beside.append((command, process))
        deadline = time.monotonic() + PATIENCE
        while READY not in Path(log.name).read_text() and "worker" in command.text:
            if process.poll() is not None:
                self._beside.remove((command, process))
                raise AssertionError(f"{command}: ended\n{Path(log.name).read_text()}")
            assert time.monotonic() < deadline, f"{command}: is never ready"
            time.sleep(0.02)

    def _stop_all(self, module: str | None = None) -> None:
        """Ends what runs beside the page, or only the workers of a module, which start again."""
        ours = [one for one in self._beside if module in (None, _module_name(one[0]))]
        for _, process in ours:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for command, process in ours:
            try:
                code = process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                raise AssertionError(f"{command}: ignores SIGTERM") from None
            assert code in (0, -signal.SIGTERM, 128 + signal.SIGTERM), f"{command}: ended {code}"
            self._beside.remove((command, process))
            if module is not None:
                self._pending.append(command)


def _module_name(command: Command) -> str | None:
    found = re.search(r"([\w.]+):\w+", command.text)
    return found[1] if found else None


def _module(command: Command) -> str | None:
    """The file of the module that a worker command names."""
    name = _module_name(command)
    return None if name is None else name.replace(".", "/") + ".py"
