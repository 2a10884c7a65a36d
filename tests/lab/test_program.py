"""`python -m headrace.testing.lab` as a program."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from headrace.testing.lab import evidence
from headrace.testing.lab.__main__ import main
from headrace.testing.lab.checker import violations
from headrace.testing.lab.history import History
from tests.lab.simulation import simulate

LIMIT = 30.0


def kept(history: History, folder: Path) -> Path:
    """The evidence of a history in a folder, as a run leaves it."""
    evidence.keep(history, folder)
    return folder


def test_evidence_is_judged_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    history = simulate(3)
    assert main(["--check", str(kept(history, tmp_path / "good"))]) == 0
    assert "every promise was kept" in capsys.readouterr().out
    history.entries = [entry for entry in history.entries if entry.event != "started"]
    folder = kept(history, tmp_path / "bad")
    assert main(["--check", str(folder)]) == 1
    shown = capsys.readouterr().out
    assert "transitions_are_legal" in shown
    assert str(folder) in shown
    assert (folder / "violations.txt").read_text("utf-8").count("\n\n") > 3


def test_evidence_survives_being_written_down(tmp_path: Path) -> None:
    history = simulate(4)
    again = evidence.load(kept(history, tmp_path / "run"))
    assert (again.plan, again.entries, again.stored) == (
        history.plan,
        history.entries,
        history.stored,
    )
    assert violations(again) == []


@pytest.mark.parametrize("words", [["--engine", "x"], ["--minutes", "-1"], ["--seed", "x"]])
def test_arguments_that_make_no_sense_are_refused(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main(words)
    assert left.value.code == 2
    assert words[0] in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_lab_leaves_nothing_behind(tmp_path: Path, number: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "headrace.testing.lab", "--engine", "sqlite", "--minutes", "1"],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as lab:
        children = _children(lab.pid)
        lab.send_signal(number)
        told, _ = lab.communicate(timeout=LIMIT)
    assert lab.returncode == 130, told
    _, alive = psutil.wait_procs(children, LIMIT)
    assert alive == []
    assert list(tmp_path.glob("headrace-lab-*")) == []


def _children(pid: int) -> list[psutil.Process]:
    """The processes of a lab, once they are all there."""
    deadline = time.monotonic() + LIMIT
    while True:
        children = psutil.Process(pid).children()
        if len(children) >= 5:
            return children
        assert time.monotonic() < deadline, "the lab starts nobody"
        time.sleep(0.02)
