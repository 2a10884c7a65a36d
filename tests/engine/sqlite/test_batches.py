"""Many operations in one commit answer as if each had been alone.

Operations of a batch share what was looked up and what waits to be written, and see each other's
changes through it. Here random batches run in one commit, beside the memory engine, which takes
them one by one.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from headrace.core.claims import ClaimRequest, Lease, Share
from headrace.core.model import Filter, Job
from headrace.core.outcome import settle
from headrace.core.queue import DEFAULTS
from headrace.core.retention import cutoffs
from headrace.engine.memory import MemoryEngine
from headrace.engine.protocol import Prune
from headrace.engine.sqlite import SqliteEngine
from headrace.testing.conformance import Bench
from headrace.testing.plain import plain
from headrace.testing.strategies import (
    _DRAFTS,  # pyright: ignore[reportPrivateUsage]
    _SETTINGS,  # pyright: ignore[reportPrivateUsage]
    ACTIONS,
    OUTCOMES,
    QUEUES,
    Draft,
)

OUTCOME_LIST = list(OUTCOMES.elements)  # pyright: ignore
ACTION_LIST = list(ACTIONS.elements)  # pyright: ignore

Act = Callable[[Bench], Awaitable[Any]]


class Batches:
    """Two engines and what the test knows of both."""

    def __init__(self, engine: SqliteEngine, chance: Random) -> None:
        self.subject, self.reference = Bench(engine), Bench(MemoryEngine())
        self.chance = chance
        self.ids: list[str] = []
        self.held: list[tuple[Job, Job]] = []
        self._gate = threading.Event()
        engine.fault = self._reach
        self._engine = engine

    def _reach(self, point: str) -> None:
        if point == "begin":
            assert self._gate.wait(20)

    async def _begun(self, act: Act) -> Any:
        """All of them begin in their order, whatever they are."""
        return await act(self.subject)

    async def step(self) -> None:
        """One batch, and a comparison of everything."""
        for bench in (self.subject, self.reference):
            bench.tick(0)
        acts = [self._act() for _ in range(self.chance.randint(1, 6))]
        self._gate.clear()
        # The first keeps the writer at the gate, so that the rest is one batch.
        waiting = [asyncio.ensure_future(self.subject.engine.extend([], 0))]
        waiting += [asyncio.ensure_future(self._begun(act)) for act in acts]
        for _ in range(3):
            await asyncio.sleep(0)
        self._gate.set()
        mine = (await asyncio.gather(*waiting))[1:]
        theirs = [await act(self.reference) for act in acts]
        assert plain(mine) == plain(theirs)
        for ours, other in zip(mine, theirs, strict=True):
            if hasattr(ours, "jobs") and hasattr(ours, "next_due"):
                self.held += zip(ours.jobs, other.jobs, strict=True)
        await self._compare()
        self.subject.now = self.reference.now = self.subject.now + self.chance.choice((0, 1, 30))

    def _act(self) -> Act:
        return self.chance.choice(
            (self._insert, self._insert, self._claim, self._settle, self._operate, self._extend)
            + ((self._prune, self._set_queue) if self.chance.random() < 0.3 else ())
        )()

    def _build(self, draft: Draft) -> Any:
        parents = tuple(self.ids[-1 - place % len(self.ids)] for place in draft.parents if self.ids)
        again = draft.again and self.ids
        id = self.ids[-1] if again else f"j{len(self.ids)}"
        if not again:
            self.ids.append(id)
        deadline = draft.deadline_in
        return self.subject.new(
            id,
            queue=draft.queue,
            priority=draft.priority,
            lifo=draft.lifo,
            delay=draft.delay,
            max_tries=draft.max_tries,
            deadline=None if deadline is None else self.subject.now + deadline,
            ttl=draft.ttl,
            dedup=draft.dedup,
            key=draft.key,
            depends_on=tuple(parent for parent in parents if parent != id),
            on_parent_failure=draft.on_parent_failure,
            payload=[draft.again, len(self.ids)],
        )

    def _insert(self) -> Act:
        groups = [
            [self._build(self.chance.choice(_DRAFTS)) for _ in range(size)]
            for size in self.chance.choice(((1,), (1, 1, 1), (3,), (2, 1)))
        ]
        now = self.subject.now
        return lambda bench: bench.engine.insert(groups, now)

    def _claim(self) -> Act:
        request = ClaimRequest(
            service="svc",
            worker=self.chance.choice(("w1", "w2")),
            shares=tuple(Share(queue, 3) for queue in QUEUES),
            limit=self.chance.randint(1, 5),
            lease=60,
            now=self.subject.now,
        )
        return lambda bench: bench.engine.claim(request)

    def _settle(self) -> Act:
        outcome = self.chance.choice(OUTCOME_LIST)(self.subject.now)
        pairs = self.chance.sample(self.held, min(len(self.held), 3))
        now = self.subject.now
        return lambda bench: bench.engine.apply(
            [settle(pair[bench is self.reference], outcome, now, 0.5, DEFAULTS) for pair in pairs]
        )

    def _operate(self) -> Act:
        action = self.chance.choice(ACTION_LIST)
        id = self.chance.choice(self.ids) if self.ids else "j0"
        now = self.subject.now

        async def act(bench: Bench) -> Any:
            snapshot = self._seen[bench is self.reference].get(id)
            return await bench.engine.apply([action(snapshot, now)]) if snapshot else None

        return act

    def _extend(self) -> Act:
        pairs = self.chance.sample(self.held, min(len(self.held), 3))
        until = self.subject.now + 60

        def act(bench: Bench) -> Awaitable[Any]:
            jobs = [pair[bench is self.reference] for pair in pairs]
            return bench.engine.extend([Lease(job.id, job.seq, job.token) for job in jobs], until)

        return act

    def _prune(self) -> Act:
        places = {("svc", queue): self.chance.choice(_SETTINGS) for queue in QUEUES}
        order = Prune(
            now=self.subject.now,
            cutoffs=tuple(cutoffs(places, self.subject.now)),
            journal_before=0,
            limit=3,
        )
        return lambda bench: bench.engine.prune(order)

    def _set_queue(self) -> Act:
        settings, queue = self.chance.choice(_SETTINGS), self.chance.choice(QUEUES)
        return lambda bench: bench.set_queue(settings, queue)

    _seen: tuple[dict[str, Job], dict[str, Job]] = ({}, {})

    async def _compare(self) -> None:
        mine = await self.subject.engine.get(self.ids)
        theirs = await self.reference.engine.get(self.ids)
        assert plain(mine) == plain(theirs)
        self._seen = (
            {details.job.id: details.job for details in mine if details},
            {details.job.id: details.job for details in theirs if details},
        )
        assert await self.subject.counts() == await self.reference.counts()
        entries = [await b.engine.journal(0, 100_000) for b in (self.subject, self.reference)]
        assert plain(entries[0]) == plain(entries[1])
        assert await self.subject.found(Filter()) == await self.reference.found(Filter())


@pytest.mark.parametrize("seed", range(12))
async def test_batch_answers_as_if_each_had_been_alone(path: Path, seed: int) -> None:
    engine = SqliteEngine(path, synchronous="normal", direct=False)
    await engine.open()
    batches = Batches(engine, Random(seed))
    for _ in range(40):
        await batches.step()
    await engine.close()
