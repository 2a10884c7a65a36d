"""A directory with a project in it, and the command line standing there."""

from __future__ import annotations

import sys
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.cli.helpers import TASKS, Cli, forget


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Path, None, None]:
    """The current directory, with a `tasks.py`."""
    (tmp_path / "tasks.py").write_text(TASKS)
    monkeypatch.chdir(tmp_path)
    for name in ("HEADRACE_URL", "NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    path = list(sys.path)
    yield tmp_path
    sys.path[:] = path
    forget(tmp_path)


@pytest.fixture
def cli(folder: Path) -> Cli:
    return Cli(folder)
