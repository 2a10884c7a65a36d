"""What people type, and how times and values are shown to them."""

from __future__ import annotations

import pytest

from headrace.app.queues import parse_rate
from headrace.cli import text
from headrace.cli.narrate import frames
from headrace.cli.reload import Watcher
from headrace.cli.values import parse_duration, parse_moment
from headrace.core.model import Progress
from headrace.core.queue import RateLimit
from headrace.core.retry import AtOnce, Exponential, Linear, Steps


@pytest.mark.parametrize(
    ("written", "seconds"),
    [("90", 90), ("1.5", 1.5), ("250ms", 0.25), ("90s", 90), ("5m", 300), ("2h", 7200),
     ("1d", 86_400), ("1w", 604_800), ("1h30m", 5400), ("0", 0)],
)  # fmt: skip
def test_durations(written: str, seconds: float) -> None:
    assert parse_duration(written) == pytest.approx(seconds)


@pytest.mark.parametrize("written", ["", "s", "5 m", "-5s", "5x", "1h30", "1e3", "٣s", "5mm"])
def test_what_is_no_duration(written: str) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        parse_duration(written)


def test_times_need_a_zone() -> None:
    assert parse_moment("2030-01-31T12:00:00Z").timestamp() == 1_896_091_200
    with pytest.raises(ValueError, match="has no time zone"):
        parse_moment("2030-01-31")


@pytest.mark.parametrize(
    ("milliseconds", "shown"),
    [(0, "0 ms"), (350, "350 ms"), (1234, "1.2 s"), (42_000, "42 s"), (185_000, "3 m 5 s"),
     (3_600_000, "1 h"), (190_000_000, "2 d 4 h")],
)  # fmt: skip
def test_spans(milliseconds: int, shown: str) -> None:
    assert text.span(milliseconds) == shown


@pytest.mark.parametrize(
    ("at", "shown"),
    [(-180_000, "3 m ago"), (-400, "now"), (-1000, "1 s ago"), (300_000, "in 5 m"),
     (7_199_500, "in 2 h"), (-86_400_000 * 3, "3 d ago")],
)  # fmt: skip
def test_ago(at: int, shown: str) -> None:
    assert text.ago(10**12 + at, 10**12) == shown


@pytest.mark.parametrize("written", ["100/s", "5/m", "1000/h+50", "10/5s", "7/30s+3", "1/d"])
def test_rates_are_shown_as_they_are_written(written: str) -> None:
    assert text.rate(parse_rate(written)) == written


def test_a_rate_of_an_odd_period_is_shown_too() -> None:
    assert text.rate(RateLimit(5, 1500, 5)) == "5/1500ms"


def test_retry_policies_are_shown_by_name_or_numbers() -> None:
    assert text.retry_policy(AtOnce()) == "at_once"
    assert text.retry_policy(Steps((5000, 60_000))) == "5s,1m"
    assert text.retry_policy(Linear(3, 1000, 60_000)) == "linear 1s to 1m in 3 steps"
    assert text.retry_policy(Exponential(1000, 3.0, 60_000)) == (
        "exponential from 1s, times 3, up to 1m"
    )


def test_progress_shows_what_is_known() -> None:
    assert text.progress_line(Progress("copy", "big.iso", 4, 10)) == (
        "[########------------] 40 %  4/10  copy: big.iso"
    )
    assert text.progress_line(Progress(None, "soon", 3, None)) == "3  soon"
    assert text.progress_line(Progress(None, None, 5, 0)) == "5/0"
    assert text.progress_line(Progress(None, None, 20, 10)).startswith(
        "[####################] 100 %"
    )


def test_control_characters_are_spelled_out() -> None:
    assert text.visible("plain ✓") == "plain ✓"
    assert text.visible("a\x1b[31m\x07\nb") == "a\\x1b[31m\\x07\nb"


def test_the_workers_own_frames_are_left_out_of_logged_tracebacks() -> None:
    from headrace.runtime import executor

    trace = (
        "Traceback (most recent call last):\n"
        f'  File "{executor.__file__}", line 1, in run\n'
        "    returned = await self._call()\n"
        "               ^^^^^^^^^^\n"
        '  File "/app/tasks.py", line 2, in send\n'
        "    raise ValueError\n"
        "ValueError: no\n"
    )
    assert frames(trace) == (
        "Traceback (most recent call last):\n"
        '  File "/app/tasks.py", line 2, in send\n'
        "    raise ValueError\n"
        "ValueError: no"
    )


def test_watcher_sees_changed_new_and_removed_files(tmp_path: object) -> None:
    from pathlib import Path

    folder = Path(str(tmp_path))
    for place in ("a.py", "sub/b.py", ".hidden/c.py", "env/d.py", "notes.txt"):
        (folder / place).parent.mkdir(exist_ok=True)
        (folder / place).write_text("")
    (folder / "env" / "pyvenv.cfg").write_text("")
    watch = Watcher(str(folder))
    assert watch() == []
    for place in ("sub/new.py", ".hidden/c.py", "env/d.py", "notes.txt"):
        (folder / place).write_text("changed")
    (folder / "a.py").unlink()
    assert watch() == ["a.py", "sub/new.py"]
    assert watch() == []
