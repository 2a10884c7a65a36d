"""The race against other job systems: its tables, its page, and that everybody can run it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from bench.race import report
from bench.race.report import BEGIN, END, Outcome, Row, Side, put_between, rows

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "bench" / "race"

RATE, TIME = Row("drain", "/s", True, 0), Row("pick-up", "ms", False, 1)


class TestVerdict:
    def test_more_of_a_rate_is_better(self) -> None:
        assert RATE.verdict(300, 100, "huey") == "Headrace 3×"
        assert RATE.verdict(100, 150, "huey") == "huey 1.5×"

    def test_less_of_a_time_is_better(self) -> None:
        assert TIME.verdict(1.0, 40.0, "huey") == "Headrace 40×"
        assert TIME.verdict(3.0, 1.0, "huey") == "huey 3×"

    def test_small_differences_are_no_difference(self) -> None:
        assert RATE.verdict(105, 100, "huey") == RATE.verdict(100, 105, "huey") == "even"


def side(name: str, *rounds: float) -> Side:
    figures = [row.figure for row in rows(100)]
    found = [dict.fromkeys(figures, value) | {"processes": 1} for value in rounds]
    return Side(name, found, "with `--its-options`", {name: "1.2"})


class TestPage:
    def test_table_tells_median_spread_and_who_is_ahead(self) -> None:
        outcome = Outcome("SQLite", side("Headrace", 10, 400, 20), side("huey", 10, 10, 10))
        text = outcome.markdown(100)
        assert "| enqueue many | 20 /s (10–400) | 10 /s (10–10) | Headrace 2× |" in text
        assert "| pick-up p50 | 20.0 ms (10.0–400.0) | 10.0 ms (10.0–10.0) | huey 2× |" in text
        assert "- huey: with `--its-options`. 1 worker process; huey 1.2." in text

    def test_only_the_part_between_the_marks_is_replaced(self) -> None:
        text = f"before\n{BEGIN}\nold\n{END}\nafter\n"
        assert put_between(text, "new") == f"before\n{BEGIN}\n\nnew\n\n{END}\nafter\n"

    def test_page_without_marks_is_refused(self) -> None:
        with pytest.raises(ValueError, match="no place for the table"):
            put_between("a page", "new")

    def test_own_page_has_the_marks(self) -> None:
        text = (ROOT / "docs" / "benchmarks.md").read_text("utf-8")
        assert put_between(text, "x") != text


@pytest.fixture
def harness(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The race imports its modules by their bare names, as programs beside each other do."""
    monkeypatch.syspath_prepend(str(FOLDER))
    yield importlib.import_module("harness")
    for name in ("harness", "marks"):
        sys.modules.pop(name, None)


@pytest.mark.slow
@pytest.mark.parametrize("store", ["SQLite", "NATS"])
def test_everybody_who_is_installed_can_run(harness: ModuleType, store: str) -> None:
    sizes = harness.Sizes(single=5, bulk=30, serial=5, idle=3, wide=4, rest=0.1)
    (race,) = (race for race in harness.RACES if race.store == store)
    for contestant in race.contestants:
        if contestant.installed:
            found = harness.run(store, contestant, sizes)
            assert {row.figure for row in report.rows(sizes.wide)} < found.keys()
            assert all(value > 0 for value in found.values())


def test_contestant_that_fails_is_told_with_its_log(harness: ModuleType) -> None:
    with (
        harness.ground("SQLite", "with_nobody") as place,
        pytest.raises(harness.Failed, match="No module named 'with_nobody'"),
    ):
        place.producer().ask("single", first=0, count=1)
