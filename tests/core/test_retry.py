"""Retry policies: the exact numbers, and the bounds of chance."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import InvalidValue
from headrace.core.outcome import Failed, Problem, custom_delay, settle
from headrace.core.queue import DEFAULTS
from headrace.core.retry import (
    HOUR,
    LONGEST,
    MINUTE,
    POLICIES,
    SECOND,
    AtOnce,
    Custom,
    Exponential,
    Linear,
    Steps,
    check,
    policy,
)
from tests.core.jobs import running

NEUTRAL = {"1m": 0.5, "10m": 0.1, "1h": 0.1}
"""The chance at which a named policy waits exactly its interval."""


@pytest.mark.parametrize(
    ("name", "steps", "first", "last"),
    [("10m", 50, 60_000, 589_200), ("1h", 20, 600_000, 3_450_000), ("1m", 20, 1000, 57_050)],
)
def test_named_policies_have_choria_s_numbers(name: str, steps: int, first: int, last: int) -> None:
    chosen, chance = POLICIES[name], NEUTRAL[name]
    assert chosen.delay(1, chance) == first
    assert chosen.delay(steps, chance) == last
    assert chosen.delay(steps - 1, chance) < last
    assert chosen.delay(steps + 1, chance) == last
    assert chosen.delay(10_000, chance) == last


@pytest.mark.parametrize(("name", "jitter"), [("1m", 0.5), ("10m", 0.9), ("1h", 0.9)])
@given(number=st.integers(1, 60), chance=st.floats(0, 1, exclude_max=True))
def test_jitter_stays_between_its_share_and_one_interval_more(
    name: str, jitter: float, number: int, chance: float
) -> None:
    chosen = POLICIES[name]
    interval = chosen.delay(number, 1 - jitter)
    delay = chosen.delay(number, chance)
    assert interval * jitter - 2 <= delay <= interval * (jitter + 1) + 2


def test_steps_are_those_of_trellis_and_the_last_repeats() -> None:
    delays = [POLICIES["steps"].delay(n, 0.3) // SECOND for n in range(1, 8)]
    assert delays == [5, 30, 120, 600, 1800, 1800, 1800]


def test_exponential_doubles_up_to_its_cap() -> None:
    chosen = Exponential(first=1000, base=2, cap=10_000)
    assert [chosen.delay(n, 0) for n in range(1, 7)] == [1000, 2000, 4000, 8000, 10_000, 10_000]
    assert chosen.delay(100_000, 0) == 10_000
    assert Exponential(base=10.5).delay(10**6, 0) == HOUR


@given(
    number=st.integers(-3, 10**6),
    chance=st.floats(0, 1, exclude_max=True),
    chosen=st.sampled_from([*POLICIES.values(), Custom(), Steps((0, 5), 1.0)]),
)
def test_every_delay_is_a_whole_number_that_is_not_negative(
    number: int, chance: float, chosen: Linear | Steps | Exponential | AtOnce | Custom
) -> None:
    delay = chosen.delay(number, chance)
    assert isinstance(delay, int)
    assert delay >= 0


@given(
    steps=st.integers(1, 60),
    first=st.integers(0, HOUR),
    more=st.integers(0, HOUR),
    number=st.integers(1, 100),
)
def test_linear_never_shortens_and_stays_below_its_end(
    steps: int, first: int, more: int, number: int
) -> None:
    chosen = Linear(steps, first, first + more)
    assert first <= chosen.delay(number, 0) <= chosen.delay(number + 1, 0) <= first + more


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (None, AtOnce()),
        ("1m", POLICIES["1m"]),
        (2, Steps((2000,))),
        (0.25, Steps((250,))),
        ([1, 2.5], Steps((1000, 2500))),
        (Steps((1,)), Steps((1,))),
        (lambda n, error: 1.0, Custom()),
    ],
)
def test_policy_from_what_a_user_writes(written: object, meant: object) -> None:
    assert policy(written) == meant


@pytest.mark.parametrize(
    "written",
    [
        "2m",
        True,
        -1,
        [],
        [1, "x"],
        [True],
        [-1],
        object(),
        Linear(0, 1, 2),
        Linear(2, 5, 1),
        Steps(()),
        Exponential(base=0.5),
        Steps((1,), jitter=-0.1),
        Steps((1,), jitter=11),
    ],
)
def test_nonsense_is_refused_by_name(written: object) -> None:
    with pytest.raises(InvalidValue, match=r"^retry: ") as caught:
        policy(written)
    assert caught.value.field == "retry"


def test_check_returns_what_makes_sense() -> None:
    assert check(Linear(1, 0, MINUTE)) == Linear(1, 0, MINUTE)


def test_custom_delay_is_in_seconds_and_never_negative() -> None:
    error = ValueError("x")
    assert custom_delay(lambda n, e: n * 1.5 if e is error else 0, 2, error) == 3000
    assert custom_delay(lambda n, e: -5, 1, error) == 0


@pytest.mark.parametrize("seconds", [math.nan, math.inf, 1e300, 10**400, LONGEST / 1000 + 1])
def test_custom_delay_that_makes_no_sense_is_refused(seconds: float) -> None:
    with pytest.raises(InvalidValue, match=r"^retry: "):
        custom_delay(lambda n, e: seconds, 1, ValueError())


@pytest.mark.parametrize("after", [LONGEST + 1, 1 << 80])
def test_no_delay_is_longer_than_the_longest(after: int) -> None:
    change = settle(running(), Failed(Problem("E", "x"), after), 1000, 0.5, DEFAULTS)
    assert change.cases[0].write.run_at == 1000 + LONGEST
