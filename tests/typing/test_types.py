"""What type checkers see of the public API (FEATURES 1.2)."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
SAMPLES = HERE / "samples"
ROOT = HERE.parents[1]


@pytest.fixture(scope="module")
def diagnostics() -> list[dict[str, Any]]:
    """What basedpyright says of the samples, in strict mode."""
    answer = subprocess.run(
        [
            sys.executable,
            "-m",
            "basedpyright",
            "--outputjson",
            "--pythonpath",
            sys.executable,
            *map(str, sorted(SAMPLES.glob("*.py"))),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
    )
    return json.loads(answer.stdout)["generalDiagnostics"]


def lines(sample: str, pattern: str) -> dict[int, str]:
    """The lines of a sample that match, with what stands behind their `#`."""
    text = (SAMPLES / sample).read_text().splitlines()
    return {
        number: line.rpartition("  # ")[2]
        for number, line in enumerate(text)
        if re.search(pattern, line)
    }


def said(diagnostics: list[dict[str, Any]], sample: str, severity: str) -> dict[int, str]:
    return {
        one["range"]["start"]["line"]: one["message"]
        for one in diagnostics
        if one["file"].endswith(sample) and one["severity"] == severity
    }


def test_types_are_revealed_as_promised(diagnostics: list[dict[str, Any]]) -> None:
    revealed = {
        line: re.sub(r'^Type of ".*" is "(.*)"$', r"\1", message, flags=re.DOTALL)
        for line, message in said(diagnostics, "right.py", "information").items()
    }
    assert revealed == lines("right.py", r"^\s*reveal_type")


def test_right_calls_are_no_errors(diagnostics: list[dict[str, Any]]) -> None:
    assert said(diagnostics, "right.py", "error") == {}


def test_wrong_calls_are_errors_and_nothing_else_is(diagnostics: list[dict[str, Any]]) -> None:
    expected = lines("wrong.py", r"  # ")
    assert said(diagnostics, "wrong.py", "error").keys() == expected.keys()
    assert len(expected) >= 20
