"""Rescue: jobs whose owner stopped renewing its lease run elsewhere."""

from __future__ import annotations

import random
from collections.abc import Callable

from headrace.core.actions import lapses
from headrace.core.change import Applied, Change
from headrace.core.model import Filter, Job
from headrace.core.outcome import Lost, settle, supersedable
from headrace.core.queue import QueueSettings
from headrace.core.states import State
from headrace.engine.protocol import Engine

_ACTIVE = frozenset({State.ACTIVE})

SettingsOf = Callable[[Job], QueueSettings]


async def rescue(
    engine: Engine, service: str, now: int, settings_of: SettingsOf, limit: int = 500
) -> int:
    """Settles jobs of the service whose lease has run out, by the same code as a worker; returns
    how many.

    The guard names the lapsed lease: an owner that renewed meanwhile keeps its job, and of two
    rescuers one wins.
    """
    wanted = Filter(service=service, states=_ACTIVE, lease_until=now)
    cursor, rescued = None, 0
    while True:
        page = await engine.find(wanted, cursor, limit)
        changes: list[Change] = []
        for job in page.jobs:
            if lapses(job):
                lost = Lost(contended=await _contended(engine, job))
                changes.append(settle(job, lost, now, random.random(), settings_of(job)))
        answers = await engine.apply(changes) if changes else []
        rescued += sum(isinstance(answer, Applied) for answer in answers)
        if page.cursor is None:
            return rescued
        cursor = page.cursor


async def _contended(engine: Engine, job: Job) -> bool:
    if job.key is None or not supersedable(job):
        return False
    status = await engine.key(job.service, job.key.hash)
    return status is not None and status.queued > 0
