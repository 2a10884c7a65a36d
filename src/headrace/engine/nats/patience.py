"""JetStream for callers who would rather wait than be told of a hiccup.

A server that restarts, a stream whose leader has just gone, an answer that was lost on its way:
all of them are over in seconds. Here every call is repeated until then. That is safe: reading is,
and everything that is stored here is guarded. A message whose answer was lost is sent again with
the same guard, and is refused if it had been stored: the caller sees a conflict, reads, and finds
its own work.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from headrace.engine.nats.errors import passing
from headrace.engine.nats.wire.connection import Connection
from headrace.engine.nats.wire.errors import Behind, Congested, NoResponders, WireError
from headrace.engine.nats.wire.jetstream import Fresh, JetStream, Pending
from headrace.engine.nats.wire.stored import Stored

T = TypeVar("T")

PATIENCE = 10.0
"""Seconds for which a call is repeated. The leader of a stream is replaced within five."""

TRIES = (2.0, 1.0, 1.0, 2.0, 4.0)
"""Seconds that each try may take: what a dead leader was told, nobody will answer. The next ones
are short to find the new leader soon, the last ones long to bear with a slow one."""

LAG = 0.002
"""Seconds after which a replica that lagged behind is asked again, or another one."""

PAUSES = (0.02, 0.05, 0.1, 0.25)
"""Seconds between a try that failed at once and the next."""


class PatientJetStream(JetStream):
    """Repeats what fails for reasons that pass. `hasty` does not."""

    def __init__(
        self, connection: Connection, on_missing: Callable[[], None] | None = None
    ) -> None:
        """`on_missing` is called when nobody answers for the stream: it may have been deleted."""
        super().__init__(connection)
        self.hasty = JetStream(connection)
        self.repeats = 0
        """How often something was asked for again that may have happened."""
        self.highest = 0
        """The highest sequence that is known to be stored: nothing older is read."""
        self.anchor: bytes | None = None
        """A subject that surely has a message, where the stream has replicas that may lag."""
        self._link, self._on_missing = connection, on_missing

    async def api(self, verb: str, body: object = None, timeout: float = 5.0) -> dict[str, Any]:
        return await self._patiently(lambda limit: self.hasty.api(verb, body, limit))

    async def store_batch(self, messages: Sequence[Pending], timeout: float = 10.0) -> int:
        return await self._patiently(lambda limit: self.hasty.store_batch(messages, limit))

    async def last(
        self,
        stream: str,
        subjects: Sequence[bytes],
        timeout: float = 5.0,
        fresh: Fresh | None = None,
    ) -> list[Stored]:
        if self.anchor is not None:
            fresh = Fresh(self.highest, self.anchor)
        return await self._patiently(lambda limit: self.hasty.last(stream, subjects, limit, fresh))

    def saw(self, seq: int) -> None:
        """A message with this sequence is stored."""
        if seq > self.highest:
            self.highest = seq

    async def read(
        self,
        stream: str,
        after: int,
        filter: bytes = b">",
        limit: int = 256,
        timeout: float = 5.0,
    ) -> list[Stored]:
        return await self._patiently(
            lambda seconds: self.hasty.read(stream, after, filter, limit, seconds)
        )

    async def _patiently(self, attempt: Callable[[float], Awaitable[T]]) -> T:
        end = time.monotonic() + PATIENCE
        number = 0
        while True:
            try:
                return await attempt(TRIES[min(number, len(TRIES) - 1)])
            except WireError as error:
                pause = PAUSES[min(number, len(PAUSES) - 1)]
                if not passing(error) or time.monotonic() + pause >= end:
                    raise
                if isinstance(error, Behind):
                    pause = LAG
                else:
                    self.repeats += 1
                await self._recover(error)
                await asyncio.sleep(pause)
            number += 1

    async def _recover(self, error: WireError) -> None:
        if isinstance(error, NoResponders) and self._on_missing is not None:
            self._on_missing()
        elif isinstance(error, Congested):
            await self._link.drained()
