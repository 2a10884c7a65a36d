"""Retry policies, as they space out the tries (FEATURES 3.4)."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from headrace import App, exponential, linear, steps
from headrace.testing import ManualClock, run_until_idle


class Custom(Exception):
    pass


class TestPolicies:
    @pytest.mark.parametrize(
        ("policy", "delays"),
        [
            (None, [0, 0, 0]),
            (7, [7, 7, 7]),
            (0.5, [0.5, 0.5, 0.5]),
            ([5, 30], [5, 30, 30]),
            ("steps", [5, 30, 120]),
            ("at_once", [0, 0, 0]),
            (steps(1, 2), [1, 2, 2]),
            (exponential(first=1, base=3, cap=5), [1, 3, 5]),
            (linear(1, 3, steps=2), [1, 2, 2]),
            (lambda number, error: number * len(str(error)), [3, 6, 9]),
        ],
        ids=lambda value: "callable" if callable(value) else str(value),
    )
    async def test_delays_follow_the_policy(
        self, timed: App, clock: ManualClock, policy: Any, delays: list[float]
    ) -> None:
        times: list[int] = []

        @timed.task(retry=policy, max_tries=4)
        async def fails() -> None:
            times.append(clock.now())
            raise Custom("abc")

        await fails.enqueue()
        await run_until_idle(timed, drain=True)
        assert [(b - a) / 1000 for a, b in pairwise(times)] == delays

    @pytest.mark.parametrize(
        ("name", "least", "most"),
        [("1m", 0.5, 1.5), ("10m", 54, 114), ("1h", 540, 1140), ("exponential", 0.5, 1.5)],
    )
    async def test_named_policies_jitter_within_bounds(
        self, timed: App, clock: ManualClock, name: str, least: float, most: float
    ) -> None:
        @timed.task(retry=name)
        async def fails() -> None:
            raise Custom

        refs = [await fails.enqueue() for _ in range(20)]
        await run_until_idle(timed)
        delays = [((await ref.get()).run_at - clock.now()) / 1000 for ref in refs]
        assert all(least <= delay <= most for delay in delays), delays
        assert len(set(delays)) > 1
