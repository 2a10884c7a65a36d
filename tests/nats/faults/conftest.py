"""A crew for each test, ended with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.nats.faults.crew import Crew

Hire = Callable[[str], Crew]


@pytest.fixture
def hire(tmp_path: Path) -> Iterator[Hire]:
    """`hire(url)` is a crew that works there."""
    crews: list[Crew] = []

    def hire(url: str) -> Crew:
        folder = tmp_path / f"crew{len(crews)}"
        folder.mkdir()
        crews.append(Crew(url, folder))
        return crews[-1]

    yield hire
    for crew in crews:
        crew.close()
