"""Expiry: waiting jobs whose deadline or time to live has passed end `expired`."""

from __future__ import annotations

from headrace.core.actions import expire
from headrace.core.change import Applied
from headrace.core.model import Filter
from headrace.core.states import WAITING
from headrace.engine.protocol import Engine


async def expire_overdue(engine: Engine, now: int, limit: int = 500) -> int:
    """Ends overdue jobs; returns how many."""
    wanted, cursor, expired = Filter(states=WAITING, expires_until=now), None, 0
    while True:
        page = await engine.find(wanted, cursor, limit)
        answers = await engine.apply([expire(job, now) for job in page.jobs]) if page.jobs else []
        expired += sum(isinstance(answer, Applied) for answer in answers)
        if page.cursor is None:
            return expired
        cursor = page.cursor
