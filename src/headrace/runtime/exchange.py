"""The exchange: hands in what has ended and takes what can start, in one step of the engine.

Demand-driven: nothing is claimed that cannot start at once. There is no fixed delay: a step carries
what piled up during the last one, and fills the slots that it frees.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence
from typing import Protocol

from headrace.core.change import Answer, Change
from headrace.core.claims import Claimed, ClaimRequest
from headrace.core.errors import EngineError, EngineUnavailable, InvalidValue
from headrace.core.model import Job
from headrace.engine.protocol import Bell, Engine, work_topic
from headrace.runtime.backoff import persist
from headrace.runtime.clock import Clock
from headrace.runtime.runs import Claimant, Run
from headrace.runtime.shares import Shares

log = logging.getLogger("headrace.worker")

LOOK_AGAIN = 5.0
"""The longest wait between two looks, in case a wake-up was lost."""

BATCH = 500
"""The most jobs that one step claims, and the most changes that it makes."""


class Slots(Protocol):
    """The worker's side: its slots, and what becomes of those who take and leave them."""

    concurrency: int
    busy: int

    def begin(self, jobs: Sequence[Job]) -> None:
        """These jobs were claimed."""
        ...

    def unstorable(self, run: Run, refusal: InvalidValue) -> Change:
        """What becomes of a run whose outcome the store does not take."""
        ...

    def settled(self, settled: Sequence[tuple[Run, Answer | None]]) -> None:
        """How these runs ended is stored or refused; None where a change could not be made sense
        of."""
        ...


