"""Bulk actions: one decision for all jobs that a filter means, in batches, with exact counts.

They go from the newest job to the oldest, so jobs that are added meanwhile are left alone, and an
interrupted one is simply started again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING

from msgspec import Struct

from headrace.core.change import Applied, Change
from headrace.core.model import Filter, Job
from headrace.engine.protocol import Engine

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
    found = 0
    async for jobs in pages(await app.engine(), wanted):
        found += len(jobs)
    return found


async def pages(engine: Engine, wanted: Filter) -> AsyncIterator[tuple[Job, ...]]:
    """All jobs that the filter means, newest first, by the page."""
    cursor = None
    while True:
        page = await engine.find(wanted, cursor, PAGE)
        yield page.jobs
        if page.cursor is None:
            return
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
    async for jobs in pages(engine, wanted):
        now = app.clock.now()
        answers = await engine.apply([decide(job, now) for job in jobs]) if jobs else []
        done = sum(isinstance(answer, Applied) for answer in answers)
        changed, refused = changed + done, refused + len(answers) - done
        if progress is not None and answers:
            progress(len(answers))
    return Tally(changed, refused)
