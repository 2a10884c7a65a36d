"""The completer: gathers changes and commits them in batches.

There is no fixed delay: a batch is what piled up during the last commit.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from headrace.core.change import Answer, Change
from headrace.core.errors import EngineUnavailable
from headrace.engine.protocol import Engine
from headrace.runtime.backoff import persist

log = logging.getLogger("headrace.worker")

_T = TypeVar("_T")

BATCH = 500


class Completer(Generic[_T]):
    """Commits changes in the order in which they were added, and then tells `done` of those that
    were added for something; with None where the change could not be made sense of."""

    def __init__(
        self, engine: Engine, done: Callable[[Sequence[tuple[_T, Answer | None]]], None]
    ) -> None:
        self._engine, self._done = engine, done
        self._waiting: list[tuple[Change, _T | None]] = []
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    def add(self, change: Change, subject: _T | None = None) -> None:
        """Must be called in the worker's event loop."""
        self._waiting.append((change, subject))
        if len(self._waiting) == 1:
            self._wake.set()
            self._idle.clear()

    async def run(self) -> None:
        """Commits until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._waiting:
                batch, self._waiting = self._waiting[:BATCH], self._waiting[BATCH:]
                await self._commit(batch)
            self._idle.set()

    async def drained(self) -> None:
        """Returns when everything that was added is committed."""
        await self._idle.wait()

    async def _commit(self, batch: list[tuple[Change, _T | None]]) -> None:
        changes = [change for change, _ in batch]
        answers: Sequence[Answer | None]
        try:
            answers = await persist("writing outcomes", lambda: self._engine.apply(changes))
        except Exception:
            answers = [await self._alone(change) for change in changes]
        self._done(
            [
                (subject, answer)
                for (_, subject), answer in zip(batch, answers, strict=True)
                if subject is not None
            ]
        )

    async def _alone(self, change: Change) -> Answer | None:
        """A batch failed for another reason than the engine being away: one change must not take
        the others with it. The job it belongs to comes back when its lease runs out."""
        try:
            answers = await persist("writing an outcome", lambda: self._engine.apply([change]))
        except EngineUnavailable:
            raise
        except Exception:
            log.exception("the outcome of job %s cannot be written", change.job.id)
            return None
        return answers[0]
