"""The lease keeper: renews leases from a thread of its own, so that a handler that blocks the
event loop cannot lose its lease, and brings cancels to the worker at once."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable

from headrace.core.claims import Lease
from headrace.core.errors import EngineUnavailable
from headrace.engine.protocol import Bell, Engine, Put, worker_topic
from headrace.runtime.clock import Clock
from headrace.runtime.runs import Claimant, Runs

log = logging.getLogger("headrace.worker")

News = Callable[[Lease, str | None], None]
"""Told in the worker's loop: a lease with the reason of a cancel, or None where it was lost."""


class LeaseKeeper:
    """Renews a third of the way into each lease; at once when the worker's bell rings."""

    def __init__(
        self,
        engine: Engine,
        clock: Clock,
        claimant: Claimant,
        runs: Runs,
        news: News,
        beat: Callable[[], Put],
    ) -> None:
        self._engine, self._clock = engine.twin(), clock
        self._claimant, self._runs = claimant, runs
        self._news, self._beat = news, beat
        self._loop = asyncio.get_running_loop()
        self._rings = self._answered = 0
        self._away = False
        self._thread = threading.Thread(target=self._main, name="headrace-leases", daemon=True)
        self._own: asyncio.AbstractEventLoop | None = None
        self._nudge: asyncio.Event | None = None
        self._started = threading.Event()
        self._stopping = False

    def start(self) -> None:
        self._thread.start()
        self._started.wait()

    def stop(self) -> None:
        """Returns when the thread has ended; never waits for the engine."""
        self._stopping = True
        self.renew()
        self._thread.join(timeout=5)

    def held_more(self) -> None:
        """The worker holds more jobs than before."""
        if self._rings != self._answered:
            # The bell may have rung for one of these jobs, between its claim and now.
            self._answered = self._rings
            self.renew()

    def renew(self) -> None:
        """Renews everything now; may be called from any thread."""
        if self._own is not None and self._nudge is not None:
            try:
                self._own.call_soon_threadsafe(self._nudge.set)
            except RuntimeError:
                log.debug("the lease keeper has ended")

    async def renewed(self) -> None:
        """Returns when everything that is held now has been renewed."""
        if self._own is not None:
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._round(), self._own))

    def _main(self) -> None:
        try:
            asyncio.run(self._run())
        except Exception:
            log.exception("the lease keeper ended; leases will run out")
        finally:
            self._started.set()

    async def _run(self) -> None:
        self._own, self._nudge = asyncio.get_running_loop(), asyncio.Event()
        bell = self._engine.listen(frozenset({worker_topic(self._claimant.worker)}))
        moved = self._clock.on_move(self.renew)
        ringing = asyncio.create_task(self._follow(bell, self._nudge))
        self._started.set()
        delay = 0.0
        try:
            while not self._stopping:
                delay = await self._round()
                try:
                    async with asyncio.timeout(delay):
                        await self._nudge.wait()
                except TimeoutError:
                    continue
                self._nudge.clear()
        finally:
            ringing.cancel()
            moved()
            bell.close()

    async def _follow(self, bell: Bell, nudge: asyncio.Event) -> None:
        while True:
            await bell.wait(None)
            self._rings += 1
            nudge.set()

    async def _round(self) -> float:
        """Renews everything; returns the seconds until the next round."""
        jobs = [run.job for run in list(self._runs.values())]
        leases = [Lease(job.id, job.seq, job.token) for job in jobs]
        try:
            if leases:
                until = self._clock.now() + self._claimant.lease
                renewals = await self._engine.extend(leases, until)
                for lease, renewal in zip(leases, renewals, strict=True):
                    if not renewal.held or renewal.cancelling is not None:
                        self._tell(lease, renewal.cancelling if renewal.held else None)
            await self._engine.put([self._beat()], self._clock.now())
            self._away = False
        except EngineUnavailable as error:
            if not self._away:
                log.warning("leases cannot be renewed now: %s; trying again", error)
            self._away = True
            return min(1.0, self._claimant.lease / 10_000)
        except Exception:
            log.exception("leases cannot be renewed; trying again")
            return min(1.0, self._claimant.lease / 10_000)
        return self._claimant.lease / 3000

    def _tell(self, lease: Lease, cancelling: str | None) -> None:
        try:
            self._loop.call_soon_threadsafe(self._news, lease, cancelling)
        except RuntimeError:
            self._stopping = True  # the worker's loop is closed
