"""The fetcher: claims as many jobs as there are free slots, when there is a reason to look."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence

from headrace.core.claims import Claimed, ClaimRequest
from headrace.core.errors import EngineError, EngineUnavailable
from headrace.core.model import Job
from headrace.engine.protocol import Bell, Engine, work_topic
from headrace.runtime.backoff import persist
from headrace.runtime.clock import Clock
from headrace.runtime.shares import Shares

log = logging.getLogger("headrace.worker")

LOOK_AGAIN = 5.0
"""The longest wait between two looks, in case a wake-up was lost."""

BATCH = 500
"""The most jobs of one claim."""


class Fetcher:
    """Demand-driven: nothing is claimed that cannot start at once."""

    def __init__(
        self,
        engine: Engine,
        clock: Clock,
        service: str,
        worker: str,
        lease: int,
        demand: Callable[[], int],
        start: Callable[[Sequence[Job]], None],
    ) -> None:
        self._engine, self._clock = engine, clock
        self._service, self._worker, self._lease = service, worker, lease
        self._demand, self._start = demand, start
        self._shares: Shares | None = None
        self._bell: Bell | None = None
        self._nudge = asyncio.Event()
        self._stopped = asyncio.Event()
        self.idle = asyncio.Event()
        """Set while there is nothing to claim, as far as is known."""
        self.next_due: int | None = None
        """When there will be, as far as is known."""

    def serve(self, shares: Shares) -> None:
        """Sets the queues; may be called again while it runs."""
        self._shares = shares
        if self._bell is not None:
            self._bell.close()
        topics = frozenset(work_topic(self._service, name) for name in shares.names)
        self._bell = self._engine.listen(topics)
        self.nudge()

    def nudge(self) -> None:
        """Something changed: slots were freed, the queues or the clock were moved."""
        self._nudge.set()
        self.idle.clear()

    def stop(self) -> None:
        self._stopped.set()
        self.nudge()

    async def run(self) -> None:
        """Claims until stopped."""
        try:
            while not self._stopped.is_set():
                wanted = min(self._demand(), BATCH)
                if wanted <= 0:
                    await self._nudge.wait()
                    self._nudge.clear()
                    continue
                self._nudge.clear()
                try:
                    claimed = await self._claim(wanted)
                except EngineUnavailable:
                    continue  # asked to stop meanwhile
                except EngineError:
                    raise  # a store that is damaged or too new needs a person
                except Exception:
                    log.exception("claiming failed; trying again")
                    await asyncio.sleep(1)
                    continue
                if len(claimed.jobs) < wanted:
                    await self._rest(claimed.next_due)
        finally:
            if self._bell is not None:
                self._bell.close()

    async def _claim(self, wanted: int) -> Claimed:
        shares = self._shares
        assert shares is not None
        plan = shares.plan(wanted)

        def attempt() -> Awaitable[Claimed]:
            # Made anew for every attempt: a lease counts from the one that works.
            request = ClaimRequest(
                service=self._service,
                worker=self._worker,
                shares=plan,
                limit=wanted,
                lease=self._lease,
                now=self._clock.now(),
            )
            return self._engine.claim(request)

        claimed = await persist("claiming jobs", attempt, self._stopped)
        if claimed.jobs:
            self._start(claimed.jobs)
        if len(shares.names) > 1:
            shares.charge(Counter(job.queue for job in claimed.jobs))
        return claimed

    async def _rest(self, next_due: int | None) -> None:
        """Until the bell rings, a job falls due, or someone nudges."""
        wait = LOOK_AGAIN
        self.next_due = next_due
        if next_due is not None:
            wait = min(wait, self._clock.seconds_until(next_due))
        if not self._nudge.is_set() and (next_due is None or next_due > self._clock.now()):
            self.idle.set()
        assert self._bell is not None
        bell = asyncio.ensure_future(self._bell.wait(wait))
        nudge = asyncio.ensure_future(self._nudge.wait())
        try:
            await asyncio.wait((bell, nudge), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.idle.clear()
            bell.cancel()
            nudge.cancel()
