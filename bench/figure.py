"""A figure: what we reach, the limit it is held against, and their ratio."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import psutil


@dataclass(frozen=True)
class Figure:
    """`more` figures (rates) are ours / limit; the others (times, sizes) limit / ours.

    The limit of a rate is the raw store in the same run, or a bound that is promised. The limit of
    a time or a size is such a bound, or the same cost measured at a small backlog.
    """

    name: str
    ours: float
    limit: float
    unit: str
    more: bool
    wanted: float | None
    """The least ratio; None where the figure is only shown."""
    note: str = ""

    @property
    def ratio(self) -> float:
        return self.ours / self.limit if self.more else self.limit / self.ours

    @property
    def met(self) -> bool:
        return self.wanted is None or self.ratio >= self.wanted

    def line(self) -> str:
        return f"{self.name}\t{self.ours:.6g}\t{self.limit:.6g}\t{self.ratio:.3f}"


def rate(
    name: str, ours: Sequence[float], raw: Sequence[float], wanted: float | None, note: str = ""
) -> Figure:
    """The round in the middle, per second. Each held ours against the raw loop right after it: from
    one round to the next a shared machine may be twice as fast, within one it is much the same."""
    rounds = sorted(zip(ours, raw, strict=True), key=lambda pair: pair[0] / pair[1])
    return Figure(name, *rounds[len(rounds) // 2], "/s", True, wanted, note)


def bound(
    name: str, ours: float, limit: float, unit: str, note: str = "", *, wanted: float | None = 1.0
) -> Figure:
    """Something that must stay below a bound."""
    return Figure(name, ours, limit, unit, False, wanted, note)


ALLOWED = 1.5
"""So many times may a cost grow from a small backlog to a large one."""


def grown(
    name: str, small: tuple[int, Sequence[float]], large: tuple[int, Sequence[float]], unit: str
) -> Figure:
    """A cost at a large backlog, held against what it was at a small one; of each the number of
    jobs that waited, and what was measured."""
    return bound(
        f"{name}_at_{large[0]:_}",
        statistics.median(large[1]),
        statistics.median(small[1]) * ALLOWED,
        unit,
        f"against {ALLOWED} times the cost at {small[0]:,}",
    )


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


class Stolen:
    """How much of the processors' time the host gave to other machines since this was made: what
    takes no time of ours, and yet makes everything slow."""

    def __init__(self) -> None:
        self._before = psutil.cpu_times()

    def note(self) -> str:
        """Empty where that is nothing, or the system cannot tell."""
        now = psutil.cpu_times()
        steal: float = getattr(now, "steal", 0.0) - getattr(self._before, "steal", 0.0)
        share = steal / max(sum(now) - sum(self._before), 0.001)
        return f"; {share:.0%} of the processors' time went to other machines" if steal else ""


Say = Callable[[str], None]
