"""What becomes of a job: legal transitions, counted tries, and an end for every one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from headrace.testing.lab.history import Entry, History
from headrace.testing.lab.notes import Answered, Done, Intended
from headrace.testing.lab.rules import FINAL, FIRST, after
from headrace.testing.lab.violation import Violation


def journal_is_in_order(history: History) -> Iterator[Violation]:
    """Sequences only grow, and none is used twice."""
    last = 0
    for entry in history.entries:
        if entry.seq <= last:
            yield Violation(f"entry {entry.seq} comes after {last}", entry.job, (last, entry.seq))
        last = max(last, entry.seq)


def transitions_are_legal(history: History) -> Iterator[Violation]:
    """Every entry goes on from the state that the entry before it left, as the table allows."""
    for job, entries in history.jobs.items():
        state: str | None = None
        for entry in entries:
            if (wrong := _wrong_step(state, entry)) is not None:
                yield Violation(wrong, job, (entry.seq,))
            state = entry.state


def _wrong_step(state: str | None, entry: Entry) -> str | None:
    if entry.event == "created":
        if state is not None and state not in FINAL:
            return f"was created while it was {state}"
        if entry.state not in FIRST or entry.previous is not None:
            return f"was created {entry.state}, out of {entry.previous}"
        return None
    if state is None:
        return f"{entry.event} is its first entry; none says that it was created"
    if entry.previous != state:
        return f"{entry.event} goes on from {entry.previous}, but the job was {state}"
    allowed = after(entry.event, state)
    if allowed is None:
        return f"{entry.event} is not allowed in {state}"
    if allowed != entry.state:
        return f"{entry.event} in {state} leads to {allowed}, not to {entry.state}"
    return None


def jobs_end_once(history: History) -> Iterator[Violation]:
    """Of all that try to end a job, one does; only an explicit retry gives it another end."""
    for job, entries in history.jobs.items():
        end: Entry | None = None
        for entry in entries:
            if entry.event in ("created", "retried") or entry.state not in FINAL:
                end = None
            elif entry.event in FINAL and entry.event != "dismissed":
                if end is not None:
                    message = f"ended {end.state} and then {entry.state}"
                    yield Violation(message, job, (end.seq, entry.seq))
                end = entry


def tries_are_counted(history: History) -> Iterator[Violation]:
    """A try is counted as it is delivered, given back where it does not count, and a job is given
    up when, and only when, it has none left."""
    for job, entries in history.jobs.items():
        tries = 0
        for entry in entries:
            expected = _tries_after(tries, entry)
            if entry.tries != expected:
                message = f"has {entry.tries} tries after {entry.event}; it should have {expected}"
                yield Violation(message, job, (entry.seq,))
            if (wrong := _wrong_end(entry)) is not None:
                yield Violation(wrong, job, (entry.seq,))
            tries = entry.tries


def _wrong_end(entry: Entry) -> str | None:
    match entry.event:
        case "dead" if entry.tries < entry.max_tries:
            return f"is dead after {entry.tries} of {entry.max_tries} tries"
        case "started" if entry.tries > entry.max_tries:
            return f"starts try {entry.tries} of {entry.max_tries}"
        case "retry" if entry.tries >= entry.max_tries:
            return f"is to be tried again after {entry.tries} of {entry.max_tries} tries"
        case _:
            return None


def _tries_after(tries: int, entry: Entry) -> int:
    match entry.event:
        case "created" | "retried" | "moved":
            return 0
        case "started":
            return tries + 1
        case "snoozed" | "returned":
            return tries - 1
        case "retry" if entry.reason == "not counted":
            return tries - 1
        case _:
            return tries


def confirmed_jobs_are_there(history: History) -> Iterator[Violation]:
    """Whatever a producer was told is stored has been created, and did not vanish."""
    for note in history.of(Answered):
        for answer in note.answers:
            if answer.outcome in ("accepted", "replaced") and answer.job not in history.jobs:
                yield Violation(
                    f"was confirmed to process {note.pid}, but the journal has never heard of it",
                    answer.job,
                )


def refused_jobs_are_not_there(history: History) -> Iterator[Violation]:
    """What was refused has left nothing behind."""
    taken: set[str] = set()
    refused: dict[str, str] = {}
    for note in history.of(Answered):
        for answer in note.answers:
            if answer.outcome in ("accepted", "replaced"):
                taken.add(answer.job)
            elif answer.outcome == "unavailable":
                if history.plan.unavailable_is_unwritten:
                    refused[answer.job] = "the store was unavailable"
            elif answer.reason != "id":  # an id that exists is there, by another's hand
                refused[answer.job] = f"{answer.outcome} ({answer.reason})"
    unsure = _unanswered(history)
    for job, why in refused.items():
        if job in history.jobs and job not in taken and job not in unsure:
            created = history.jobs[job][0].seq
            yield Violation(f"was refused ({why}), but was created", job, (created,))


def _unanswered(history: History) -> set[str]:
    """Jobs that were handed in more often than they were answered: the last word is unknown."""
    intended = Counter(spec.id for note in history.of(Intended) for spec in note.jobs)
    answered = Counter(answer.job for note in history.of(Answered) for answer in note.answers)
    return {job for job, times in intended.items() if times > answered[job]}


def confirmed_actions_are_journaled(history: History) -> Iterator[Violation]:
    """What an operator or the holder of a detached job was told is done is in the journal."""
    by_seq = {entry.seq: entry for entry in history.entries}
    for note in history.of(Done):
        if note.version is None:
            continue
        entry = by_seq.get(note.version)
        if entry is None or entry.job != note.job:
            message = f"{note.action} was confirmed as entry {note.version}, which is not there"
            yield Violation(message, note.job, (note.version,))


def store_and_journal_agree(history: History) -> Iterator[Violation]:
    """A job stands as its last entry left it; only what was deleted, or is to be forgotten when it
    ends, is gone."""
    for job, entries in history.jobs.items():
        told = [entry for entry in entries if entry.event != "stale_completion_ignored"]
        last, stored = told[-1] if told else entries[-1], history.stored.get(job)
        if stored is None:
            if not _may_be_gone(history, last):
                yield Violation(f"is gone, though it was {last.state}", job, (last.seq,))
        elif (stored.state, stored.version) != (last.state, last.seq):
            message = (
                f"is stored {stored.state} as of entry {stored.version}; its last entry says"
                f" {last.state}"
            )
            yield Violation(message, job, (last.seq,))
        elif stored.tries != last.tries:
            message = f"is stored with {stored.tries} tries, journaled with {last.tries}"
            yield Violation(message, job, (last.seq,))
    for job in history.stored.keys() - history.jobs.keys():
        yield Violation("is stored, but the journal has never heard of it", job)


def _may_be_gone(history: History, last: Entry) -> bool:
    rules = history.plan.queues.get(last.queue)
    deleted = last.event == "deleted" or (last.event == "cancelled" and last.reason == "deleted")
    return deleted or (rules is not None and last.state in rules.forgets)


def every_job_ends(history: History) -> Iterator[Violation]:
    """Once it is quiet, every job has ended, but for those that wait for a parent which ended
    without success, as they were told to."""
    waits: dict[str, bool] = {}
    for job, entries in history.jobs.items():
        last = entries[-1]
        if last.state not in FINAL and not _waits_rightly(history, job, waits):
            yield Violation(f"has not ended: it is {last.state}", job, (last.seq,))


def _waits_rightly(history: History, job: str, known: dict[str, bool]) -> bool:
    if job not in known:
        known[job] = False
        spec, entries = history.specs.get(job), history.jobs.get(job)
        if spec is not None and entries and entries[-1].state == "blocked":
            known[job] = any(
                (spec.on_parent_failure == "wait" and _ended_badly(history, parent))
                or _waits_rightly(history, parent, known)
                for parent in spec.parents
            )
    return known[job]


def _ended_badly(history: History, job: str) -> bool:
    entries = history.jobs.get(job)
    return bool(entries) and entries[-1].state in FINAL - {"completed"}
