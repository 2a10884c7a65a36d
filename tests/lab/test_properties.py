"""A valid history never gives a violation; one that was tampered with does."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from random import Random

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.testing.lab.checker import violations
from headrace.testing.lab.explain import explain
from headrace.testing.lab.history import Entry, History
from headrace.testing.lab.notes import Settled, Start
from headrace.testing.lab.rules import FINAL
from tests.lab.simulation import simulate

SEEDS = st.integers(0, 1 << 20)
FEW = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
RUNS = int(os.environ.get("HEADRACE_LAB_RUNS", "3000"))

replace = msgspec.structs.replace


@cache
def simulated(seed: int) -> History:
    return simulate(seed)


@FEW
@given(SEEDS)
def test_valid_history_has_no_violation(seed: int) -> None:
    history = simulate(seed)
    assert len(history.entries) > 20
    assert [explain(history, found) for found in violations(history)] == []


@pytest.mark.lab
@pytest.mark.timeout(3600)
@settings(FEW, max_examples=RUNS)
@given(SEEDS)
def test_valid_history_has_no_violation_for_long(seed: int) -> None:
    history = simulate(seed, 500)
    assert [explain(history, found) for found in violations(history)] == []


def fresh(history: History) -> History:
    """A copy without what was worked out already."""
    return History(history.plan, list(history.entries), dict(history.stored), list(history.notes))


def place_of(history: History, chance: Random, wanted: Callable[[Entry], bool]) -> int:
    return chance.choice([n for n, entry in enumerate(history.entries) if wanted(entry)])


def edit(history: History, place: int, **fields: object) -> None:
    history.entries[place] = replace(history.entries[place], **fields)


def started(entry: Entry) -> bool:
    return entry.event == "started"


def edit_note(
    history: History, chance: Random, kind: type[Start | Settled], **fields: object
) -> None:
    places = [n for n, note in enumerate(history.notes) if isinstance(note, kind)]
    if kind is Settled:
        places = [n for n in places if history.notes[n].applied]  # pyright: ignore
    place = chance.choice(places)
    history.notes[place] = replace(history.notes[place], **fields)


def a_start_is_left_out(history: History, chance: Random) -> None:
    del history.entries[place_of(history, chance, started)]


def an_end_is_left_out(history: History, chance: Random) -> None:
    del history.entries[place_of(history, chance, lambda entry: entry.event == "completed")]


def an_end_comes_twice(history: History, chance: Random) -> None:
    place = place_of(history, chance, lambda entry: entry.event == "completed")
    again = replace(history.entries[place], seq=history.entries[-1].seq + 1)
    history.entries.append(again)


def two_entries_change_places(history: History, chance: Random) -> None:
    place = chance.randrange(len(history.entries) - 1)
    entries = history.entries
    entries[place], entries[place + 1] = entries[place + 1], entries[place]


def a_job_vanishes(history: History, chance: Random) -> None:
    job = history.entries[place_of(history, chance, lambda entry: entry.event == "completed")].job
    history.entries = [entry for entry in history.entries if entry.job != job]
    history.stored.pop(job, None)


def a_try_is_not_counted(history: History, chance: Random) -> None:
    place = place_of(history, chance, started)
    edit(history, place, tries=history.entries[place].tries - 1)


def a_job_ends_otherwise(history: History, chance: Random) -> None:
    place = place_of(history, chance, lambda entry: entry.event == "completed")
    edit(history, place, state=chance.choice(sorted(FINAL - {"completed"})))


def a_handler_has_another_token(history: History, chance: Random) -> None:
    edit_note(history, chance, Start, token=10**9)


def a_handler_runs_elsewhere(history: History, chance: Random) -> None:
    edit_note(history, chance, Start, worker="w0")


def a_handler_runs_twice(history: History, chance: Random) -> None:
    note = chance.choice([note for note in history.notes if isinstance(note, Start)])
    history.notes.append(replace(note, mono=note.mono + 1, pid=7))


def an_outcome_is_of_another_entry(history: History, chance: Random) -> None:
    edit_note(history, chance, Settled, version=1)


def a_job_is_not_stored(history: History, chance: Random) -> None:
    forgetful = {queue for queue, rules in history.plan.queues.items() if rules.forgets}
    kept = [
        job
        for job, stored in history.stored.items()
        if stored.state == "completed" and history.jobs[job][-1].queue not in forgetful
    ]
    del history.stored[chance.choice(kept)]


def a_result_is_another_s(history: History, chance: Random) -> None:
    kept = [job for job, stored in history.stored.items() if stored.result_token is not None]
    job = chance.choice(kept)
    history.stored[job] = replace(history.stored[job], result_token=1)


def a_job_runs_before_it_was_created(history: History, chance: Random) -> None:
    place = place_of(history, chance, lambda entry: entry.event == "created")
    entry = history.entries.pop(place)
    history.entries.append(replace(entry, seq=history.entries[-1].seq + 1))


MUTATIONS = [
    a_start_is_left_out,
    an_end_is_left_out,
    an_end_comes_twice,
    two_entries_change_places,
    a_job_vanishes,
    a_try_is_not_counted,
    a_job_ends_otherwise,
    a_handler_has_another_token,
    a_handler_runs_elsewhere,
    a_handler_runs_twice,
    an_outcome_is_of_another_entry,
    a_job_is_not_stored,
    a_result_is_another_s,
    a_job_runs_before_it_was_created,
]


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.__name__)
@settings(FEW, max_examples=10)
@given(seed=st.integers(0, 2), chance=st.randoms(use_true_random=False))
def test_history_that_was_tampered_with_has_violations(
    mutation: Callable[[History, Random], None], seed: int, chance: Random
) -> None:
    history = fresh(simulated(seed))
    mutation(history, chance)
    assert violations(fresh(history))
