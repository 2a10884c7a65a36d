"""Retention: deletes ended jobs and old journal entries by the cut-offs of core."""

from __future__ import annotations

from headrace.core.queue import DEFAULTS, QueueSettings, decode
from headrace.core.retention import JOURNAL_AGE, cutoffs
from headrace.engine.protocol import QUEUE_KIND, Engine, Prune


async def prune(engine: Engine, now: int, limit: int = 500) -> int:
    """Deletes one bounded batch; returns how many rows went, 0 when nothing is left to delete."""
    settings: dict[tuple[str, str], QueueSettings] = {
        (counted.service, counted.queue): DEFAULTS for counted in await engine.count()
    }
    for document in await engine.scan(QUEUE_KIND, now):
        service, _, queue = document.name.partition("/")
        settings[service, queue] = decode(document.body)
    order = Prune(
        now=now,
        cutoffs=tuple(cutoffs(settings, now)),
        journal_before=now - JOURNAL_AGE,
        limit=limit,
    )
    return await engine.prune(order)
