"""The pytest plugin of Headrace, loaded by its entry point. Import nothing heavy here."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from headrace.app.app import App
    from headrace.engine.memory import MemoryEngine
    from headrace.testing.clock import ManualClock

pytest.register_assert_rewrite("headrace.testing.conformance")


@pytest.fixture
def headrace_clock() -> ManualClock:
    """A clock that stands still until the test moves it."""
    from headrace.testing.clock import ManualClock

    return ManualClock()


@pytest.fixture
def headrace_engine() -> MemoryEngine:
    """A fresh engine in memory."""
    from headrace.engine.memory import MemoryEngine

    return MemoryEngine()


@pytest.fixture
def headrace_app(headrace_engine: MemoryEngine, headrace_clock: ManualClock) -> App:
    """A fresh app on `headrace_engine`, by `headrace_clock`."""
    from headrace.app.app import App

    return App(headrace_engine, clock=headrace_clock)


@pytest.fixture
def use_headrace(
    headrace_engine: MemoryEngine, headrace_clock: ManualClock
) -> Generator[Callable[[App], App]]:
    """`use_headrace(app)` puts an app of your own on `headrace_engine` and `headrace_clock` until
    the test is over."""
    with ExitStack() as stack:
        yield lambda app: stack.enter_context(app.using(headrace_engine, headrace_clock))