class Exchange:
    """Makes changes in the order in which they were added, and claims jobs for free slots."""

    def __init__(
        self, engine: Engine, clock: Clock, claimant: Claimant, slots: Slots, shares: Shares
    ) -> None:
        self._engine, self._clock = engine, clock
        self._claimant, self._slots, self._shares = claimant, slots, shares
        self._waiting: list[tuple[Change, Run | None]] = []
        self._under_way = self._claims = 0
        """Steps that are, and those of them that claim."""
        self._reserved = 0
        """Slots that are free, but asked for already."""
        self._reporting: Counter[str] = Counter()
        """Jobs of which something is on its way that does not end them: what comes next waits."""
        self._looks, self._looking = 0, True
        """How often somebody said to look, and whether there is a reason to."""
        self._plenty = False
        """Whether the last claim got all that it asked for."""
        self._bell: Bell | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._wake = asyncio.Event()
        self._stop = asyncio.Event()
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.idle = asyncio.Event()
        """Set while there is nothing to hand in or to claim, as far as is known."""
        self.next_due: int | None = None
        """When there will be something to claim, as far as is known."""

    # What others tell

    def serve(self, shares: Shares) -> None:
        """Sets the queues; may be called again while it runs."""
        self._shares = shares
        self._hang_up()
        topics = frozenset(work_topic(self._claimant.service, name) for name in shares.names)
        self._bell = self._engine.listen(topics)
        self._bell.tell(self.look)
        self.look()

    def look(self) -> None:
        """There may be something to claim: the bell rang, or the queues, the clock or the number
        of slots have changed."""
        self._looks += 1
        self._looking = True
        self._stir()

    def add(self, change: Change, run: Run | None = None) -> None:
        """Has a change made, which ends the run if one is given. Must be called in the worker's
        event loop."""
        self._waiting.append((change, run))
        self._stir()

    def stop(self) -> None:
        """Claims no more; changes are still made."""
        self._stop.set()
        self._stir()
        self._end_claiming()

    def _stir(self) -> None:
        self.idle.clear()
        self._wake.set()

    def _hang_up(self) -> None:
        if self._bell is not None:
            self._bell.close()

    # What others wait for

    async def stopped(self) -> None:
        """Returns when nothing more is claimed; raises what makes claiming impossible."""
        await asyncio.shield(self._over)

    async def drained(self) -> None:
        """Returns when every change that was added is made."""
        while self._waiting or self._under_way:
            await self._woken()

    async def _woken(self) -> None:
        self._wake.clear()
        await self._wake.wait()

    # Steps

    async def run(self) -> None:
        """Exchanges until cancelled, as many steps at a time as the engine does well."""
        self.serve(self._shares)
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(self._engine.overlap):
                    group.create_task(self._steps())
        except* Exception as failures:
            self._fail(failures.exceptions[0])
        finally:
            self._hang_up()
            self._disarm()

    async def _steps(self) -> None:
        while True:
            batch = self._taken()
            reports = [change.job.spec.id for change, run in batch if run is None]
            wanted = self._wanted(len(batch) - len(reports))
            if batch or wanted:
                reserved = max(0, wanted - len(batch) + len(reports))
                self._under_way += 1
                self._claims += wanted > 0
                self._reserved += reserved
                if reports:
                    self._reporting.update(reports)
                if await self._step(batch, wanted):
                    await asyncio.sleep(0)  # handlers first: what ends at once is in the next step
                if reports:
                    self._reporting -= Counter(reports)
                self._reserved -= reserved
                self._claims -= wanted > 0
                self._under_way -= 1
                self._end_claiming()
                self._wake.set()
            else:
                if self._rests():
                    self.idle.set()
                await self._woken()

    def _rests(self) -> bool:
        """Whether nothing is under way, and nothing is known to be there."""
        due = self.next_due is not None and self.next_due <= self._clock.now()
        return not (self._looking or self._waiting or self._under_way or due)

    def _taken(self) -> list[tuple[Change, Run | None]]:
        """The changes that can be made now."""
        waiting, self._waiting = self._waiting, []
        if not self._reporting and len(waiting) <= BATCH:
            return waiting
        batch: list[tuple[Change, Run | None]] = []
        for one in waiting:
            able = len(batch) < BATCH and one[0].job.spec.id not in self._reporting
            (batch if able else self._waiting).append(one)
        return batch

    def _wanted(self, leaving: int) -> int:
        """How many jobs to claim in a step by which so many slots are left. No more than an equal
        part of all slots where steps overlap: while one part of the jobs runs, the store is busy
        with another."""
        if not self._looking or self._stop.is_set() or (self._claims and not self._plenty):
            return 0
        slots = self._slots
        free = slots.concurrency - slots.busy + leaving - self._reserved
        return max(0, min(free, -(-slots.concurrency // self._engine.overlap), BATCH))

    async def _step(self, batch: list[tuple[Change, Run | None]], wanted: int) -> bool:
        """Hands in and claims; whether any jobs have begun."""
        changes = [change for change, _ in batch]
        looks, claimed = self._looks, Claimed(())
        answers: Sequence[Answer | None] = ()
        try:
            claimed = await self._exchanged(changes, wanted)
            answers = claimed.answers
        except Exception as error:
            if changes:
                answers = [await self._alone(change, run) for change, run in batch]
            else:
                await self._unclaimed(error)
            looks = -1  # nothing was seen
        self._settle(batch, answers)
        if claimed.jobs:
            self._slots.begin(claimed.jobs)
            self._shares.charge([job.queue for job in claimed.jobs])
        if wanted:
            self._see(claimed, wanted, looks)
        return bool(claimed.jobs)

    async def _exchanged(self, changes: Sequence[Change], wanted: int) -> Claimed:
        plan = self._shares.plan(wanted)

        async def attempt() -> Claimed:
            if not wanted or self._stop.is_set():
                answers = await self._engine.apply(changes) if changes else ()
                return Claimed((), answers=tuple(answers))
            service, worker, lease = self._claimant
            # Made anew for every attempt: a lease counts from the one that works.
            request = ClaimRequest(
                service=service,
                worker=worker,
                shares=plan,
                limit=wanted,
                lease=lease,
                now=self._clock.now(),
            )
            return await self._engine.claim(request, changes)

        what = "writing outcomes" if changes else "claiming jobs"
        return await persist(what, attempt, None if changes else self._stop)

    def _settle(
        self, batch: list[tuple[Change, Run | None]], answers: Sequence[Answer | None]
    ) -> None:
        settled = [
            (run, answer)
            for (_, run), answer in zip(batch, answers, strict=True)
            if run is not None
        ]
        if settled:
            self._slots.settled(settled)

    async def _alone(self, change: Change, run: Run | None) -> Answer | None:
        """A batch failed for another reason than the engine being away: one change must not take
        the others with it. What the store refuses fails its job; else the job comes back when its
        lease runs out."""
        try:
            answers = await persist("writing an outcome", lambda: self._engine.apply([change]))
        except InvalidValue as refusal:
            log.warning("the outcome of job %s cannot be stored: %s", change.job.id, refusal)
            if run is None:
                return None
            return await self._alone(self._slots.unstorable(run, refusal), None)
        except Exception:
            log.exception("the outcome of job %s cannot be written", change.job.id)
            return None
        return answers[0]

    # Claims

    def _see(self, claimed: Claimed, wanted: int, looks: int) -> None:
        """Rests until there is a reason to look, where a claim found less than it asked for."""
        self.next_due, self._plenty = claimed.next_due, len(claimed.jobs) >= wanted
        if self._plenty:
            self._looking = True  # one beside it may have found nothing, because this had it all
            return
        if self._looks != looks:
            return
        self._looking = False
        self._disarm()
        seconds = LOOK_AGAIN
        if claimed.next_due is not None:
            seconds = min(seconds, self._clock.seconds_until(claimed.next_due))
        self._timer = asyncio.get_running_loop().call_later(seconds, self.look)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    async def _unclaimed(self, error: Exception) -> None:
        """A claim failed. A store that is damaged or too new needs a person."""
        if isinstance(error, EngineUnavailable):
            return  # asked to stop meanwhile
        if isinstance(error, EngineError):
            self._fail(error)
            return
        log.error("claiming failed; trying again", exc_info=error)
        await asyncio.sleep(1)

    def _fail(self, error: Exception) -> None:
        self._stop.set()
        if not self._over.done():
            self._over.set_exception(error)
            self._over.exception()  # it may be that nobody waits for it

    def _end_claiming(self) -> None:
        if self._stop.is_set() and not self._claims and not self._over.done():
            self._over.set_result(None)
