"""A violation for people: what is wrong, and what happened around it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from headrace.testing.lab.history import Entry, History
from headrace.testing.lab.notes import Done, End, Fault, Settled, Start
from headrace.testing.lab.violation import Violation

AROUND = 12
"""Entries of the job that are shown before and after the one in question."""


def explain(history: History, found: Violation) -> str:
    """The violation with the job's events, the runs of its handlers and the faults nearby."""
    subject = f"job {found.job} " if found.job else ""
    lines = [f"{found.check}: {subject}{found.message}"]
    if found.job is not None:
        spec = history.specs.get(found.job)
        lines.append(f"  meant: {_spec_text(spec)}" if spec else "  nobody wrote down that it is")
        lines += [f"  {line}" for line in _events(history, found)]
        lines += [f"  {line}" for line in _runs(history, found.job)]
    return "\n".join(lines)


def _spec_text(spec: object) -> str:
    text = repr(spec)
    return text if len(text) <= 600 else f"{text[:599]}…"


def _events(history: History, found: Violation) -> Iterator[str]:
    """The entries in question, and those of the job around them."""
    marked = set(found.seqs)
    own = history.jobs.get(found.job or "", [])
    places = [n for n, entry in enumerate(own) if entry.seq in marked] or [len(own) - 1]
    first, last = max(0, places[0] - AROUND), places[-1] + AROUND + 1
    shown = {entry.seq: entry for entry in own[first:last]}
    shown |= {entry.seq: entry for entry in history.entries if entry.seq in marked}
    if len(shown) < len(own):
        yield f"(its entries near {found.seqs or 'the end'}, of {len(own)})"
    for seq in sorted(shown):
        yield f"{'→' if seq in marked else ' '} {_line(shown[seq], found.job)}"


def _line(entry: Entry, job: str | None) -> str:
    parts = [f"{entry.seq:>8}  at {entry.at}  {entry.previous or '·'} → {entry.state}"]
    parts.append(f"by {entry.event}, tries {entry.tries}, in {entry.queue}")
    if entry.job != job:
        parts.append(f"(job {entry.job})")
    details = ("worker", "run_at", "deadline", "reason", "error")
    found = {name: getattr(entry, name) for name in details}
    parts += [f"{name} {value}" for name, value in found.items() if value is not None]
    return ", ".join(parts)


def _runs(history: History, job: str) -> Iterator[str]:
    """What processes wrote down about the job, and the faults while it ran, by time."""
    seen = [note for note in history.of(Start, End, Settled, Done) if note.job == job]
    if not seen:
        return
    first, last = seen[0].mono - 2_000_000_000, seen[-1].mono + 2_000_000_000
    faults = [note for note in history.of(Fault) if note.mono < last and note.until > first]
    origin = history.plan.mono
    notes: Iterable[Start | End | Settled | Done | Fault] = sorted(
        [*seen, *faults], key=lambda note: note.mono
    )
    for note in notes:
        second = (note.mono - origin) / 1e9
        match note:
            case Start():
                text = f"handler of try {note.number} begins, token {note.token}, {note.worker}"
            case End():
                text = f"handler under token {note.token} is done: {note.how}"
            case Settled(applied=True):
                text = f"{note.event} under token {note.token} is stored as entry {note.version}"
            case Settled():
                text = f"the outcome under token {note.token} is refused"
            case Done():
                text = f"{note.action} is confirmed, entry {note.version}"
            case Fault():
                text = f"fault {note.kind} on {note.target} until {(note.until - origin) / 1e9:.3f}"
        yield f"  {second:9.3f} s  process {note.pid}: {text}"
