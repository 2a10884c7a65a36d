"""Engines that break their promises: the lab must find them out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from headrace.core.change import Answer, Applied, Change, written
from headrace.core.claims import ClaimRequest
from headrace.core.states import EventType
from headrace.engine.protocol import Engine

ENDS = (EventType.COMPLETED, EventType.RETRY, EventType.FAILED)


class _Broken:
    """Everything as the engine does it, but for what a subclass breaks."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def twin(self) -> Any:
        return type(self)(self._engine.twin())


class _Lossy(_Broken):
    """Says that every fifth outcome is stored, and loses it."""

    outcomes = 0

    async def apply(self, changes: Sequence[Change]) -> Any:
        return [await self._one(change) for change in changes]

    async def claim(self, request: ClaimRequest, changes: Sequence[Change] = ()) -> Any:
        answers = await self.apply(changes)
        claimed = await self._engine.claim(request)
        return msgspec.structs.replace(claimed, answers=tuple(answers))

    async def _one(self, change: Change) -> Answer:
        case = change.cases[0]
        if case.guard.token is not None and case.write.event in ENDS:
            type(self).outcomes += 1
            if type(self).outcomes % 5 == 0:
                lost = written(change.job, case.write, change.job.version + 1)
                assert lost is not None
                return Applied(lost)
        return (await self._engine.apply([change]))[0]


class _Hasty(_Broken):
    """Hands jobs out three seconds before they are due."""

    async def claim(self, request: ClaimRequest, changes: Sequence[Change] = ()) -> Any:
        hasty = msgspec.structs.replace(request, now=request.now + 3000)
        return await self._engine.claim(hasty, changes)


def lossy(engine: Engine) -> Any:
    return _Lossy(engine)


def hasty(engine: Engine) -> Any:
    return _Hasty(engine)
