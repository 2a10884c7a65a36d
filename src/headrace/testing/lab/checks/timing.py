"""When a job may start: not before its time or its parents, not after its deadline."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from headrace.testing.lab.history import Entry, History
from headrace.testing.lab.notes import Spec
from headrace.testing.lab.rules import FINAL
from headrace.testing.lab.violation import Violation

_CLAIMABLE = ("pending", "retry")


def nothing_starts_early(history: History) -> Iterator[Violation]:
    """No job starts before it is due, be it for its delay, a retry's or a snooze's.

    A worker reads the clock and may then wait for the store, or the clock may be moved back: what
    counts is whether the clock had shown the time by when the job was started. An entry that is
    there already says so, and the moment at which the handler began must bear it out.
    """
    shown, due = 0, dict[str, int]()
    for entry in history.entries:
        shown = max(shown, entry.at)
        if entry.event == "started":
            moment = due.get(entry.job, 0)
            if not _was_due(history, entry, moment, shown):
                message = f"started {moment - entry.at} ms before it was due"
                yield Violation(message, entry.job, (entry.seq,))
        elif entry.state in _CLAIMABLE and entry.event != "stale_completion_ignored":
            due[entry.job] = _due_after(history, entry)


def _due_after(history: History, entry: Entry) -> int:
    if entry.event == "created" and (spec := history.specs.get(entry.job)) is not None:
        return spec.run_at
    return entry.at if entry.run_at is None else entry.run_at


def _was_due(history: History, started: Entry, due: int, shown: int) -> bool:
    runs = history.starts.get((started.job, started.seq))
    if runs and history.clock.highest(0, runs[0].mono) < due:
        return False
    if shown >= due:
        return True
    if history.clock.span == 0:
        return False
    return bool(runs) or started.at + history.clock.span >= due


def nothing_starts_late(history: History) -> Iterator[Violation]:
    """No job starts when its deadline has come, nor, for the first time, after its time to live."""
    for job, entries in history.jobs.items():
        spec = history.specs.get(job)
        deadline = spec.deadline if spec else None
        fresh_until = spec.created_at + spec.ttl if spec and spec.ttl is not None else None
        for entry in entries:
            if entry.event == "retried":  # drops a deadline that has passed, and the time to live
                deadline = fresh_until = None
            elif entry.event == "started":
                limits = (entry.deadline, deadline, fresh_until)
                late = min((limit for limit in limits if limit is not None), default=None)
                if late is not None and entry.at >= late:
                    message = f"started {entry.at - late} ms after it could no longer start"
                    yield Violation(message, job, (entry.seq,))
                fresh_until = None


class _Child:
    """One life of a job that has parents."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.settled: set[str] = set()
        """Parents that it need not wait for any more."""

    def hears(self, parent: str, state: str) -> None:
        if state == "completed" or self.spec.on_parent_failure == "run":
            self.settled.add(parent)


def parents_come_first(history: History) -> Iterator[Violation]:
    """A job starts only after all of its parents completed (ended, where it is to run anyway), or
    had ended when someone brought it back; it is unreachable only where a parent failed."""
    states: dict[str, str] = {}
    children: dict[str, _Child] = {}
    of_parent: defaultdict[str, set[str]] = defaultdict(set)
    failed: set[str] = set()
    for entry in history.entries:
        job, spec = entry.job, history.specs.get(entry.job)
        states[job] = entry.state
        if entry.event == "created" and spec is not None and spec.parents:
            children[job] = _Child(spec)
            for parent in spec.parents:
                of_parent[parent].add(job)
                if (state := states.get(parent)) in FINAL:
                    children[job].hears(parent, state)
        if entry.state in FINAL:
            if entry.state != "completed" or entry.event == "deleted":
                failed.add(job)
            for child in of_parent[job]:
                children[child].hears(job, entry.state)
        child = children.get(job)
        if child is None:
            continue
        if entry.event == "retried":
            child.settled |= {p for p in child.spec.parents if states.get(p, "gone") in FINAL}
        elif entry.event == "started":
            missing = [parent for parent in child.spec.parents if parent not in child.settled]
            if missing:
                message = f"started before its parents {', '.join(missing)} completed"
                yield Violation(message, job, (entry.seq,))
        elif entry.event == "unreachable" and not failed.intersection(child.spec.parents):
            yield Violation("is unreachable, though no parent failed", job, (entry.seq,))
