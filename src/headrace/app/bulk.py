"""Bulk actions: one decision for all jobs that a filter means, in batches, with exact counts.

They go from the newest job to the oldest, so jobs that are added meanwhile are left alone, and an
interrupted one is simply started again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec import Struct

from headrace.core.change import Applied, Change
from headrace.core.model import Filter, Job

if TYPE_CHECKING:
    from headrace.app.app import App

PAGE = 500

Progress = Callable[[int], None]
"""Told how many jobs each batch was about."""


class Tally(Struct, frozen=True):
    """What became of the jobs: changed, or no longer in a state that allows it."""

    changed: int
    refused: int


async def count(app: App, wanted: Filter) -> int:
    """How many jobs the filter means."""
    engine = await app.engine()
    found, cursor = 0, None
    while True:
        page = await engine.find(wanted, cursor, PAGE)
        found += len(page.jobs)
        if page.cursor is None:
            return found
        cursor = page.cursor


async def act(
    app: App,
    wanted: Filter,
    decide: Callable[[Job, int], Change],
    progress: Progress | None = None,
) -> Tally:
    """Changes all jobs that the filter means."""
    engine = await app.engine()
    changed = refused = 0
    cursor = None
    while True:
        page = await engine.find(wanted, cursor, PAGE)
        now = app.clock.now()
        answers = await engine.apply([decide(job, now) for job in page.jobs]) if page.jobs else []
        done = sum(isinstance(answer, Applied) for answer in answers)
        changed, refused = changed + done, refused + len(answers) - done
        if progress is not None and answers:
            progress(len(answers))
        if page.cursor is None:
            return Tally(changed, refused)
        cursor = page.cursor
