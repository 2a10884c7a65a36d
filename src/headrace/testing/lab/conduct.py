"""How the lab's handlers behave: as their job's temper says, and they write down when they run."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Generator
from random import Random
from typing import Any

from headrace.core.change import Answer, Applied
from headrace.core.signals import Cancel, Retry, Snooze, Terminate
from headrace.runtime.context import JobContext
from headrace.testing.lab.notes import End, Mischief, Notes, Settled, Start
from headrace.testing.lab.panel import Panel
from headrace.testing.lab.workload import MOODS


class NotCounted(Exception):
    """An error that is no failure."""


class Conduct:
    """What handlers do in one process."""

    def __init__(self, seed: int, panel: Panel, notes: Notes) -> None:
        self._seed, self._panel, self._notes = seed, panel, notes

    async def step(self, ctx: JobContext, mood: str) -> Any:
        """One that runs in the event loop."""
        with self._written_down(ctx):
            deed, chance = self._draw(ctx, mood)
            match deed:
                case "nap":
                    await asyncio.sleep(chance.uniform(0.01, 0.2))
                case "hang":
                    await asyncio.sleep(chance.uniform(0.5, 3.0))
                case "block":
                    self._notes.write(Mischief(kind="blocked-loop"))
                    time.sleep(chance.uniform(0.1, 0.8))  # noqa: ASYNC251
                case "stubborn":
                    await self._stubborn(chance.uniform(0.2, 1.5))
                case _:
                    return self._quick(ctx, deed, chance)
            return {"token": ctx.job.token}

    def plod(self, ctx: JobContext, mood: str) -> Any:
        """One that blocks its thread."""
        with self._written_down(ctx):
            deed, chance = self._draw(ctx, mood)
            match deed:
                case "nap":
                    time.sleep(chance.uniform(0.01, 0.2))
                case "hang":
                    ctx.wait_cancelled(chance.uniform(0.5, 3.0))
                case "block" | "stubborn":
                    self._notes.write(Mischief(kind="ignored-cancel"))
                    time.sleep(chance.uniform(0.2, 1.0))
                case _:
                    return self._quick(ctx, deed, chance)
            return {"token": ctx.job.token}

    def _draw(self, ctx: JobContext, mood: str) -> tuple[str, Random]:
        chance = Random(f"{self._seed}/{ctx.id}/{ctx.job.token}")
        if self._panel.calm:
            return "return", chance
        deeds = MOODS[mood]
        return chance.choices(list(deeds), list(deeds.values()))[0], chance

    @staticmethod
    def _quick(ctx: JobContext, deed: str, chance: Random) -> Any:
        match deed:
            case "fail":
                raise RuntimeError("this try was to fail")
            case "again":
                raise Retry("this try was to fail", after=chance.uniform(0, 0.3))
            case "snooze":
                raise Snooze(seconds=chance.uniform(0, 0.4))
            case "uncounted":
                raise NotCounted("this try was not to count")
            case "terminate":
                raise Terminate("this job was to fail")
            case "cancel":
                raise Cancel("this job was to be cancelled")
            case "report":
                ctx.progress("half", current=1, total=2)
                ctx.log("info", "half of it is done")
            case "move":
                queue = chance.choice([q for q in ("main", "side", "capped") if q != ctx.job.queue])
                kind = chance.choice(("step", "plod"))
                return ctx.move_to(queue, kind, delay=chance.choice((0, 0.1)))
            case "detach":
                return ctx.detach(chance.uniform(0.3, 1.5))
            case _:
                pass
        return {"token": ctx.job.token}

    async def _stubborn(self, seconds: float) -> None:
        """Goes on although it is cancelled."""
        end = time.monotonic() + seconds
        told = False
        while (left := end - time.monotonic()) > 0:
            try:
                await asyncio.sleep(left)
            except asyncio.CancelledError:
                if not told:
                    self._notes.write(Mischief(kind="ignored-cancel"))
                told = True

    @contextlib.contextmanager
    def _written_down(self, ctx: JobContext) -> Generator[None]:
        job = ctx.job
        worker = job.worker or ""
        self._notes.write(Start(job=job.id, number=job.tries, token=job.token, worker=worker))
        how = "returned"
        try:
            yield
        except BaseException as error:
            how = type(error).__name__
            raise
        finally:
            self._notes.write(End(job=job.id, token=job.token, how=how))

    def settled(self, ctx: JobContext, answer: Answer) -> None:
        """Notes what the worker was told of an outcome."""
        applied = isinstance(answer, Applied)
        event = str(answer.job.event) if applied else ""
        version = answer.job.version if applied else 0
        note = Settled(
            job=ctx.id, token=ctx.job.token, applied=applied, event=event, version=version
        )
        self._notes.write(note)
