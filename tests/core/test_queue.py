"""Queue settings, their classification, retention and rates."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core import rate
from headrace.core.errors import InvalidValue
from headrace.core.queue import (
    DAY,
    DEFAULT_RETENTION,
    DEFAULTS,
    Discard,
    Kind,
    QueueSettings,
    RateLimit,
    Retention,
    check,
    classify,
    dangers,
    decode,
)
from headrace.core.retention import SEEN, Cutoff, cutoffs
from headrace.core.retry import HOUR, Linear, Steps
from headrace.core.states import FINAL, State
from tests.core.jobs import NOW

C = State.COMPLETED


def settings(**fields: Any) -> QueueSettings:
    return QueueSettings(**fields)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (settings(max_tries=5), settings(max_tries=6)),
        (settings(max_runtime=5), settings(max_runtime=6)),
        (settings(max_active=1), settings(max_active=2)),
        (settings(max_active=1), settings()),
        (settings(max_entries=1), settings(max_entries=2)),
        (settings(max_entries=1), settings()),
        (settings(max_age=1), settings()),
        (settings(retry=Steps((1, 2))), settings(retry=Steps((1, 3)))),
        (settings(dead_letters=False), settings(dead_letters=True)),
        (settings(dead_letters=True), settings(dead_letters=False)),
        (settings(retention={C: Retention(1)}), settings(retention={C: Retention(2)})),
        (settings(retention={C: Retention(1, 1)}), settings(retention={C: Retention(1)})),
        (settings(weight=1), settings(weight=5)),
        (settings(), settings(paused=True)),
        (settings(discard=Discard.OLD), settings(discard=Discard.NEW)),
        (settings(), settings(discard=Discard.OLD)),
    ],
)
def test_update(old: QueueSettings, new: QueueSettings) -> None:
    assert classify(old, new) is Kind.UPDATE
    assert dangers(old, new) == ()


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (settings(max_tries=5), settings(max_tries=4), "max_tries"),
        (settings(max_runtime=5), settings(max_runtime=4), "max_runtime"),
        (settings(), settings(max_active=9), "max_active"),
        (settings(max_active=2), settings(max_active=1), "max_active"),
        (settings(), settings(max_entries=9), "max_entries"),
        (settings(), settings(max_age=9), "max_age"),
        (settings(retry=Steps((1, 2))), settings(retry=Steps((1, 1))), "retry"),
        (settings(retry=Linear(20, 5, 9000)), settings(retry=Linear(20, 5, 8000)), "retry"),
        (settings(), settings(retention={C: Retention(DAY - 1)}), "retention"),
        (settings(), settings(retention={C: Retention(DAY, 5)}), "retention"),
        (settings(max_entries=9), settings(max_entries=9, discard=Discard.OLD), "discard"),
    ],
)
def test_migration_names_its_danger(old: QueueSettings, new: QueueSettings, said: str) -> None:
    assert classify(old, new) is Kind.MIGRATION
    assert any(said in danger for danger in dangers(old, new))


def test_switching_dead_letters_off_needs_force_only_with_dead_jobs() -> None:
    off = settings(dead_letters=False)
    assert classify(DEFAULTS, off, dead_jobs=0) is Kind.UPDATE
    assert classify(DEFAULTS, off, dead_jobs=1) is Kind.MIGRATION


def test_no_change_is_nothing() -> None:
    assert classify(settings(max_tries=3), settings(max_tries=3), 9) is Kind.NOTHING


OPTIONAL = st.none() | st.integers(1, 9)
ANY = st.builds(
    QueueSettings,
    max_active=OPTIONAL,
    max_runtime=st.integers(1, 9),
    max_tries=st.integers(1, 9),
    max_age=OPTIONAL,
    max_entries=OPTIONAL,
    discard=st.sampled_from(Discard),
    dead_letters=st.booleans(),
    retention=st.dictionaries(
        st.sampled_from(sorted(FINAL)), st.builds(Retention, OPTIONAL, OPTIONAL), max_size=2
    ),
)


@given(ANY, ANY)
def test_change_and_its_opposite_are_not_both_harmless_when_limits_differ(
    one: QueueSettings, other: QueueSettings
) -> None:
    limits = ("max_active", "max_runtime", "max_tries", "max_age", "max_entries")
    if any(getattr(one, name) != getattr(other, name) for name in limits):
        kinds = {classify(one, other), classify(other, one)}
        assert Kind.MIGRATION in kinds


@given(ANY)
def test_settings_survive_storage(chosen: QueueSettings) -> None:
    assert decode(msgspec.json.encode(chosen)) == chosen


def test_unknown_setting_is_refused() -> None:
    with pytest.raises(InvalidValue, match="max_actve"):
        decode(b'{"max_actve":1}')


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        (settings(max_active=-1), "max_active"),
        (settings(max_runtime=0), "max_runtime"),
        (settings(max_tries=0), "max_tries"),
        (settings(weight=-1), "weight"),
        (settings(max_age=0), "max_age"),
        (settings(max_entries=0), "max_entries"),
        (settings(retry=Steps(())), "retry"),
        (settings(rate=RateLimit(-1, 1)), "rate"),
        (settings(rate=RateLimit(1, 0)), "rate"),
        (settings(rate=RateLimit(1, 1, 0)), "rate"),
        (settings(retention={State.ACTIVE: Retention(1)}), "retention"),
        (settings(retention={C: Retention(-1)}), "retention"),
        (settings(retention={C: Retention(None, -1)}), "retention"),
    ],
)
def test_nonsense_is_refused_by_its_field(wrong: QueueSettings, field: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        check(wrong)
    assert caught.value.field == field


def test_sense_is_returned() -> None:
    chosen = settings(max_active=0, weight=0, rate=RateLimit(0, 1), max_runtime=HOUR)
    assert check(chosen) is chosen


# Retention


def test_retention_has_a_rule_for_every_final_state() -> None:
    assert set(DEFAULT_RETENTION) == FINAL
    assert DEFAULTS.kept(C) == Retention(age=DAY)
    assert DEFAULTS.kept(State.DEAD) == Retention()


def test_cutoffs_are_those_that_can_delete() -> None:
    chosen = settings(
        retention={C: Retention(10, 3), State.DEAD: Retention(None, 5), State.FAILED: Retention()}
    )
    made = {cutoff.state: cutoff for cutoff in cutoffs({("svc", "q"): chosen}, NOW)}
    assert made[C] == Cutoff("svc", "q", C, NOW - 10, 3, NOW - SEEN)
    assert made[State.DEAD] == Cutoff("svc", "q", State.DEAD, None, 5, NOW - SEEN)
    assert State.FAILED not in made
    assert made[State.CANCELLED].ended_before == NOW - 30 * DAY
    assert set(made) == FINAL - {State.FAILED}


def test_cutoffs_of_no_queues_are_none() -> None:
    assert list(cutoffs({}, NOW)) == []


# Rates

LIMITS = st.builds(RateLimit, st.integers(1, 50), st.integers(1, 10_000), st.integers(1, 10))


@given(LIMITS, st.lists(st.integers(0, 3000), min_size=1, max_size=40))
def test_rate_never_lets_more_start_than_burst_and_period_allow(
    limit: RateLimit, waits: list[int]
) -> None:
    arrival, now, total = 0, NOW, 0
    for wait in waits:
        now += wait
        allowed = rate.allowed(limit, arrival, now)
        arrival = rate.advanced(limit, arrival, now, allowed)
        total += allowed
        assert rate.allowed(limit, arrival, now) == 0
    spacing = max(1, limit.period * 1000 // limit.count)
    assert total <= limit.burst + (now - NOW) * 1000 // spacing


@given(LIMITS, st.integers(0, 20))
def test_next_start_is_when_one_is_allowed_again_and_not_before(
    limit: RateLimit, over: int
) -> None:
    arrival = rate.advanced(limit, 0, NOW, limit.burst + over)
    at = rate.next_start(limit, arrival, NOW)
    assert at is not None
    assert rate.allowed(limit, arrival, at) >= 1
    assert at == NOW or rate.allowed(limit, arrival, at - 1) == 0


def test_unused_limit_allows_its_burst() -> None:
    assert rate.allowed(RateLimit(10, 1000, 4), 0, NOW) == 4
    assert rate.next_start(RateLimit(10, 1000, 4), 0, NOW) == NOW


def test_limit_of_zero_blocks_for_ever() -> None:
    zero = RateLimit(0, 1000)
    assert rate.allowed(zero, 0, NOW) == 0
    assert rate.next_start(zero, 0, NOW) is None
    assert rate.advanced(zero, 5, NOW, 0) == 5
