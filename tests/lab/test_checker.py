"""The checker finds every kind of violation, and nothing in a history that is as it should be."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from headrace.testing.lab.checker import NAMES, violations
from headrace.testing.lab.explain import explain
from headrace.testing.lab.history import Stored
from headrace.testing.lab.notes import (
    Answer,
    Answered,
    Done,
    End,
    Gate,
    Intended,
    Jump,
    Left,
    Settled,
    Start,
    Surprise,
)
from tests.lab.forge import LEASE, T0, Forge

FORGERIES: dict[str, list[Callable[[Forge], None]]] = {}


def breaks(check: str) -> Callable[[Callable[[Forge], None]], Callable[[Forge], None]]:
    """The forged history breaks exactly this promise (and may break others with it)."""

    def keep(forgery: Callable[[Forge], None]) -> Callable[[Forge], None]:
        FORGERIES.setdefault(check, []).append(forgery)
        return forgery

    return keep


def sound(forge: Forge) -> None:
    """A bit of everything that is allowed."""
    forge.run("plain", 0)
    forge.create("late", 5, run_at=T0 + 500)
    forge.create("parent", 10)
    forge.create("child", 11, "blocked", parents=("parent",))
    forge.create("waiter", 12, "blocked", parents=("doomed",), on_parent_failure="wait")
    forge.create("doomed", 12)
    forge.start("parent", 20)
    forge.finish("parent", 30)
    forge.add("child", "released", 30, "pending")
    forge.start("child", 40)
    forge.finish("child", 50)
    forge.start("doomed", 60)
    forge.finish("doomed", 70, "failed")
    forge.start("late", 510)
    forge.finish("late", 520, "retry", run_at=T0 + 900)
    forge.start("late", 905)
    forge.finish("late", 910, "snoozed", "pending", tries=1, run_at=T0 + 950)
    forge.start("late", 951)
    forge.finish("late", 960)
    # A worker is frozen past its lease; its late completion is refused, another's is taken.
    forge.create("lost", 1000)
    old = forge.start("lost", 1010, "w1", pid=11)
    forge.lose("lost", 1010 + LEASE)
    forge.start("lost", 4000, "w2", pid=12)
    forge.note(End(job="lost", token=old, how="returned"), 4010, 11)
    forge.add("lost", "stale_completion_ignored", 4010, "active")
    forge.note(Settled(job="lost", token=old, applied=False), 4011, 11)
    forge.finish("lost", 4020, pid=12)
    # Keys, caps, dedup and a retry by hand.
    for job, ms in (("k1", 4100), ("k2", 4200)):
        forge.run(job, ms, key="K", queue="capped", dedup="D")
    forge.add("k1", "retried", 4300, "pending", tries=0)
    forge.note(Done(action="retry", job="k1", version=forge.entries[-1].seq), 4301)
    forge.start("k1", 4310)
    forge.finish("k1", 4320)
    for n in range(4):
        forge.run(f"rated-{n}", 5000 + 110 * n, queue="rated")
    for n in range(2):
        forge.run(f"slow-{n}", 5600 + 300 * n, dedup="T", dedup_mode="throttle", window=250)
    forge.run("brief", 6300, queue="brief")
    forge.gone.add("brief")
    forge.run("m1", 6400)
    forge.run("m2", 6500)
    forge.note(Gate(queue="capped", closed="m1", opened="m2"), 6530)
    forge.note(Intended(jobs=(forge.spec("refused", 6600),)), 6600)
    forge.note(Answered(answers=(Answer("refused", "duplicate", "dedup-key"),)), 6601)
    forge.note(Left(victim=11, code=-9, killed=True), 6700)


def test_sound_history_has_no_violation() -> None:
    forge = Forge()
    sound(forge)
    history = forge.history()
    assert [explain(history, found) for found in violations(history)] == []


# What must be found


@breaks("journal_is_in_order")
def sequence_goes_back(forge: Forge) -> None:
    forge.entries.append(msgspec.structs.replace(forge.entries[0], seq=2))


@breaks("transitions_are_legal")
def job_starts_out_of_nothing(forge: Forge) -> None:
    forge.add("ghost", "started", 7000, "active", tries=1)


@breaks("transitions_are_legal")
def cancelled_job_completes(forge: Forge) -> None:
    forge.create("x", 7000)
    forge.add("x", "cancelled", 7010, "cancelled")
    forge.add("x", "completed", 7020, "completed")


@breaks("transitions_are_legal")
def state_is_skipped(forge: Forge) -> None:
    forge.create("x", 7000)
    forge.add("x", "completed", 7020, "completed", previous="active")


@breaks("transitions_are_legal")
def event_leads_elsewhere(forge: Forge) -> None:
    forge.create("x", 7000)
    forge.start("x", 7010)
    forge.add("x", "completed", 7020, "failed")


@breaks("transitions_are_legal")
def living_job_is_created_again(forge: Forge) -> None:
    forge.create("x", 7000)
    forge.create("x", 7001)


@breaks("jobs_end_once")
def job_ends_twice(forge: Forge) -> None:
    forge.run("x", 7000)
    forge.add("x", "completed", 7030, "completed")


@breaks("tries_are_counted")
def try_is_not_counted(forge: Forge) -> None:
    forge.create("x", 7000)
    forge.start("x", 7010, tries=0)
    forge.finish("x", 7020)


@breaks("tries_are_counted")
def job_is_dead_too_soon(forge: Forge) -> None:
    forge.create("x", 7000)
    forge.start("x", 7010)
    forge.finish("x", 7020, "dead")


@breaks("tries_are_counted")
def job_is_tried_for_ever(forge: Forge) -> None:
    forge.create("x", 7000)
    for n in range(4):
        forge.start("x", 7010 + 20 * n)
        forge.finish("x", 7020 + 20 * n, "retry" if n < 3 else "completed")


@breaks("confirmed_jobs_are_there")
def confirmed_job_is_lost(forge: Forge) -> None:
    forge.note(Intended(jobs=(forge.spec("x", 7000),)), 7000)
    forge.note(Answered(answers=(Answer("x", "accepted"),)), 7001)


@breaks("refused_jobs_are_not_there")
def refused_job_is_written(forge: Forge) -> None:
    forge.run("x", 7000)
    refused = Answered(answers=(Answer("x", "rejected", "queue-full"),))
    forge.notes = [n for n in forge.notes if not (isinstance(n, Answered) and _of(n, "x"))]
    forge.note(refused, 7001)


@breaks("refused_jobs_are_not_there")
def unavailable_store_has_written(forge: Forge) -> None:
    forge.run("x", 7000)
    forge.notes = [n for n in forge.notes if not (isinstance(n, Answered) and _of(n, "x"))]
    forge.note(Answered(answers=(Answer("x", "unavailable"),)), 7001)


def _of(note: Answered, job: str) -> bool:
    return any(answer.job == job for answer in note.answers)


@breaks("confirmed_actions_are_journaled")
def confirmed_cancel_is_lost(forge: Forge) -> None:
    forge.note(Done(action="cancel", job="plain", version=9999), 7000)


@breaks("confirmed_actions_are_journaled")
def confirmed_retry_is_of_another_job(forge: Forge) -> None:
    forge.note(Done(action="retry", job="plain", version=forge.entries[-1].seq), 7000)


@breaks("store_and_journal_agree")
def ended_job_is_gone(forge: Forge) -> None:
    forge.run("x", 7000)
    forge.gone.add("x")


@breaks("every_job_ends")
def job_is_stuck_pending(forge: Forge) -> None:
    forge.create("x", 7000)


@breaks("every_job_ends")
def job_is_stuck_behind_a_parent_that_completed(forge: Forge) -> None:
    forge.create("x", 7000, "blocked", parents=("plain",), on_parent_failure="wait")


@breaks("every_job_ends")
def job_of_dead_worker_is_stuck_active(forge: Forge) -> None:
    forge.create("x", 7000)
    forge.start("x", 7010)


@breaks("tokens_grow")
def token_goes_back(forge: Forge) -> None:
    forge.create("x", 7000, key="Kx")
    forge.start("x", 7010, token=500)
    forge.finish("x", 7020, "retry")
    forge.start("x", 7030, token=400)
    forge.finish("x", 7040)


@breaks("runs_hold_a_lease")
def handler_runs_without_a_claim(forge: Forge) -> None:
    forge.create("x", 7000)
    forge.note(Start(job="x", number=1, token=1, worker="w1"), 7010, 11)


@breaks("runs_hold_a_lease")
def two_workers_run_one_claim(forge: Forge) -> None:
    forge.create("x", 7000)
    token = forge.start("x", 7010)
    forge.note(Start(job="x", number=1, token=token, worker="w1"), 7011, 12)
    forge.finish("x", 7020)


@breaks("runs_hold_a_lease")
def another_worker_runs_the_claim(forge: Forge) -> None:
    forge.create("x", 7000)
    token = forge.add("x", "started", 7010, "active", tries=1, worker="w1").seq
    forge.note(Start(job="x", number=1, token=token, worker="w2"), 7011, 12)


@breaks("only_the_owner_writes")
def lost_owner_completes(forge: Forge) -> None:
    forge.create("x", 7000)
    old = forge.start("x", 7010, "w1", pid=11)
    forge.lose("x", 7010 + LEASE)
    forge.start("x", 9100, "w2", pid=12)
    end = forge.finish("x", 9110, pid=12)
    late = Settled(job="x", token=old, applied=True, event="completed", version=end.seq)
    forge.note(late, 9120, 11)


@breaks("only_the_owner_writes")
def owner_is_refused(forge: Forge) -> None:
    forge.create("x", 7000)
    token = forge.start("x", 7010)
    forge.note(Settled(job="x", token=token, applied=False), 7020, 11)


@breaks("only_the_owner_writes")
def stranger_writes_progress(forge: Forge) -> None:
    forge.create("x", 7000)
    forge.start("x", 7010, "w1")
    forge.add("x", "progress", 7015, "active", worker="w2")
    forge.finish("x", 7020, worker="w1")


@breaks("results_are_of_the_last_owner")
def result_is_the_lost_owners(forge: Forge) -> None:
    forge.create("x", 7000)
    old = forge.start("x", 7010)
    forge.lose("x", 7010 + LEASE)
    forge.start("x", 9100, "w2", pid=12)
    forge.finish("x", 9110, pid=12)
    forge.results["x"] = old


@breaks("leases_run_out_before_takeover")
def lease_is_cut_short(forge: Forge) -> None:
    forge.create("x", 7000)
    forge.start("x", 7010)
    forge.lose("x", 7010 + LEASE - 1)
    forge.start("x", 9100, "w2", pid=12)
    forge.finish("x", 9110, pid=12)


@breaks("completed_jobs_do_not_run_again")
def completed_job_runs_again(forge: Forge) -> None:
    forge.run("x", 7000)
    token = forge.tokens["x"]
    forge.note(Start(job="x", number=1, token=token, worker="w1"), 7100, 11)


@breaks("keys_respect_their_limit")
def key_runs_two(forge: Forge) -> None:
    forge.create("x", 7000, key="Kx")
    forge.create("y", 7000, key="Kx")
    forge.start("x", 7010)
    forge.start("y", 7011, "w2", pid=12)
    forge.finish("x", 7020)
    forge.finish("y", 7021, pid=12)


@breaks("queues_respect_their_cap")
def capped_queue_runs_two(forge: Forge) -> None:
    forge.create("x", 7000, queue="capped")
    forge.create("y", 7000, queue="capped")
    forge.start("x", 7010)
    forge.start("y", 7011, "w2", pid=12)
    forge.finish("x", 7020)
    forge.finish("y", 7021, pid=12)


@breaks("workers_respect_their_concurrency")
def worker_holds_three(forge: Forge) -> None:
    for n, job in enumerate(("x", "y", "z")):
        forge.create(job, 7000)
        forge.start(job, 7010 + n, "w1", pid=11 + n)
    for n, job in enumerate(("x", "y", "z")):
        forge.finish(job, 7020, pid=11 + n)


@breaks("slots_are_kept_while_handlers_run")
def process_runs_three_handlers(forge: Forge) -> None:
    """The journal knows nothing of it: the jobs were taken from their worker before."""
    for n, job in enumerate(("x", "y", "z")):
        forge.create(job, 7000 + 3000 * n)
        forge.start(job, 7010 + 3000 * n, f"w{n}", pid=21)
        forge.lose(job, 9500 + 3000 * n)
        forge.start(job, 20_000 + 100 * n, "w9", pid=30)
        forge.finish(job, 20_010 + 100 * n, pid=30)


@breaks("paused_queues_start_nothing")
def paused_queue_starts_a_job(forge: Forge) -> None:
    forge.run("closed", 7000)
    forge.run("x", 7100)
    forge.run("opened", 7200)
    forge.note(Gate(queue="default", closed="closed", opened="opened"), 7300)


@breaks("rates_are_kept")
def rate_is_exceeded(forge: Forge) -> None:
    for n in range(3):
        forge.run(f"x{n}", 7000 + 30 * n, queue="rated")


@breaks("nothing_starts_early")
def delayed_job_starts_early(forge: Forge) -> None:
    forge.create("x", 7000, run_at=T0 + 8000)
    forge.start("x", 7999)
    forge.finish("x", 8010)


@breaks("nothing_starts_early")
def retry_does_not_wait(forge: Forge) -> None:
    forge.create("x", 7000)
    forge.start("x", 7010)
    forge.finish("x", 7020, "retry", run_at=T0 + 8000)
    forge.start("x", 7500)
    forge.finish("x", 7510)


@breaks("nothing_starts_early")
def delayed_job_starts_early_though_the_clock_was_moved(forge: Forge) -> None:
    forge.note(Jump(offset=100, until=forge.mono(6901)), 6900)
    forge.create("x", 7000, run_at=T0 + 8000)
    forge.start("x", 7800)
    forge.finish("x", 7810)


@breaks("nothing_starts_late")
def job_starts_after_its_deadline(forge: Forge) -> None:
    forge.create("x", 7000, deadline=T0 + 7010)
    forge.start("x", 7010)
    forge.finish("x", 7020)


@breaks("nothing_starts_late")
def job_starts_after_its_time_to_live(forge: Forge) -> None:
    forge.create("x", 7000, ttl=5)
    forge.start("x", 7010)
    forge.finish("x", 7020)


@breaks("parents_come_first")
def dependent_starts_before_its_parent_completed(forge: Forge) -> None:
    forge.create("p", 7000)
    forge.create("x", 7001, parents=("p",))
    forge.start("x", 7010)
    forge.finish("x", 7020)
    forge.start("p", 7030)
    forge.finish("p", 7040)


@breaks("parents_come_first")
def dependent_runs_though_its_parent_failed(forge: Forge) -> None:
    forge.create("x", 7001, parents=("doomed",))
    forge.start("x", 7010)
    forge.finish("x", 7020)


@breaks("parents_come_first")
def dependent_is_unreachable_for_no_reason(forge: Forge) -> None:
    forge.create("x", 7001, "blocked", parents=("plain",))
    forge.add("x", "unreachable", 7010, "unreachable")


@breaks("dedup_admits_one")
def dedup_admits_two(forge: Forge) -> None:
    forge.create("x", 7000, dedup="Dx")
    forge.create("y", 7001, dedup="Dx")
    for n, job in enumerate(("x", "y")):
        forge.start(job, 7010 + 20 * n)
        forge.finish(job, 7020 + 20 * n)


@breaks("dedup_admits_one")
def keep_last_runs_two(forge: Forge) -> None:
    for job in ("x", "y"):
        forge.create(job, 7000, dedup="Dx", dedup_mode="keep_last")
        forge.start(job, 7010)
    for job in ("x", "y"):
        forge.finish(job, 7020)


@breaks("throttles_are_kept")
def throttle_admits_two(forge: Forge) -> None:
    forge.run("x", 7000, dedup="Tx", dedup_mode="throttle", window=500)
    forge.run("y", 7400, dedup="Tx", dedup_mode="throttle", window=500)


@breaks("errors_are_typed")
def process_is_surprised(forge: Forge) -> None:
    forge.note(Surprise(where="enqueue", error="KeyError: 'x'"), 7000)


@breaks("processes_stay")
def worker_ends_by_itself(forge: Forge) -> None:
    forge.note(Left(victim=11, code=1, killed=False), 7000)


CASES = [(check, forgery) for check, forgeries in FORGERIES.items() for forgery in forgeries]


@pytest.mark.parametrize(("check", "forgery"), CASES, ids=[f.__name__ for _, f in CASES])
def test_forged_history_is_found_out(check: str, forgery: Callable[[Forge], None]) -> None:
    forge = Forge()
    sound(forge)
    forgery(forge)
    history = forge.history()
    found = [violation for violation in violations(history) if violation.check == check]
    assert found
    for violation in found:
        text = explain(history, violation)
        assert text.startswith(f"{check}: ")
        if violation.job:
            assert violation.job in text


def test_every_check_has_a_history_that_it_finds_out() -> None:
    assert set(FORGERIES) == set(NAMES)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"state": "failed"}, "is stored failed"),
        ({"version": 1}, "as of entry 1"),
        ({"tries": 7}, "7 tries"),
        ({"token": 1}, "token 1"),
    ],
)
def test_store_that_differs_from_the_journal_is_found_out(
    change: dict[str, object], complaint: str
) -> None:
    forge = Forge()
    sound(forge)
    history = forge.history()
    history.stored["late"] = msgspec.structs.replace(history.stored["late"], **change)
    assert any(complaint in found.message for found in violations(history))


def test_stored_job_without_a_journal_is_found_out() -> None:
    history = Forge().history()
    history.stored["x"] = Stored(id="x", state="completed", version=1)
    assert [found.check for found in violations(history)] == ["store_and_journal_agree"]


def test_job_that_was_due_before_the_clock_went_back_may_start() -> None:
    forge = Forge()
    forge.create("x", 100, run_at=T0 + 1000)
    forge.note(Jump(offset=-5000, until=forge.mono(1201)), 1200)
    forge.add("x", "started", -3700, "active", tries=1, worker="w1")  # by the moved clock
    forge.tokens["x"] = forge.entries[-1].seq
    forge.note(Start(job="x", number=1, token=forge.tokens["x"], worker="w1"), 1300, 11)
    forge.finish("x", 1310)
    assert violations(forge.history()) == []


def test_key_that_was_freed_belongs_neither_to_its_owner_nor_to_who_waits_behind() -> None:
    forge = Forge()
    mode = {"dedup": "D", "dedup_mode": "keep_last"}
    forge.create("owner", 100, **mode)
    forge.start("owner", 110)
    forge.create("waits", 120, "blocked", **mode)
    forge.add("waits", "changed", 130, "blocked", reason="dedup key freed")
    forge.run("next", 140, **mode)
    forge.finish("owner", 200)
    forge.add("waits", "released", 200, "pending")
    forge.start("waits", 210)
    forge.finish("waits", 220)
    assert violations(forge.history()) == []


def test_explanation_shows_the_events_around_and_marks_the_culprit() -> None:
    forge = Forge()
    sound(forge)
    lost_owner_completes(forge)
    history = forge.history()
    (found,) = [v for v in violations(history) if v.check == "only_the_owner_writes"]
    text = explain(history, found)
    assert "job x completed under token" in text
    assert "→" in text
    assert "LeaseLost" in text
    assert "handler of try 2 begins" in text
