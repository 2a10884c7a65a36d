"""Apps for tests, on every engine that needs no server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from headrace import App
from headrace.testing import ManualClock


@pytest.fixture(params=["memory", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty store."""
    if request.param == "memory":
        return "memory:"
    return f"sqlite:{tmp_path / 'jobs.db'}?synchronous=normal"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def app(url: str) -> AsyncIterator[App]:
    """An app by the system's clock."""
    async with App(url) as app:
        yield app


@pytest.fixture
async def timed(url: str, clock: ManualClock) -> AsyncIterator[App]:
    """An app by a clock that the test moves."""
    async with App(url, clock=clock) as app:
        yield app
