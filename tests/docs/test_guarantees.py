"""The page on guarantees names its evidence, and all of it exists."""

from __future__ import annotations

import re
from pathlib import Path

from headrace.testing.lab.checker import NAMES

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "guarantees.md").read_text("utf-8")
SUITE = ROOT / "src" / "headrace" / "testing"
NAMED = re.findall(r"`((?:tests|conformance)/[\w/]+\.py)::(\w+)`", PAGE)


def rows() -> list[str]:
    """The rows of the tables of promises, without their heads."""
    promises = PAGE.partition("## Promises")[2].partition("## Not promised")[0]
    lines = [line for line in promises.splitlines() if line.startswith("| ")]
    return [line for line in lines if not line.startswith(("| promise", "| ---"))]


def test_every_test_that_is_named_exists() -> None:
    assert len(NAMED) > 25
    missing: list[str] = []
    for file, name in NAMED:
        path = (ROOT if file.startswith("tests/") else SUITE) / file
        if not path.exists() or f"def {name}(" not in path.read_text("utf-8"):
            missing.append(f"{file}::{name}")
    assert missing == []


def test_every_check_of_the_lab_stands_behind_a_promise() -> None:
    shown = set(re.findall(r"`(\w+)`", "\n".join(rows())))
    assert set(NAMES) <= shown


def test_every_promise_names_its_evidence_and_nothing_that_does_not_exist() -> None:
    for row in rows():
        promise, _, evidence = row.strip("| ").rpartition(" | ")
        names = re.findall(r"`([^`]+)`", evidence)
        assert names, promise
        assert [name for name in names if "::" not in name and name not in NAMES] == []
