"""What operators and upkeep do, and how a write changes a job."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core import actions
from headrace.core.change import Change, Write, choose, repeated, written
from headrace.core.claims import ClaimRequest, started
from headrace.core.keys import hash_of
from headrace.core.model import Job, KeyLimit, OnLost, TryError
from headrace.core.states import CLAIMABLE, FINAL, REVIVABLE, WAITING, EventType, State, next_state
from tests.core.jobs import NOW, job, new, running

ACTIVE = frozenset({State.ACTIVE})


def in_state(state: State) -> Job:
    """A job in a state, overdue and its lease run out, so that only the state can refuse."""
    common = {"state": state, "expires_at": NOW, "token": 7}
    if state is State.ACTIVE:
        return running(lease_until=NOW, expires_at=NOW)
    return job(**common)


ALLOWED: list[tuple[Callable[[Job], Change], frozenset[State]]] = [
    (lambda j: actions.cancel(j, NOW, "x"), WAITING | ACTIVE),
    (lambda j: actions.retry(j, NOW), REVIVABLE),
    (lambda j: actions.replay(j, NOW), frozenset({State.DEAD})),
    (lambda j: actions.dismiss(j, NOW), frozenset({State.DEAD})),
    (lambda j: actions.expire(j, NOW), WAITING),
    (lambda j: actions.skip(j, NOW, "x"), WAITING),
    (lambda j: actions.release(j, NOW, "x"), ACTIVE),
    (lambda j: actions.reprioritise(j, NOW, 1), WAITING),
    (lambda j: actions.reschedule(j, NOW, NOW), CLAIMABLE),
    (lambda j: actions.free_dedup(j, NOW), WAITING),
    (lambda j: actions.delete(j, NOW), WAITING | FINAL),
]
NAMES = [
    "cancel",
    "retry",
    "replay",
    "dismiss",
    "expire",
    "skip",
    "release",
    "reprioritise",
    "reschedule",
    "free_dedup",
    "delete",
]


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize(("action", "allowed"), ALLOWED, ids=NAMES)
def test_action_is_made_in_exactly_these_states_and_the_table_agrees(
    action: Callable[[Job], Change], allowed: frozenset[State], state: State
) -> None:
    stored = in_state(state)
    write = choose(action(stored), stored)
    assert (write is not None) == (state in allowed)
    if write is not None:
        assert next_state(state, write.event) is not None


def test_cancel_ends_what_waits_and_asks_what_runs() -> None:
    ended = choose(actions.cancel(job(), NOW, "why"), job())
    assert ended
    assert (ended.event, ended.reason) == (EventType.CANCELLED, "why")
    asked = choose(actions.cancel(running(), NOW, "why"), running())
    assert asked
    assert (asked.event, asked.cancelling) == (EventType.CANCELLING, "why")


@pytest.mark.parametrize("snapshot", [running(), running(detached=True), job()])
def test_cancel_looks_at_the_stored_job_not_at_the_snapshot(snapshot: Job) -> None:
    change = actions.cancel(snapshot, NOW, "why")
    attached = choose(change, running())
    detached = choose(change, running(detached=True))
    assert attached
    assert detached
    assert attached.event is EventType.CANCELLING
    assert detached.event is EventType.CANCELLED


@pytest.mark.parametrize(
    ("deadline", "kept"), [(None, None), (NOW - 1, None), (NOW, None), (NOW + 1, NOW + 1)]
)
def test_retry_clears_the_past_and_keeps_only_a_deadline_to_come(
    deadline: int | None, kept: int | None
) -> None:
    dead = job(
        state=State.DEAD,
        tries=3,
        deadline=deadline,
        expires_at=deadline,
        result=msgspec.Raw(b"1"),
        error=TryError(NOW, 3, "E", "x"),
        finished_at=NOW,
        started_at=NOW,
        run_at=NOW - 500,
    )
    write = choose(actions.retry(dead, NOW), dead)
    assert write
    assert write.clears
    back = written(dead, write, 9)
    assert back
    assert (back.state, back.tries, back.run_at) == (State.PENDING, 0, NOW)
    assert (back.result, back.error, back.progress) == (None, None, None)
    assert (back.started_at, back.finished_at) == (None, None)
    assert (back.deadline, back.expires_at) == (kept, kept)
    assert back.spec == dead.spec


def test_expire_needs_the_time_to_have_come_at_commit() -> None:
    change = actions.expire(job(expires_at=NOW), NOW)
    assert choose(change, job(expires_at=NOW + 1)) is None
    assert choose(change, job(expires_at=None)) is None
    assert choose(change, job(expires_at=NOW)) is not None


def test_release_needs_a_lapsed_lease_of_the_same_owner() -> None:
    change = actions.release(running(lease_until=NOW), NOW, "x")
    assert choose(change, running(lease_until=NOW + 1)) is None
    assert choose(change, running(lease_until=NOW, token=8)) is None
    write = choose(change, running(lease_until=NOW))
    assert write
    assert (write.event, write.takeover) == (EventType.STALE, True)


def test_reschedule_into_the_past_is_now() -> None:
    assert actions.reschedule(job(), NOW, 5).cases[0].write.run_at == NOW


def test_delete_of_a_waiting_job_cancels_it_in_the_same_step() -> None:
    waiting = choose(actions.delete(job(), NOW), job())
    ended = choose(actions.delete(job(), NOW), job(state=State.DEAD))
    assert waiting
    assert ended
    assert (waiting.event, waiting.discards) == (EventType.CANCELLED, True)
    assert (ended.event, ended.discards) == (EventType.DELETED, True)


@pytest.mark.parametrize(
    ("on_lost", "detached", "lapses"),
    [
        (None, False, True),
        (OnLost.RETRY, False, True),
        (OnLost.FAIL_STALE, False, True),
        (OnLost.BLOCK, False, False),
        (OnLost.BLOCK, True, True),
    ],
)
def test_only_a_blocking_key_keeps_a_lapsed_lease(
    on_lost: OnLost | None, detached: bool, lapses: bool
) -> None:
    key = on_lost and KeyLimit("k", hash_of(["k"]), on_lost=on_lost)
    assert actions.lapses(running(new(key=key), detached=detached)) is lapses


# Writes


@given(st.sampled_from(State), st.sampled_from(EventType))
def test_write_follows_the_table_and_keeps_the_records_whole(
    state: State, event: EventType
) -> None:
    before = in_state(state)
    after = written(before, Write(event=event, at=NOW + 3), 20)
    if next_state(state, event) is None:
        assert after is None
        return
    assert after
    assert (after.state, after.event) == (next_state(state, event), event)
    assert (after.version, after.updated_at) == (20, NOW + 3)
    assert after.token == (20 if event is EventType.STARTED else before.token)
    if state is State.ACTIVE and after.state is not State.ACTIVE:
        assert (after.worker, after.lease_until) == (None, None)
        assert (after.detached, after.cancelling) == (False, None)
    if after.state is not state:
        assert after.finished_at == (NOW + 3 if after.state in FINAL else None)


def test_write_touches_only_the_fields_it_names() -> None:
    before = running(priority=3)
    after = written(before, Write(event=EventType.PROGRESS, at=NOW), 9)
    changed = {"version", "event", "updated_at"}
    for name in Job.__struct_fields__:
        if name not in changed:
            assert getattr(after, name) == getattr(before, name), name


def test_start_counts_the_try_and_keeps_a_time_to_live_only_by_starting() -> None:
    waiting = job(expires_at=NOW + 5, deadline=NOW + 50, tries=1)
    request = ClaimRequest(service="svc", worker="w", shares=(), limit=1, lease=100, now=NOW)
    after = written(waiting, started(waiting, request), 9)
    assert after
    assert (after.tries, after.worker, after.token) == (2, "w", 9)
    assert (after.lease_until, after.started_at) == (NOW + 100, NOW)
    assert after.expires_at == NOW + 50


def test_repeat_is_the_same_event_at_the_same_time_since_the_snapshot() -> None:
    change = actions.cancel(job(version=4), NOW, "x")
    done = job(version=5, state=State.CANCELLED, event=EventType.CANCELLED, updated_at=NOW)
    assert repeated(change, done)
    assert not repeated(change, msgspec.structs.replace(done, updated_at=NOW + 1))
    assert not repeated(change, msgspec.structs.replace(done, event=EventType.EXPIRED))
    assert not repeated(actions.cancel(done, NOW, "x"), done)


def test_repeat_under_another_token_is_none() -> None:
    change = actions.release(running(), NOW, "x")
    done = job(version=9, token=7, event=EventType.STALE, state=State.STALE, updated_at=NOW)
    assert repeated(change, done)
    assert not repeated(change, msgspec.structs.replace(done, token=8))
