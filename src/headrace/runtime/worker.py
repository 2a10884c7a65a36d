"""The worker: exchange, executor and lease keeper put together around the slots.

A job's way: the exchange claims it → `begin` gives it a run → the executor names the outcome →
core settles it into a change → the exchange commits it → the slot is free.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, cast

from msgspec import Struct

from headrace.core import codec, outcome
from headrace.core.change import Answer, Applied, Change
from headrace.core.claims import Lease
from headrace.core.errors import EngineError, InvalidValue
from headrace.core.model import DEFAULT_LEASE, Job
from headrace.core.outcome import Outcome, settle
from headrace.core.values import milliseconds, whole
from headrace.engine.protocol import Engine
from headrace.runtime.backoff import persist
from headrace.runtime.clock import Clock
from headrace.runtime.context import Interrupt, JobContext
from headrace.runtime.exchange import Exchange
from headrace.runtime.executor import Executor
from headrace.runtime.handler import Middleware, Router, problem_of
from headrace.runtime.keeper import LeaseKeeper
from headrace.runtime.limits import TimeLimits
from headrace.runtime.presence import Presence, beat, gone
from headrace.runtime.processes import ProcessPool
from headrace.runtime.resources import Provider, Resources
from headrace.runtime.runs import Claimant, Run, Runs
from headrace.runtime.settings import SettingsBook
from headrace.runtime.shares import QueueSpec, Shares
from headrace.runtime.threads import ThreadPool

log = logging.getLogger("headrace.worker")

Hook = Callable[[], Awaitable[object] | object]


class WorkerOptions(Struct, frozen=True, kw_only=True):
    """How a worker runs."""

    queues: QueueSpec = "default"
    strict: bool = False
    concurrency: int = 100
    threads: int | None = None
    """Threads for sync handlers; as many as `concurrency` unless set."""
    children: int | None = None
    """Child processes for `cpu=True` handlers; one per core unless set."""
    lease: int = DEFAULT_LEASE
    grace: float = 25.0
    """Seconds that handlers get to finish once the worker is asked to stop."""

    def __post_init__(self) -> None:
        """Raises InvalidValue naming the first option that makes no sense."""
        Shares(self.queues, self.strict, lambda _: 1)
        whole("concurrency", self.concurrency)
        for name in ("threads", "children"):
            if (value := getattr(self, name)) is not None:
                whole(name, value)
        whole("lease", self.lease)
        milliseconds("grace", self.grace)


class Equipment(Struct, frozen=True, kw_only=True):
    """What the app lends to its workers."""

    router: Router
    middleware: list[Middleware]
    providers: Mapping[Any, Provider]
    on_start: list[Hook]
    on_stop: list[Hook]
    version: str


class Worker:
    """Runs jobs of one service. Its identity is fresh at every start."""

    def __init__(
        self,
        engine: Engine,
        clock: Clock,
        service: str,
        identity: str,
        equipment: Equipment,
        options: WorkerOptions,
    ) -> None:
        self.id, self.service, self.options = identity, service, options
        self._engine, self._clock, self._equipment = engine, clock, equipment
        self.concurrency = options.concurrency
        self._runs: Runs = {}
        self.busy = 0
        """Slots that are taken: by jobs that run, or whose outcome is being stored."""
        self._begun = 0
        self._stopping = self._leaving = False
        self._leave_now = asyncio.Event()
        self._left = asyncio.Event()
        self._exchanging: asyncio.Task[None] | None = None
        self._following: set[asyncio.Future[Any]] = set()
        self._quiet = asyncio.Event()
        self._quiet.set()
        self.settings = SettingsBook(engine, clock, service)
        self._resources = Resources(equipment.providers)
        self._threads = ThreadPool(options.threads or options.concurrency)
        self._processes = ProcessPool(options.children or os.cpu_count() or 1)
        self._executor = Executor(
            equipment.router,
            clock,
            self._threads,
            self._processes,
            equipment.middleware,
            self._resources.of,
        )
        self._limits = TimeLimits(clock, self._runs, self._out_of_time)
        self._started_at = clock.now()
        self._shares = Shares(options.queues, options.strict, self._weight)
        self._claimant = Claimant(service, identity, options.lease)
        self._exchange = Exchange(engine, clock, self._claimant, self, self._shares)
        self._chores: list[asyncio.Task[None]] = []

    # Life

    @property
    def engine(self) -> Engine:
        return self._engine

    async def wait(self) -> None:
        """Returns when `finish` was called; raises what ended the worker otherwise."""
        assert self._exchanging is not None, "the worker has not been started"
        await self._exchange.stopped()

    def finish(self) -> None:
        """Stops claiming; `stop` does the rest."""
        self._exchange.stop()

    async def start(self) -> None:
        """Begins to work; returns at once. A failing start hook aborts it."""
        self._loop = asyncio.get_running_loop()
        for hook in self._equipment.on_start:
            await _call(hook)
        await self.settings.refresh()
        self._keeper = LeaseKeeper(
            self._engine, self._clock, self._claimant, self._runs, self._news, self._beat
        )
        self._keeper.start()
        self._unsubscribe = self._clock.on_move(self._clock_moved)
        following = self.settings.run(self._exchange.look)
        self._exchanging = asyncio.create_task(self._exchange.run(), name="headrace-exchange")
        self._chores = [
            self._exchanging,
            asyncio.create_task(following, name="headrace-settings"),
        ]

    async def stop(self, grace: float | None = None) -> None:
        """Stops claiming, lets handlers finish, then interrupts them and gives their jobs back."""
        if self._exchanging is None:
            return
        if self._stopping:
            await self._left.wait()
            return
        self._stopping = True
        self._exchange.stop()
        try:
            await self._first(self._exchange.stopped(), self._leave_now.wait())
            # A claim under way is not given up lightly: its jobs would be nobody's for a lease.
            await self._first(self._exchange.stopped(), timeout=1.0)
            self._leaving = True
            if not await self._finished(self.options.grace if grace is None else grace):
                log.warning("giving back unfinished jobs: %d", len(self._unfinished()))
                for run in self._unfinished():
                    self._interrupt(run, Interrupt.SHUTDOWN, "the worker is stopping")
                if not await self._finished(0 if self._leave_now.is_set() else 5.0):
                    self._abandon()
            await self._close()
        finally:
            self._left.set()

    def leave_now(self) -> None:
        """Cuts the grace period short."""
        self._leave_now.set()

    async def _finished(self, seconds: float) -> bool:
        """Whether all handlers were done in time."""
        if not self._quiet.is_set():
            await self._first(self._quiet.wait(), self._leave_now.wait(), timeout=seconds)
        return self._quiet.is_set()

    @staticmethod
    async def _first(*awaited: Awaitable[object], timeout: float | None = None) -> None:
        """Returns when one of them is done, or after the timeout; what else was made is undone."""
        futures = [asyncio.ensure_future(one) for one in awaited]
        await asyncio.wait(futures, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        for future, one in zip(futures, awaited, strict=True):
            if future is not one:
                future.cancel()

    def _unfinished(self) -> list[Run]:
        return [run for run in self._runs.values() if not run.ended]

    def _abandon(self) -> None:
        """Gives back the jobs of handlers that cannot be interrupted; they end with the process."""
        for run in self._unfinished():
            log.error("job %s ignores its interruption; it is given back", run.job.id)
            self._ended(run, outcome.Returned())

    async def _close(self) -> None:
        patience = 1 if self._leave_now.is_set() else 10
        with suppress(TimeoutError):
            async with asyncio.timeout(patience):
                await self._exchange.drained()
                await asyncio.gather(*self._following, return_exceptions=True)
        await asyncio.to_thread(self._keeper.stop)
        with suppress(TimeoutError, EngineError):
            async with asyncio.timeout(patience):
                await self._engine.put([gone(self.id)], self._clock.now())
        for chore in self._chores:
            chore.cancel()
        await asyncio.gather(*self._chores, return_exceptions=True)
        self._limits.close()
        self._unsubscribe()
        self._threads.close()
        await self._processes.close()
        for hook in self._equipment.on_stop:
            try:
                await _call(hook)
            except asyncio.CancelledError:
                raise
            except BaseException:
                log.exception("a stop hook failed")
        try:
            await self._resources.close()
        except Exception:
            log.exception("a resource could not be closed")

    # Live changes

    def set_concurrency(self, concurrency: int) -> None:
        """Takes effect at once; running handlers are not touched."""
        self.concurrency = whole("concurrency", concurrency)
        if self.options.threads is None:
            self._threads.limit = max(self._threads.limit, concurrency)
        self._exchange.look()

    def set_queues(self, queues: QueueSpec, strict: bool | None = None) -> None:
        """Takes effect with the next claim."""
        strict = self._shares.strict if strict is None else strict
        self._shares = Shares(queues, strict, self._weight)
        self._exchange.serve(self._shares)

    @property
    def idle(self) -> bool:
        """Whether nothing runs, nothing is being written and nothing was there to claim."""
        return self.busy == 0 and self._exchange.idle.is_set()

    async def until_idle(self) -> None:
        """Returns when nothing runs and nothing is there to claim; what is due later is left."""
        begun = -1
        while begun != self._begun:  # the bell of the last jobs' own jobs may still be on its way
            begun = self._begun
            self.look()
            while not self.idle:
                await self._quiet.wait()
                await self._exchange.idle.wait()

    @property
    def queues(self) -> list[str]:
        """The queues that it serves now."""
        return self._shares.names

    @property
    def next_due(self) -> int | None:
        """When an idle worker expects to find work, if nothing new comes."""
        return self._exchange.next_due

    def look(self) -> None:
        """Looks for work now."""
        self._exchange.look()

    async def renew_leases(self) -> None:
        """Returns when every lease is renewed."""
        await self._keeper.renewed()

    def _weight(self, queue: str) -> int:
        return self.settings.of(queue).weight

    def _clock_moved(self) -> None:
        self._loop.call_soon_threadsafe(self._limits.check)
        self._loop.call_soon_threadsafe(self._exchange.look)

    # One job

    def _limit(self, job: Job, start: int) -> int:
        limit = start + (job.spec.timeout or self.settings.of(job.queue).max_runtime)
        return limit if job.deadline is None else min(limit, job.deadline)

    def begin(self, jobs: Sequence[Job]) -> None:
        """Runs jobs that were claimed."""
        if self._leaving:  # they came too late: somebody else may have them
            for job in jobs:
                self._exchange.add(self._settle(job, outcome.Returned()))
            return
        self.busy += len(jobs)
        self._begun += len(jobs)
        self._quiet.clear()
        now = self._clock.now()
        runs, limits, start = self._runs, self._limits, self._loop.create_task
        handlers = {type: self._executor.handler(type) for type in {job.type for job in jobs}}
        for job in jobs:
            limit = self._limit(job, job.started_at or 0)
            run = Run(job, JobContext(job, self, limit), handlers[job.type], limit)
            runs[job.token] = run
            limits.watch(run, now)
            run.task = start(self._execute(run))
        self._keeper.held_more()

    async def _execute(self, run: Run) -> None:
        run.begun = True
        try:
            if run.ctx.interrupted is None:
                result = await self._executor.run(run.handler, run.ctx)
            else:  # told to stop between claim and start
                result = self._executor.interrupted(run.ctx)
        except BaseException as error:
            # A slot must not stay taken, nor a lease be kept, by a job that nobody runs.
            log.exception("job %s could not be run to its end", run.job.id)
            result = outcome.Failed(problem_of(error))
        self._ended(run, result)

    def _ended(self, run: Run, result: Outcome | None) -> None:
        """The handler is done: what follows is decided and handed in."""
        if run.ended:
            return
        run.ended = True
        self._limits.forget(run)
        if result is None:
            self.settled([(run, None)])
            self._exchange.look()
        else:
            self._exchange.add(self._settle(run.job, result), run)

    def unstorable(self, run: Run, refusal: InvalidValue) -> Change:
        """What the store does not take it will not take the next time either."""
        return self._settle(run.job, outcome.Terminated(problem_of(refusal)))

    def _settle(self, job: Job, result: Outcome) -> Change:
        settings = self.settings.of(job.queue)
        return settle(job, result, self._clock.now(), random.random(), settings)

    def settled(self, settled: Sequence[tuple[Run, Answer | None]]) -> None:
        """The outcomes are stored (or refused): the slots are free."""
        self.busy -= len(settled)
        for run, answer in settled:
            self._runs.pop(run.job.token, None)
            if answer is None:
                continue
            if not isinstance(answer, Applied):
                log.warning("the outcome of job %s was not taken: %s", run.job.id, answer.reason)
            if run.ctx.after:
                self._call_after(run, answer)
        if self.busy == 0:
            self._quiet.set()

    def _call_after(self, run: Run, answer: Answer) -> None:
        for function in run.ctx.after:
            try:
                following: object = function(run.ctx, answer)
                if isinstance(following, Awaitable):
                    task = _logged(run.job.id, cast(Awaitable[object], following))
                    future = asyncio.ensure_future(task)
                    self._following.add(future)
                    future.add_done_callback(self._following.discard)
            except BaseException:  # nothing that it raises may stop the worker
                log.exception("call_after of job %s failed", run.job.id)

    # Interruptions

    def _interrupt(self, run: Run, why: Interrupt, reason: str) -> None:
        if run.ctx.interrupted is not None and why is not Interrupt.LOST:
            return
        run.ctx.interrupt(why, reason)
        if run.begun and run.task is not None:
            run.task.cancel()

    def _out_of_time(self, run: Run) -> None:
        job = run.job
        if job.deadline is not None and job.deadline <= self._clock.now():
            self._interrupt(run, Interrupt.DEADLINE, "the deadline has passed")
        else:
            seconds = (self._clock.now() - (job.started_at or 0)) / 1000
            self._interrupt(run, Interrupt.TIMEOUT, f"out of time after {seconds:g} s")

    def _news(self, lease: Lease, cancelling: str | None) -> None:
        """The keeper heard of a cancel, or that the lease was lost (None)."""
        run = self._runs.get(lease.token)
        if run is None or run.ended:
            return
        if cancelling is None:
            log.warning("the lease of job %s was lost", lease.job_id)
            self._interrupt(run, Interrupt.LOST, "the lease was lost")
        else:
            self._interrupt(run, Interrupt.CANCEL, cancelling)

    # The desk of a context, called from any thread

    def now(self) -> int:
        return self._clock.now()

    def send(self, change: Change) -> None:
        try:
            here = asyncio.get_running_loop() is self._loop
        except RuntimeError:
            here = False
        if here:
            self._exchange.add(change)
        else:
            self._loop.call_soon_threadsafe(self._exchange.add, change)

    def renew(self) -> None:
        self._keeper.renew()

    def in_line(self, ctx: JobContext, waiting: bool) -> None:
        run = self._runs.get(ctx.job.token)
        if run is None or run.ended:
            return
        self._limits.forget(run)
        run.limit = run.job.deadline if waiting else self._limit(run.job, self._clock.now())
        self._limits.watch(run, self._clock.now())
        if not waiting:
            ctx.limit(run.limit)

    async def dependencies(self, job: Job) -> Mapping[str, Any]:
        details = (await persist("loading results", lambda: self._engine.get([job.id])))[0]
        return {
            parent.id: None if parent.result is None else codec.decode_any(parent.result)
            for parent in (details.parents if details else ())
        }

    def _beat(self):
        return beat(
            Presence(
                id=self.id,
                service=self.service,
                queues=tuple(self._shares.names),
                concurrency=self.concurrency,
                host=socket.gethostname(),
                pid=os.getpid(),
                version=self._equipment.version,
                started_at=self._started_at,
                beat_at=self._clock.now(),
                jobs=tuple(run.job.spec.id for run in list(self._runs.values())[:1000]),
                stopping=self._stopping,
            ),
            self.options.lease,
        )


async def _logged(job_id: str, following: Awaitable[object]) -> None:
    try:
        await following
    except asyncio.CancelledError:
        raise
    except BaseException:  # from a task, SystemExit would end the event loop
        log.exception("call_after of job %s failed", job_id)


async def _call(hook: Hook) -> None:
    answer = hook()
    if asyncio.iscoroutine(answer) or isinstance(answer, Awaitable):
        await answer
