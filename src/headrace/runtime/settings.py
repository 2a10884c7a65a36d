"""The queue settings that a worker has seen; it follows changes as they are made."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from headrace.core.errors import EngineUnavailable
from headrace.core.queue import DEFAULTS, QueueSettings, decode
from headrace.engine.protocol import (
    DOCUMENTS_TOPIC,
    QUEUE_KIND,
    Engine,
    queue_document,
)
from headrace.runtime.clock import Clock

log = logging.getLogger("headrace.worker")

FALLBACK = 5.0
"""Settings are read again so often even if no bell rang."""


class SettingsBook:
    """What the worker decides with. Claims do not depend on it: the engine reads the settings in
    the same step in which it hands jobs out."""

    def __init__(self, engine: Engine, clock: Clock, service: str) -> None:
        self._engine, self._clock, self._service = engine, clock, service
        self._settings: dict[str, QueueSettings] = {}

    def of(self, queue: str) -> QueueSettings:
        return self._settings.get(queue, DEFAULTS)

    async def refresh(self) -> None:
        prefix = queue_document(self._service, "")
        documents = await self._engine.scan(QUEUE_KIND, self._clock.now())
        self._settings = {
            document.name.removeprefix(prefix): decode(document.body)
            for document in documents
            if document.name.startswith(prefix)
        }

    async def run(self, changed: Callable[[], None]) -> None:
        """Follows changes until cancelled, and says when there was one: a queue that was resumed
        or given more room may have jobs to claim."""
        bell = self._engine.listen(frozenset({DOCUMENTS_TOPIC}))
        try:
            while True:
                await bell.wait(FALLBACK)
                before = self._settings
                try:
                    await self.refresh()
                    if self._settings != before:
                        changed()
                except EngineUnavailable as error:
                    log.debug("queue settings cannot be read now: %s", error)
                except Exception:
                    log.exception("queue settings cannot be read; those read before hold")
                    await asyncio.sleep(FALLBACK)
        finally:
            bell.close()
