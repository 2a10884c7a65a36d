"""Who is let in: dedup keys."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from headrace.testing.lab.history import Entry, History
from headrace.testing.lab.notes import Answered, Intended, Spec
from headrace.testing.lab.rules import FINAL
from headrace.testing.lab.violation import Violation

FREED = "dedup key freed"
"""The reason of a change by which a job gives up its dedup key."""


def dedup_admits_one(history: History) -> Iterator[Violation]:
    """A dedup key has one living owner; with keep-last also one that waits behind it. A key that
    somebody frees is neither's any more."""
    living: defaultdict[str, dict[str, Entry]] = defaultdict(dict)
    for entry in history.entries:
        spec = history.specs.get(entry.job)
        if spec is None or spec.dedup is None or spec.dedup_mode == "throttle":
            continue
        owners = living[spec.dedup]
        if entry.reason == FREED and entry.job == next(reversed(owners), None):
            owners.clear()  # the newest holds it, also where it waits behind another
        elif entry.state in FINAL or entry.reason == FREED:
            owners.pop(entry.job, None)
        elif entry.event in ("created", "retried") or entry.previous == "unreachable":
            owners[entry.job] = entry
            allowed = 2 if spec.dedup_mode == "keep_last" else 1
            if len(owners) > allowed:
                yield _crowded(spec, entry, owners, "lives")
        elif entry.job in owners:
            owners[entry.job] = entry
            active = [job for job, last in owners.items() if last.state == "active"]
            if entry.event == "started" and len(active) > 1:
                yield _crowded(spec, entry, owners, "runs")


def _crowded(spec: Spec, entry: Entry, owners: dict[str, Entry], what: str) -> Violation:
    others = [last for job, last in owners.items() if job != entry.job]
    names = ", ".join(f"{last.job} ({last.state})" for last in others)
    message = f"{what} though {names} holds the dedup key {spec.dedup!r} ({spec.dedup_mode})"
    return Violation(message, entry.job, (*(last.seq for last in others), entry.seq))


def throttles_are_kept(history: History) -> Iterator[Violation]:
    """Two jobs with one throttle key are at least its window apart.

    The store reads the clock somewhere between what the producer wrote down before and after; the
    two are too close only if the clock cannot have shown the end of the window in between.
    """
    before = {spec.id: note for note in history.of(Intended) for spec in note.jobs}
    after = {answer.job: note for note in history.of(Answered) for answer in note.answers}
    newest: dict[str, Entry] = {}
    for entry in history.entries:
        spec = history.specs.get(entry.job)
        if spec is None or spec.dedup is None or spec.dedup_mode != "throttle":
            continue
        last = newest.get(spec.dedup)
        if entry.reason == FREED and last is not None and last.job == entry.job:
            del newest[spec.dedup]
        if entry.event != "created":
            continue
        newest[spec.dedup] = entry
        if last is None or not (last.job in before and entry.job in after):
            continue
        handed_in, answered = before[last.job], after[entry.job]
        end = after[last.job].mono if last.job in after else answered.mono
        opened = history.clock.lowest(handed_in.mono, end) + spec.window
        if history.clock.highest(handed_in.mono, answered.mono) < opened:
            message = f"was admitted within the window of {last.job} (throttle {spec.dedup!r})"
            yield Violation(message, entry.job, (last.seq, entry.seq))
