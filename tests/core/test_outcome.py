"""settle: every outcome, while cancelling, exhausted, without dead letters, with discards."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec import UNSET

from headrace.core import change
from headrace.core.change import Write, choose
from headrace.core.keys import hash_of
from headrace.core.model import (
    MAX_MESSAGE,
    MAX_TRACEBACK,
    Dedup,
    Job,
    KeyLimit,
    OnLost,
    TryError,
)
from headrace.core.outcome import (
    Cancelled,
    Completed,
    Detached,
    Expired,
    Failed,
    Lost,
    Moved,
    Outcome,
    Problem,
    Returned,
    Snoozed,
    Terminated,
    Uncounted,
    settle,
)
from headrace.core.queue import DEFAULTS, QueueSettings
from headrace.core.retry import AtOnce, Steps
from headrace.core.states import FINAL, EventType, State, next_state
from tests.core.jobs import NOW, new, running

E = EventType
PROBLEM = Problem("ValueError", "boom", "trace")
RESULT = msgspec.Raw(b'{"n":1}')
KEY = KeyLimit("k", hash_of(["k"]), on_lost=OnLost.FAIL_STALE)

EVERY: list[tuple[Outcome, EventType]] = [
    (Completed(RESULT), E.COMPLETED),
    (Failed(PROBLEM), E.RETRY),
    (Uncounted(PROBLEM), E.RETRY),
    (Terminated(PROBLEM), E.FAILED),
    (Snoozed(NOW + 5), E.SNOOZED),
    (Cancelled("why"), E.CANCELLED),
    (Expired(), E.EXPIRED),
    (Detached(NOW + 5), E.DETACHED),
    (Moved("q2"), E.MOVED),
    (Returned(), E.RETURNED),
    (Lost(), E.RETRY),
]
NAMES = [type(outcome).__name__ for outcome, _ in EVERY]


def written(
    job: Job, outcome: Outcome, stored: Job | None = None, settings: QueueSettings = DEFAULTS
) -> Write:
    """The write that is made where the stored job still is as the owner knows it."""
    stored = stored or job
    if isinstance(outcome, Lost):
        stored = msgspec.structs.replace(stored, lease_until=NOW)
    write = choose(settle(job, outcome, NOW, 0.5, settings), stored)
    assert write is not None
    return write


@pytest.mark.parametrize(("outcome", "event"), EVERY, ids=NAMES)
def test_outcome_makes_its_event_and_the_table_allows_it(
    outcome: Outcome, event: EventType
) -> None:
    write = written(running(), outcome)
    assert (write.event, write.at) == (event, NOW)
    assert next_state(State.ACTIVE, write.event) is not None


@pytest.mark.parametrize(("outcome", "event"), EVERY, ids=NAMES)
def test_cancel_asked_for_meanwhile_wins_over_all_but_an_end(
    outcome: Outcome, event: EventType
) -> None:
    stored = running(cancelling="please")
    ends = next_state(State.ACTIVE, event) in FINAL
    assert written(running(), outcome, stored).event is (event if ends else E.CANCELLED)


@pytest.mark.parametrize("outcome", [outcome for outcome, _ in EVERY], ids=NAMES)
@pytest.mark.parametrize(
    "stored",
    [running(token=8), running(state=State.COMPLETED), running(state=State.PENDING)],
    ids=["new owner", "ended", "given back"],
)
def test_no_outcome_touches_a_job_that_is_no_longer_its_own(outcome: Outcome, stored: Job) -> None:
    stored = msgspec.structs.replace(stored, lease_until=NOW)
    change = settle(running(), outcome, NOW, 0.5, DEFAULTS)
    assert choose(change, stored) is None


@pytest.mark.parametrize("outcome", [outcome for outcome, _ in EVERY], ids=NAMES)
def test_refused_outcome_is_journaled_but_for_rescue(outcome: Outcome) -> None:
    change = settle(running(), outcome, NOW, 0.5, DEFAULTS)
    assert change.leaves_trace is not isinstance(outcome, Lost)


@pytest.mark.parametrize(("outcome", "event"), EVERY, ids=NAMES)
def test_last_try_changes_only_what_counts_as_a_failure(outcome: Outcome, event: EventType) -> None:
    exhausted = running(tries=3, max_tries=3)
    fails = isinstance(outcome, Failed | Lost)
    assert written(exhausted, outcome).event is (E.DEAD if fails else event)
    plain = QueueSettings(dead_letters=False)
    assert written(exhausted, outcome, settings=plain).event is (E.FAILED if fails else event)


def test_completion_keeps_the_result_and_clears_the_error() -> None:
    write = written(running(), Completed(RESULT))
    assert (write.result, write.error) == (RESULT, None)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"cancelling": "please", "detached": True},
        {"result": RESULT, "error": TryError(NOW, 1, "ValueError", "boom")},
    ],
)
@pytest.mark.parametrize(
    "write",
    [
        Write(event=E.COMPLETED, at=NOW + 5, result=RESULT, error=None),
        Write(event=E.COMPLETED, at=NOW + 5, result=None),
        Write(event=E.COMPLETED, at=NOW + 5),
    ],
)
def test_completed_is_what_the_table_makes_of_a_completion(
    fields: dict[str, Any], write: Write
) -> None:
    job = running(**fields)
    assert change.completed(job, write, 9) == change.written(job, write, 9)


@pytest.mark.parametrize(
    "job",
    [
        running(new(key=KEY)),
        running(new(dedup=Dedup("d"))),
        running(deadline=NOW + 60_000),
    ],
)
def test_completion_that_concerns_more_than_the_job_says_so(job: Job) -> None:
    assert not settle(job, Completed(), NOW, 0.5, DEFAULTS).only_completes


def test_only_a_plain_completion_may_be_done_by_the_batch() -> None:
    assert settle(running(), Completed(), NOW, 0.5, DEFAULTS).only_completes
    assert not settle(running(), Failed(PROBLEM), NOW, 0.5, DEFAULTS).only_completes


def test_failure_waits_for_the_job_s_policy_then_the_queue_s() -> None:
    queue = QueueSettings(retry=Steps((700, 800)))
    own = running(new(retry=Steps((100, 200))), tries=2)
    assert written(own, Failed(PROBLEM), settings=queue).run_at == NOW + 200
    assert written(running(tries=2), Failed(PROBLEM), settings=queue).run_at == NOW + 800
    assert written(own, Failed(PROBLEM, after=5), settings=queue).run_at == NOW + 5
    assert written(own, Failed(PROBLEM, after=-5), settings=queue).run_at == NOW
    assert written(running(new(retry=AtOnce())), Failed(PROBLEM)).run_at == NOW


def test_error_names_the_try_and_is_bounded() -> None:
    long = Problem("E", "m" * 10**5, "a" * 10**5 + "z")
    error = written(running(tries=2), Failed(long)).error
    assert error
    assert (error.at, error.number, error.type) == (NOW, 2, "E")
    assert len(error.message) == MAX_MESSAGE
    assert len(error.traceback) < MAX_TRACEBACK + 60
    assert error.traceback.startswith("aaa")
    assert error.traceback.endswith("z")
    assert "left out" in error.traceback


@pytest.mark.parametrize("outcome", [Uncounted(PROBLEM, 9), Snoozed(NOW + 9), Returned()])
def test_uncounted_outcomes_give_the_try_back(outcome: Outcome) -> None:
    assert written(running(tries=2), outcome).tries == 1


def test_counted_outcomes_leave_the_tries() -> None:
    for outcome in (Failed(PROBLEM), Lost(), Completed(), Detached(NOW)):
        assert written(running(tries=2), outcome).tries is msgspec.UNSET


def test_snooze_into_the_past_is_now() -> None:
    assert written(running(), Snoozed(NOW - 9)).run_at == NOW
    assert written(running(), Moved("q2", run_at=NOW - 9)).run_at == NOW
    assert written(running(), Moved("q2", run_at=NOW + 9)).run_at == NOW + 9


def test_move_resets_tries_and_errors_and_keeps_the_result_so_far() -> None:
    job = running(tries=2, result=RESULT)
    write = written(job, Moved("q2"))
    assert (write.queue, write.type, write.tries) == ("q2", "work", 0)
    assert (write.error, write.result, write.clears) == (None, RESULT, True)
    other = written(job, Moved("q2", "next", result=msgspec.Raw(b"2")))
    assert (other.type, other.result) == ("next", msgspec.Raw(b"2"))


def test_cancel_says_why() -> None:
    assert written(running(), Cancelled("why")).reason == "why"
    assert written(running(cancelling="please"), Cancelled()).reason == "please"


def test_lost_lease_counts_a_takeover() -> None:
    write = written(running(), Lost())
    assert (write.takeover, write.run_at) == (True, UNSET)  # it keeps its place in line
    assert write.error
    assert (write.error.type, "w1" in write.error.message) == ("LeaseLost", True)
    assert written(running(tries=3), Lost()).takeover


def test_lost_lease_must_have_lapsed() -> None:
    change = settle(running(), Lost(), NOW, 0.5, DEFAULTS)
    assert choose(change, running(lease_until=NOW + 1)) is None
    assert choose(change, running(lease_until=NOW)) is not None


@pytest.mark.parametrize("on_lost", OnLost)
@pytest.mark.parametrize("contended", [True, False])
def test_lost_keyed_job_is_stale_only_where_another_waits(on_lost: OnLost, contended: bool) -> None:
    spec = new(key=msgspec.structs.replace(KEY, on_lost=on_lost))
    stale = contended and on_lost is OnLost.FAIL_STALE
    assert written(running(spec), Lost(contended)).event is (E.STALE if stale else E.RETRY)


def test_lost_job_past_its_deadline_expires() -> None:
    assert written(running(deadline=NOW), Lost()).event is E.EXPIRED
    assert written(running(deadline=NOW + 1), Lost()).event is E.RETRY
    assert written(running(deadline=NOW, detached=True), Lost()).event is E.EXPIRED


def test_detached_time_limit_is_a_failed_try_and_no_takeover() -> None:
    write = written(running(detached=True, tries=1), Lost())
    assert (write.event, write.takeover) == (E.RETRY, False)
    assert write.error
    assert write.error.type == "DetachedTimeout"
    assert written(running(detached=True, tries=3), Lost()).event is E.DEAD
