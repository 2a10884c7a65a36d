"""Trying again while the engine is unavailable: the work is kept, and said so once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

from headrace.core.errors import EngineUnavailable

log = logging.getLogger("headrace.worker")
_T = TypeVar("_T")

FIRST, CAP = 0.05, 5.0


async def persist(
    what: str, attempt: Callable[[], Awaitable[_T]], stop: asyncio.Event | None = None
) -> _T:
    """Repeats `attempt` until the engine takes it. Only a cancelled caller gives up, or one whose
    `stop` is set; an attempt that is under way is never broken off."""
    delay = FIRST
    while True:
        try:
            answer = await attempt()
        except EngineUnavailable as error:
            if delay == FIRST:
                log.warning("%s: %s; trying again until it works", what, error)
            await _pause(delay, stop)
            if stop is not None and stop.is_set():
                raise
            delay = min(delay * 2, CAP)
            continue
        if delay != FIRST:
            log.warning("%s: works again", what)
        return answer


async def _pause(seconds: float, stop: asyncio.Event | None) -> None:
    if stop is None:
        await asyncio.sleep(seconds)
        return
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await stop.wait()
