"""The producer: enqueues, cancels, retries, replays, pauses, and settles what is detached.

What it is about to do it writes down before, what was confirmed to it after.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import Any

from headrace.app.app import App
from headrace.app.task import Prepared
from headrace.core.errors import (
    EngineUnavailable,
    EnqueueRefused,
    JobNotFound,
    Refused,
)
from headrace.core.model import Job
from headrace.core.states import WAITING, State
from headrace.testing.lab import workload
from headrace.testing.lab.notes import (
    Answer,
    Answered,
    Asked,
    Declined,
    Done,
    Gate,
    Intended,
    Notes,
    Spec,
    Surprise,
)

EXPECTED = (Refused, JobNotFound, EnqueueRefused, EngineUnavailable)
"""What an operator may be told."""

BACKLOG = 300
"""With so many jobs waiting, no more are added."""


class Producer:
    """One producing process."""

    def __init__(self, app: App, notes: Notes, chance: Random) -> None:
        self._app, self._notes, self._chance = app, notes, chance
        self._known: deque[str] = deque(maxlen=200)
        self._full = False
        self._acts: dict[Callable[[], Awaitable[None]], int] = {
            self.add_one: 40,
            self.add_many: 10,
            self.add_graph: 12,
            self.add_dependent: 6,
            self.cancel: 8,
            self.bring_back: 6,
            self.operate: 6,
            self.settle_detached: 8,
            self.release: 3,
            self.look: 2,
        }

    async def run(self, stop: asyncio.Event, pauses: bool) -> None:
        """Acts until told to stop."""
        chores = [asyncio.create_task(self._watch_backlog())]
        if pauses:
            chores.append(asyncio.create_task(self._pause_now_and_then()))
        try:
            while not stop.is_set():
                await self.act()
                await asyncio.sleep(self._chance.uniform(0.0, 0.02))
        finally:
            for chore in chores:
                chore.cancel()
            await asyncio.gather(*chores, return_exceptions=True)

    async def act(self) -> None:
        """One thing, by chance."""
        act = self._chance.choices(list(self._acts), list(self._acts.values()))[0]
        try:
            await act()
        except OSError:
            await asyncio.sleep(0.05)  # the disk took no note: nothing was done
        except EXPECTED:
            await asyncio.sleep(0.02)
        except Exception as error:
            self._surprised(getattr(act, "__name__", "act"), error)

    def _surprised(self, where: str, error: Exception) -> None:
        text = f"{type(error).__name__}: {error}"[:2000]
        self._notes.write(Surprise(where=where, error=text))

    async def _watch_backlog(self) -> None:
        while True:
            try:
                counted = await self._app.count()
                self._full = sum(c.jobs for c in counted if c.state in WAITING) > BACKLOG
            except EngineUnavailable:
                pass
            except Exception as error:
                self._surprised("count", error)
            await asyncio.sleep(0.5)

    # Jobs

    async def add_one(self) -> None:
        await self._hand_in([self._prepared(workload.job(self._chance))])

    async def add_many(self) -> None:
        jobs = [workload.job(self._chance) for _ in range(self._chance.randint(2, 12))]
        # A dedup key or an id may be in the batch twice: each is answered for itself.
        await self._hand_in([self._prepared(job) for job in jobs])

    async def add_graph(self) -> None:
        prepared: list[Prepared[Any]] = []
        for options, places in workload.graph(self._chance):
            options["depends_on"] = [prepared[place] for place in places]
            prepared.append(self._prepared(options))
        await self._hand_in(prepared, group=True)

    async def add_dependent(self) -> None:
        if self._known:
            options = workload.plain(self._chance)
            options["depends_on"] = [self._chance.choice(self._known) for _ in range(2)]
            options["on_parent_failure"] = self._chance.choice(("unreachable", "wait", "run"))
            await self._hand_in([self._prepared(options)])

    def _prepared(self, options: dict[str, Any]) -> Prepared[Any]:
        given = dict(options)
        return self._app.prepare(given.pop("type"), given.pop("payload"), **given)

    async def _hand_in(self, jobs: Sequence[Prepared[Any]], group: bool = False) -> bool:
        """Whether the last of the jobs is there for certain."""
        if self._full:
            await asyncio.sleep(0.05)
            return False
        self._notes.first(Intended(jobs=tuple(Spec.of(one.job) for one in jobs)))
        try:
            answers = await (self._group(jobs) if group else self._each(jobs))
        except EngineUnavailable:
            answers = [Answer(one.id, "unavailable") for one in jobs]
            await asyncio.sleep(0.05)
        self._notes.write(Answered(answers=tuple(answers)))
        taken = [one.job for one in answers if one.outcome in ("accepted", "replaced")]
        self._known.extend(taken)
        return bool(taken) and taken[-1] == jobs[-1].id

    async def _each(self, jobs: Sequence[Prepared[Any]]) -> list[Answer]:
        found = await self._app.enqueue_many(jobs)
        return [
            Answer(one.id, str(answer.outcome), answer.reason)
            for one, answer in zip(jobs, found, strict=True)
        ]

    async def _group(self, jobs: Sequence[Prepared[Any]]) -> list[Answer]:
        try:
            await self._app.enqueue_group(jobs)
        except EnqueueRefused:
            return [Answer(one.id, "rejected", "group") for one in jobs]
        return [Answer(one.id, "accepted") for one in jobs]

    # Operators

    async def _do(self, action: str, job: str, deed: Callable[[], Awaitable[object]]) -> None:
        self._notes.first(Asked(action=action, job=job))
        try:
            answer = await deed()
        except EXPECTED as error:
            self._notes.write(Declined(action=action, job=job, error=type(error).__name__))
            return
        version = answer.version if isinstance(answer, Job) else None
        if answer is False:
            self._notes.write(Declined(action=action, job=job, error="ended"))
        else:
            self._notes.write(Done(action=action, job=job, version=version))

    async def _living(self) -> str | None:
        """One that has not ended, as far as is known; now and then any."""
        if self._known and self._chance.random() < 0.2:
            return self._chance.choice(self._known)
        states = {*WAITING, State.ACTIVE}
        found = [job.id async for job in self._app.find(limit=40, states=states)]
        return self._chance.choice(found) if found else None

    async def cancel(self) -> None:
        if (job := await self._living()) is not None:
            ref = self._app.job(job)
            await self._do("cancel", ref.id, ref.cancel)

    async def bring_back(self) -> None:
        """Retries, replays or dismisses a job that ended badly, or any that it knows."""
        states = {State.FAILED, State.DEAD, State.CANCELLED, State.UNREACHABLE, State.STALE}
        found = [job.id async for job in self._app.find(limit=10, states=states)]
        found += [self._chance.choice(self._known)] if self._known else []
        if found:
            ref = self._app.job(self._chance.choice(found))
            action = self._chance.choice(("retry", "retry", "replay", "dismiss"))
            await self._do(action, ref.id, getattr(ref, action))

    async def operate(self) -> None:
        if (job := await self._living()) is not None:
            ref = self._app.job(job)
            match self._chance.randrange(4):
                case 0:
                    await self._do("run_now", ref.id, ref.run_now)
                case 1:
                    await self._do("free_unique", ref.id, ref.free_unique)
                case 2:
                    await self._do("delete", ref.id, ref.delete)
                case _:
                    priority = self._chance.randint(0, 9)
                    await self._do("priority", ref.id, lambda: ref.set_priority(priority))

    async def settle_detached(self) -> None:
        found = [job async for job in self._app.find(limit=50, states=State.ACTIVE) if job.detached]
        if not found:
            return
        job = self._chance.choice(found)
        stale = self._chance.random() < 0.2
        token = job.token - stale
        handle = self._app.detached(f"{job.id}.{token}")
        deed: Callable[[], Awaitable[Job]]
        match self._chance.randrange(5):
            case 0:
                deed = lambda: handle.fail("it did not work out")  # noqa: E731
            case 1:
                deed = lambda: handle.move_to("main" if job.queue != "main" else "side")  # noqa: E731
            case 2:
                deed = lambda: handle.renew(0.5)  # noqa: E731
            case _:
                deed = lambda: handle.complete({"token": token})  # noqa: E731

        async def settled() -> Job:
            after = await deed()
            if stale:
                raise AssertionError(f"token {token} of {job.id} was taken; {job.token} is newer")
            return after

        await self._do("settle", job.id, settled)

    async def release(self) -> None:
        await self._app.release_key("tenant", workload.BLOCKING, reason="released by the lab")

    async def look(self) -> None:
        """Reading must not fail either."""
        if self._known:
            await self._app.why(self._chance.choice(self._known))
        await self._app.queues()

    # Pauses

    async def _pause_now_and_then(self) -> None:
        queue = self._app.queue(workload.PAUSED)
        while True:
            try:
                await queue.resume()
                await asyncio.sleep(self._chance.uniform(0.5, 3.0))
                await queue.pause()
                closed = await self._mark()
                await asyncio.sleep(self._chance.uniform(0.2, 1.0))
                opened = await self._mark()
                if closed and opened:
                    self._notes.write(Gate(queue=queue.name, closed=closed, opened=opened))
            except (EngineUnavailable, OSError):
                await asyncio.sleep(0.1)
            except Exception as error:
                self._surprised("pause", error)
                await asyncio.sleep(0.1)

    async def _mark(self) -> str | None:
        marker = self._app.prepare("step", {"mood": "easy"}, queue="main")
        return marker.id if await self._hand_in([marker]) else None
