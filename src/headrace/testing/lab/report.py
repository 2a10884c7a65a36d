"""What runs came to, for people: a tally, and a table of them."""

from __future__ import annotations

from bisect import bisect
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from headrace.testing.lab.history import History
from headrace.testing.lab.notes import Fault, Left, Mischief, Settled, Start
from headrace.testing.lab.violation import Violation


@dataclass(slots=True)
class Tally:
    """What all runs of one engine came to."""

    engine: str
    runs: int = 0
    jobs: int = 0
    starts: int = 0
    faults: Counter[str] = field(default_factory=Counter[str])
    violations: Counter[str] = field(default_factory=Counter[str])
    recovery: float = 0.0
    """The longest time from the end of a fault to the next completed job, in seconds."""
    rescue: float = 0.0
    """The longest time from the end of a worker until its jobs were taken over."""

    def add(self, history: History, found: Sequence[Violation]) -> None:
        self.runs += 1
        self.jobs += len(history.jobs)
        self.starts += sum(entry.event == "started" for entry in history.entries)
        self.faults.update(note.kind for note in history.of(Fault, Mischief))
        self.violations.update(violation.check for violation in found)
        self.recovery = max(self.recovery, slowest_recovery(history))
        self.rescue = max(self.rescue, slowest_rescue(history))


def slowest_recovery(history: History) -> float:
    """The longest time from the end of a fault to the next confirmed completion, in seconds."""
    done = [n.mono for n in history.of(Settled) if n.applied and n.event == "completed"]
    slowest, place = 0, 0
    for fault in sorted(history.of(Fault), key=lambda fault: fault.until):
        while place < len(done) and done[place] < fault.until:
            place += 1
        if place < len(done):
            slowest = max(slowest, done[place] - fault.until)
    return slowest / 1e9


def slowest_rescue(history: History) -> float:
    """The longest time from the end of a process until a job that it was running was taken over,
    in seconds: by the first handler that began for a claim after the take-over."""
    ended = {note.victim: note.mono for note in history.of(Left) if note.code != 0}
    runs = sorted(history.of(Start), key=_token)
    tokens = [run.token for run in runs]
    slowest = 0
    for stint in history.stints.values():
        if stint.end is None or not (stint.end.error or "").startswith("LeaseLost"):
            continue
        mine = history.starts.get((stint.job, stint.token))
        place = bisect(tokens, stint.end.seq)
        if mine and mine[0].pid in ended and place < len(runs):
            slowest = max(slowest, runs[place].mono - ended[mine[0].pid])
    return slowest / 1e9


def _token(run: Start) -> int:
    return run.token


_COLUMNS = ("engine", "runs", "jobs", "starts", "faults", "violations", "recovery", "rescue")


def table(tallies: Sequence[Tally]) -> str:
    """One line per engine, and the kinds of fault below."""
    rows = [_COLUMNS]
    rows += [
        (
            tally.engine,
            f"{tally.runs:,}",
            f"{tally.jobs:,}",
            f"{tally.starts:,}",
            f"{tally.faults.total():,}",
            f"{tally.violations.total():,}",
            f"{tally.recovery:.1f} s",
            f"{tally.rescue:.1f} s",
        )
        for tally in tallies
    ]
    widths = [max(len(row[place]) for row in rows) for place in range(len(_COLUMNS))]
    lines = [
        "  ".join(text.rjust(width) for text, width in zip(row, widths, strict=True))
        for row in rows
    ]
    for tally in tallies:
        lines.append("")
        lines.append(f"{tally.engine}: " + _counted(tally.faults))
        if tally.violations:
            lines.append(f"{tally.engine}: VIOLATED " + _counted(tally.violations))
    return "\n".join(lines)


def _counted(counter: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counter.most_common())
