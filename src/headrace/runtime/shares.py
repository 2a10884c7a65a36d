"""Shares: how a worker's free slots are laid over its queues, strictly or by weight."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from headrace.core.claims import Share
from headrace.core.errors import InvalidValue
from headrace.core.names import check_name
from headrace.core.values import flag

QueueSpec = str | Sequence[str] | Mapping[str, int]


class Shares:
    """Strict: the first queue first. Weighted: by stride scheduling, so that over time each queue
    starts in proportion to its weight, and none with a weight above 0 starves."""

    def __init__(self, queues: QueueSpec, strict: bool, weight_of: Callable[[str], int]) -> None:
        if not isinstance(queues, Iterable) or isinstance(queues, bytes):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidValue(
                "queues", f"{queues!r} is not a queue, a list of queues or their weights"
            )
        names = [queues] if isinstance(queues, str) else list(queues)
        for name in names:
            check_name("queues", name)
        if not names or len(set(names)) != len(names):
            raise InvalidValue("queues", f"{names!r}: name at least one queue, and none twice")
        self._weights = dict(queues) if isinstance(queues, Mapping) else {}
        for name, weight in self._weights.items():
            if isinstance(weight, bool) or not isinstance(weight, int) or weight < 0:  # pyright: ignore[reportUnnecessaryIsInstance]
                raise InvalidValue(
                    "queues", f"the weight of {name!r} is {weight!r}, not a whole number from 0 up"
                )
        self.names, self.strict = names, flag("strict", strict)
        self._weight_of = weight_of
        self._passed: dict[str, float] = dict.fromkeys(names, 0.0)

    def weight(self, queue: str) -> int:
        return self._weights[queue] if queue in self._weights else self._weight_of(queue)

    def plan(self, free: int) -> tuple[Share, ...]:
        """Where to look for `free` jobs: first by right, then whoever has some."""
        if self.strict or len(self.names) == 1:
            return tuple(Share(name, free) for name in self.names)
        passed = {name: self._passed[name] for name in self.names if self.weight(name) > 0}
        picks: Counter[str] = Counter()
        for _ in range(free if passed else 0):
            name = min(passed, key=passed.__getitem__)
            passed[name] += 1 / self.weight(name)
            picks[name] += 1
        turn = sorted(passed, key=lambda name: self._passed[name])
        by_right = [Share(name, picks[name]) for name in turn if picks[name]]
        return (*by_right, *(Share(name, free) for name in turn))

    def charge(self, queues: Sequence[str]) -> None:
        """Counts what was started, of each queue as often as it is named. A queue that had nothing
        does not save up its turns."""
        if self.strict or len(self.names) == 1:
            return
        started = Counter(queues)
        for name, jobs in started.items():
            weight = self.weight(name)
            if name in self._passed and weight > 0:
                self._passed[name] += jobs / weight
        if started:
            floor = max(self._passed.values()) - 1.0
            for name in self._passed:
                if name not in started:
                    self._passed[name] = max(self._passed[name], floor)
