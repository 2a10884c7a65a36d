"""The story: what happens to the shop, act by act."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import tasks
from board import DEAD, DONE, REPLACED, Board
from crew import LEASE, Crew, WorkerProcess

from headrace import App, Prepared

TENANTS = ("bakery", "florist", "garage", "library", "museum", "studio")
MAILS, NOISY, EACH, PARCELS, PARTS, CHANGES = 200, 100, 4, 32, 8, 40
DELAY = 12


def open_office() -> None:
    Path(os.environ[tasks.OFFICE]).touch()


class TookTooLong(Exception):
    """The story does not go on."""


class Stage(Protocol):
    """Where the story is told."""

    def say(self, text: str, *, alarm: bool = False) -> None: ...


@dataclass
class Facts:
    """What the checks need to know about the story."""

    accepted: set[str] = field(default_factory=set)
    killed: WorkerProcess | None = None
    killed_at: float = 0
    """By the wall clock, in milliseconds, as the journal counts."""
    graph: list[str] = field(default_factory=list)
    reminder: str = ""
    tax_report: str = ""


class Story:
    """Plays the acts in order."""

    def __init__(self, app: App, crew: Crew, board: Board, stage: Stage, pace: float) -> None:
        self._app, self._crew, self._board, self._stage = app, crew, board, stage
        self._pace = pace
        self.changed = asyncio.Event()
        self._shop_is_open = True
        self.facts = Facts()

    async def play(self) -> Facts:
        await self._workers_start()
        await self._mail()
        trickle = asyncio.create_task(self._trickle())
        await self._billing()
        await self._graph()
        await self._kill()
        await self._search()
        self._shop_is_open = False
        await trickle
        await self._dead_letter()
        await self._end()
        return self.facts

    async def _say(self, text: str, seconds: float = 0) -> None:
        self._stage.say(text)
        await asyncio.sleep(seconds * self._pace)

    async def _until(self, fits: Callable[[], bool], seconds: float = 25) -> None:
        """Waits for the journal to say so."""
        try:
            async with asyncio.timeout(seconds):
                while not fits():
                    await self.changed.wait()
                    self.changed.clear()
        except TimeoutError:
            raise TookTooLong("the story is stuck; see what is not done above") from None

    async def _enqueue(self, *jobs: Prepared[Any]) -> list[str]:
        answers = await self._app.enqueue_many(jobs)
        ids = [answer.ref.id for answer in answers if answer.ref]
        self.facts.accepted.update(ids)
        return ids

    async def _workers_start(self) -> None:
        for _ in range(3):
            self._crew.start()
        await self._say("Three workers start, each a process of its own, on one SQLite file.")
        await self._until(lambda: len(self._board.names) == 3)

    async def _mail(self) -> None:
        await self._say(f"{MAILS} orders come in, each gets a mail. The provider is flaky tonight.")
        await self._enqueue(*(tasks.mail.prepare(order) for order in range(1, MAILS + 1)))
        later = tasks.remind.options(delay=DELAY)
        (self.facts.reminder,) = await self._enqueue(later.prepare(7))
        await self._say("A mail that fails is tried again, a little later each time.", 2.5)

    async def _trickle(self) -> None:
        """Orders keep coming in while the rest happens."""
        order = MAILS
        while self._shop_is_open:
            order += 1
            await self._enqueue(tasks.mail.prepare(order))
            await asyncio.sleep(0.12)

    async def _billing(self) -> None:
        await self._say(f"Month's end: acme has {NOISY} invoices, six small tenants {EACH} each.")
        await self._enqueue(*(tasks.invoice.prepare("acme", n) for n in range(1, NOISY + 1)))
        small = [(tenant, n) for n in range(1, EACH + 1) for tenant in TENANTS]
        await self._enqueue(*(tasks.invoice.prepare(tenant, n) for tenant, n in small))
        await self._enqueue(tasks.forecast.prepare(60))
        await self._say(
            "One invoice per tenant at a time. Acme came first; nobody waits for it.", 3
        )

    async def _graph(self) -> None:
        await self._say(f"The month's report: extract, then {PARTS} transforms, then load.")
        extract = tasks.extract.prepare(12)
        after = tasks.transform.options(depends_on=[extract])
        parts = [after.prepare(part, PARTS) for part in range(PARTS)]
        load = tasks.load.options(depends_on=parts).prepare()
        refs = await self._app.enqueue_group([extract, *parts, load])
        self.facts.graph = [ref.id for ref in refs]
        self.facts.accepted.update(self.facts.graph)
        await self._say(
            "Each starts when what it depends on is done, and is handed the results.", 2
        )

    async def _kill(self) -> None:
        await self._say(f"{PARCELS} parcels to pack, a second and a half each, in threads.")
        await self._enqueue(*(tasks.pack.prepare(order) for order in range(1, PARCELS + 1)))
        victim = self._crew.workers[1]
        name = victim.name
        await self._until(lambda: len(self._running_on(name)) >= 5)
        await asyncio.sleep(0.5)
        self.facts.killed = victim
        self.facts.killed_at = time.time() * 1000
        victim.kill()
        await asyncio.sleep(0.1)  # what it had committed is in the journal by now
        self._stage.say(
            f"Now {name} is killed (SIGKILL) while it runs {len(self._running_on(name))} jobs."
            f" Its lease lasts {LEASE} s.",
            alarm=True,
        )
        await self._until(lambda: not self._running_on(name))
        self._crew.start()
        await self._say("Its lease ran out: the others take its jobs. A fresh worker joins.", 2)

    def _running_on(self, name: str) -> list[str]:
        ids = [worker for worker, known in self._board.names.items() if known == name]
        return [card.id for worker in ids for card in self._board.running_on(worker)]

    async def _search(self) -> None:
        (self.facts.tax_report,) = await self._enqueue(tasks.tax_report.prepare(12))
        await self._say(f"{CHANGES} changes in the catalogue, debounced: the last one counts.")
        for change in range(1, CHANGES + 1):
            await self._enqueue(tasks.reindex.prepare(change))
            await asyncio.sleep(0.02)
        await self._say("One reindex runs, a second after the last change.", 2)

    async def _dead_letter(self) -> None:
        await self._until(lambda: self._board.cards[self.facts.tax_report].column == DEAD)
        await self._say("The tax office never answered: that report is a dead letter.", 2)
        open_office()
        await self._app.job(self.facts.tax_report).replay()
        await self._say("The office is open again: the report is replayed.", 1.5)

    async def _end(self) -> None:
        await self._say("The rest is worked off.")
        await self._until(lambda: self._settled() >= len(self.facts.accepted))
        await self._say("All done. The workers are told to stop, and do.", 1)

    def _settled(self) -> int:
        return self._board.total(DONE, REPLACED)
