"""The rounds: every worker makes them, none leads. Two that meet do no harm."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable

from headrace.core.errors import EngineUnavailable
from headrace.core.model import Job
from headrace.core.queue import QueueSettings
from headrace.engine.protocol import Engine
from headrace.upkeep.expiry import expire_overdue
from headrace.upkeep.rescue import rescue
from headrace.upkeep.retention import prune

log = logging.getLogger("headrace.upkeep")

RESCUE_EVERY = 1.0
PRUNE_EVERY = 30.0


class Rounds:
    """Rescue and expiry every second, retention every half minute."""

    def __init__(
        self,
        engine: Engine,
        service: str,
        now: Callable[[], int],
        settings_of: Callable[[Job], QueueSettings],
    ) -> None:
        self._engine, self._service = engine, service
        self._now, self._settings_of = now, settings_of

    async def once(self) -> int:
        """Rescue and expiry until nothing is overdue; returns how many jobs were touched."""
        touched = 0
        while True:
            now = self._now()
            done = await rescue(self._engine, self._service, now, self._settings_of)
            done += await expire_overdue(self._engine, now)
            touched += done
            if not done:
                return touched

    async def sweep(self) -> int:
        """Retention until nothing is left to delete."""
        gone = 0
        while deleted := await prune(self._engine, self._now()):
            gone += deleted
            await asyncio.sleep(0)
        return gone

    async def run(self) -> None:
        """Makes the rounds until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(_every(RESCUE_EVERY, self.once))
            group.create_task(_every(PRUNE_EVERY, self.sweep))


async def _every(seconds: float, chore: Callable[[], Awaitable[int]]) -> None:
    while True:
        # Workers that were started together drift apart.
        await asyncio.sleep(seconds * random.uniform(0.8, 1.2))
        try:
            await chore()
        except EngineUnavailable as error:
            log.debug("upkeep must wait: %s", error)
        except Exception:
            log.exception("upkeep failed; it goes on with the next round")
