"""Hypothesis strategies for what happens to an engine: jobs, outcomes, settings, operators.

What depends on the time is drawn as a function of it, so that examples stay small and readable.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TypeVar

from hypothesis import strategies as st
from msgspec import Struct

from headrace.core import actions
from headrace.core.change import Change
from headrace.core.model import Dedup, DedupMode, Job, KeyLimit, OnLost, OnParentFailure, WhenFull
from headrace.core.outcome import (
    Cancelled,
    Completed,
    Detached,
    Expired,
    Moved,
    Outcome,
    Problem,
    Returned,
    Snoozed,
    Terminated,
    Uncounted,
)
from headrace.core.queue import Discard, QueueSettings, RateLimit, Retention
from headrace.core.retry import AtOnce, RetryPolicy, Steps
from headrace.core.states import State
from headrace.testing.conformance.bench import failed, key, raw

T = TypeVar("T")

QUEUES = ("q1", "q2")
WORKERS = ("w1", "w2", "w3")
DELAYS = (0, 1, 10, 60, 1000)
LEASE = 100

ONE, TWO, BLOCK = key("one"), key("two", 2), key("block", on_lost=OnLost.BLOCK)
KEYS: tuple[KeyLimit, ...] = (
    ONE,
    key("one", on_lost=OnLost.FAIL_STALE),
    key("one", max_queued=1),
    key("one", max_queued=0, when_full=WhenFull.COALESCE),
    TWO,
    key("two", 2, max_queued=1, when_full=WhenFull.REPLACE_OLDEST),
    BLOCK,
    key("mixed", 1),
    key("mixed", 3),
)
MAX_ACTIVE = {limit.hash: max(k.max_active for k in KEYS if k.hash == limit.hash) for limit in KEYS}

SIMPLE = Dedup("simple")
DEBOUNCE = Dedup("debounce", DedupMode.DEBOUNCE)
KEEP_LAST = Dedup("keep", DedupMode.KEEP_LAST)
THROTTLE = Dedup("throttle", DedupMode.THROTTLE, 50)
DEDUPS = (SIMPLE, DEBOUNCE, KEEP_LAST, THROTTLE, Dedup("throttle", DedupMode.THROTTLE, 50, True))

PROBLEM = Problem("ValueError", "boom")


class Draft(Struct, frozen=True, kw_only=True):
    """A new job but for its time and its parents, which are places in the list of known jobs,
    counted from the newest."""

    queue: str
    priority: int | None = None
    lifo: bool = False
    delay: int = 0
    max_tries: int | None = None
    retry: RetryPolicy | None = None
    deadline_in: int | None = None
    ttl: int | None = None
    dedup: Dedup | None = None
    key: KeyLimit | None = None
    parents: tuple[int, ...] = ()
    on_parent_failure: OnParentFailure = OnParentFailure.UNREACHABLE
    missing: bool = False
    """Depends on a job that does not exist."""
    again: bool = False
    """Under the id of a job that is there, or was."""


def _draft(chance: Random) -> Draft:
    def rarely(*values: T) -> T | None:
        return chance.choice(values) if chance.random() < 0.2 else None

    return Draft(
        queue=chance.choice(QUEUES),
        priority=rarely(0, 4, 9),
        lifo=chance.random() < 0.1,
        delay=rarely(*DELAYS) or 0,
        max_tries=chance.choice((None, 1, 2, 3)),
        retry=chance.choice((None, AtOnce(), Steps((20, 200)))),
        deadline_in=rarely(-1, 200, 1000),
        ttl=rarely(0, 100, 1000),
        dedup=rarely(*DEDUPS),
        key=chance.choice(KEYS) if chance.random() < 0.5 else None,
        parents=tuple(chance.randint(0, 6) for _ in range(chance.choice((0, 0, 0, 1, 1, 2)))),
        on_parent_failure=chance.choice(list(OnParentFailure)),
        missing=chance.random() < 0.02,
        again=chance.random() < 0.03,
    )


def _complexity(draft: Draft) -> int:
    plain = _PLAIN
    return sum(getattr(draft, name) != getattr(plain, name) for name in Draft.__struct_fields__)


_PLAIN = Draft(queue="q1")
_DRAFTS = sorted([_PLAIN, *map(_draft, [Random(7)] * 1500)], key=_complexity)
DRAFTS = st.integers(0, len(_DRAFTS) - 1).map(lambda place: _DRAFTS[place])
"""Drawn from a list, which costs one choice where field by field it would cost a dozen: so runs
are long. The list is the same in every run, the simplest first, which is where shrinking goes."""

OUTCOMES: st.SearchStrategy[Callable[[int], Outcome]] = st.sampled_from(
    (
        lambda now: Completed(raw({"at": now})),
        lambda now: Completed(),
        lambda now: failed(),
        lambda now: failed("again", after=0),
        lambda now: Uncounted(PROBLEM, 5),
        lambda now: Terminated(PROBLEM),
        lambda now: Snoozed(now + 10),
        lambda now: Cancelled(),
        lambda now: Expired(),
        lambda now: Detached(now + 150),
        lambda now: Moved("q2", "second", result=raw(1)),
        lambda now: Moved("q1", run_at=now + 10),
        lambda now: Returned(),
    )
)

ACTIONS: st.SearchStrategy[Callable[[Job, int], Change]] = st.sampled_from(
    (
        lambda job, now: actions.cancel(job, now, "no"),
        actions.retry,
        actions.replay,
        actions.dismiss,
        actions.expire,
        actions.delete,
        actions.free_dedup,
        lambda job, now: actions.skip(job, now, "no"),
        lambda job, now: actions.release(job, now, "gone"),
        lambda job, now: actions.reprioritise(job, now, 0),
        lambda job, now: actions.reprioritise(job, now, 9),
        lambda job, now: actions.reschedule(job, now, now + 15),
        lambda job, now: actions.reschedule(job, now, now),
    )
)


def _settings(chance: Random) -> QueueSettings:
    def rarely(*values: T) -> T | None:
        return chance.choice(values) if chance.random() < 0.3 else None

    states = (State.COMPLETED, State.CANCELLED, State.DEAD, State.EXPIRED, State.FAILED)
    return QueueSettings(
        paused=chance.random() < 0.1,
        draining=chance.random() < 0.1,
        max_active=rarely(0, 1, 2, 3),
        max_tries=chance.choice((10, 1)),
        retry=chance.choice((AtOnce(), Steps((10, 100)))),
        max_age=rarely(100),
        max_entries=rarely(2, 5),
        discard=chance.choice(list(Discard)),
        rate=rarely(RateLimit(2, 100, 2), RateLimit(0, 100)),
        dead_letters=chance.random() < 0.7,
        retention={
            chance.choice(states): Retention(rarely(0, 30), rarely(0, 2))
            for _ in range(chance.choice((0, 0, 1, 2)))
        },
    )


_SETTINGS = [QueueSettings(), *map(_settings, [Random(7)] * 200)]
SETTINGS = st.integers(0, len(_SETTINGS) - 1).map(lambda place: _SETTINGS[place])
