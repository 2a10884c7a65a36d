"""What the rounds of a race come to, as a table for people and as a page."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Results = Mapping[str, float]

BEGIN = "<!-- written by `make race`: begin -->"
END = "<!-- written by `make race`: end -->"

EVEN = 1.1
"""Up to here two figures are called even: rounds differ by as much."""


@dataclass(frozen=True)
class Row:
    """A figure: how it is shown, and which way is better."""

    figure: str
    unit: str
    more: bool
    digits: int

    def show(self, value: float) -> str:
        return f"{value:,.{self.digits}f} {self.unit}".strip()

    def verdict(self, ours: float, theirs: float, peer: str) -> str:
        """Who is ahead, and by how much."""
        factor = ours / theirs if self.more else theirs / ours
        if 1 / EVEN < factor < EVEN:
            return "even"
        ahead, times = ("Headrace", factor) if factor > 1 else (peer, 1 / factor)
        return f"{ahead} {times:.2g}×" if times < 10 else f"{ahead} {times:.0f}×"


def rows(wide: int) -> list[Row]:
    """All figures, in the order of the tables."""
    return [
        Row("enqueue one", "/s", True, 0),
        Row("enqueue many", "/s", True, 0),
        Row("drain, one at a time", "/s", True, 0),
        Row(f"drain, {wide} at a time", "/s", True, 0),
        Row("the same, peer without results", "/s", True, 0),
        Row("pick-up p50", "ms", False, 1),
        Row("pick-up p99", "ms", False, 1),
        Row("round trip p50", "ms", False, 1),
        Row("round trip p99", "ms", False, 1),
        Row("processor, idle", "%", False, 1),
        Row("memory, idle", "MB", False, 0),
        Row("memory, working", "MB", False, 0),
        Row("start to first job", "s", False, 2),
    ]


@dataclass(frozen=True)
class Side:
    """One contestant: what was measured of it, round by round, and how it was run."""

    name: str
    rounds: Sequence[Results]
    settings: str
    versions: Mapping[str, str]

    def median(self, figure: str) -> float:
        return statistics.median(found[figure] for found in self.rounds)

    def spread(self, figure: str) -> tuple[float, float]:
        found = [results[figure] for results in self.rounds]
        return min(found), max(found)


@dataclass(frozen=True)
class Outcome:
    """A race that was run."""

    store: str
    ours: Side
    peer: Side

    def cells(self, wide: int) -> list[tuple[str, str, str, str]]:
        """Figure, ours, theirs, and who is ahead."""
        return [
            (
                row.figure,
                _cell(row, self.ours),
                _cell(row, self.peer),
                row.verdict(
                    self.ours.median(row.figure), self.peer.median(row.figure), self.peer.name
                ),
            )
            for row in rows(wide)
        ]

    def markdown(self, wide: int) -> str:
        lines = [
            f"### On {self.store}: Headrace and {self.peer.name}",
            "",
            f"| | Headrace | {self.peer.name} | ahead |",
            "| --- | ---: | ---: | --- |",
            *(f"| {' | '.join(cells)} |" for cells in self.cells(wide)),
            "",
            *(f"- {side.name}: {side.settings}. {_listed(side)}." for side in self.sides),
        ]
        return "\n".join(lines)

    @property
    def sides(self) -> tuple[Side, Side]:
        return self.ours, self.peer


def _cell(row: Row, side: Side) -> str:
    """The median, and from where to where the rounds went."""
    low, high = side.spread(row.figure)
    span = f"{low:,.{row.digits}f}–{high:,.{row.digits}f}"
    return f"{row.show(side.median(row.figure))} ({span})"


def _listed(side: Side) -> str:
    processes = round(side.median("processes"))
    versions = ", ".join(f"{name} {version}" for name, version in side.versions.items())
    return f"{processes} worker process{'es' if processes > 1 else ''}; {versions}"


def page(outcomes: Sequence[Outcome], facts: Sequence[str], wide: int) -> str:
    """The generated part."""
    parts = ["\n".join(f"- {fact}" for fact in facts)]
    parts += [outcome.markdown(wide) for outcome in outcomes]
    return "\n\n".join(parts)


def put_between(text: str, generated: str) -> str:
    """The page with its generated part replaced."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page has no place for the table: {BEGIN!r} … {END!r}")
    return f"{before}{BEGIN}\n\n{generated}\n\n{END}{after}"
