"""The command line, its arguments and its environment: an answer or an error that says what is
wrong, never a traceback."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from headrace import App
from headrace.app.engines import engine_for
from headrace.cli.root import headrace
from tests.fuzz.values import QUICK, TEXTS, refusal
from tests.support import subcommands

ENDLESS = {("worker",), ("events",), ("job", "watch"), ("nats", "up")}
"""Commands that go on until they are told to stop, as they should."""


def commands(group: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every command, as it is typed."""
    below = subcommands(group)
    for name, command in below.items():
        yield from commands(command, (*path, name))
    if not below:
        yield path


PATHS = [path for path in commands(headrace) if path not in ENDLESS]


def options_of(path: tuple[str, ...]) -> list[str]:
    command: Any = headrace
    for name in path:
        command = subcommands(command)[name]
    return [
        option for parameter in command.params for option in parameter.opts if "-" in option[:1]
    ]


WORDS = st.one_of(
    TEXTS.filter(lambda text: "\0" not in text and len(text) < 100),
    st.sampled_from(
        ["q", "1", "1h", "2030-01-01T00:00:00Z", "completed", "max_active=3", "{}", "--"]
    ),
)
CALLS = st.sampled_from(PATHS).flatmap(
    lambda path: st.tuples(
        st.just(path),
        st.lists(st.one_of(WORDS, st.sampled_from(options_of(path) or ["--json"])), max_size=5),
    )
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEADRACE_URL", f"sqlite:{tmp_path / 'jobs.db'}?synchronous=normal")
    return tmp_path


@QUICK
@given(call=CALLS)
def test_every_command_answers_or_says_what_is_wrong(
    folder: Path, call: tuple[tuple[str, ...], list[str]]
) -> None:
    path, words = call
    result = CliRunner().invoke(headrace, [*path, *words], input="n\n")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code in (0, 1, 2)
    if result.exit_code:
        assert result.output.strip()


@QUICK
@given(url=st.one_of(TEXTS, TEXTS.map("sqlite:{}".format), TEXTS.map("memory:{}".format)))
def test_url_names_an_engine_or_is_refused(url: str) -> None:
    assert refusal(lambda: engine_for(url)) != ""


@QUICK
@given(
    text=TEXTS.filter(lambda text: "\0" not in text and "\ud800" not in text),
    query=st.sampled_from(
        ["", "?synchronous=x", "?busy_timeout=nan", "?busy_timeout=1e999", "?x=1"]
    ),
)
def test_environment_names_an_engine_or_is_refused(text: str, query: str) -> None:
    before = os.environ.get("HEADRACE_URL")
    os.environ["HEADRACE_URL"] = f"sqlite:{text}{query}"
    try:
        assert refusal(App) != ""
    finally:
        if before is None:
            del os.environ["HEADRACE_URL"]
        else:
            os.environ["HEADRACE_URL"] = before
