"""SQLite: costs at a backlog of a million against the same at a thousand."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
from figure import Figure, Say, grown

from headrace.core.claims import ClaimRequest, Share
from headrace.core.ids import ulid
from headrace.core.keys import hash_of
from headrace.core.model import Context, Dedup, Filter, KeyLimit, NewJob
from headrace.core.outcome import Completed, settle
from headrace.core.queue import DEFAULTS
from headrace.core.states import State
from headrace.engine.sqlite import SqliteEngine

SMALL, LARGE = 1_000, 1_000_000
NOW = 1_800_000_000_000
_CONTEXT = Context("0" * 26, f"00-{'0' * 32}-{'1' * 16}-01")


class Backlog:
    """A file with so many waiting jobs, a tenth of them of busy keys."""

    def __init__(self, path: Path) -> None:
        self.engine = SqliteEngine(str(path))
        self._made = 0

    def job(self, dedup: bool = False, key: int | None = None) -> NewJob:
        self._made += 1
        limit = None
        if key is not None:
            limit = KeyLimit(f"tenant:{key}", hash_of(["tenant", key]))
        return NewJob(
            id=ulid(NOW, self._made),
            service="default",
            type="noop",
            queue="default",
            payload=msgspec.Raw(b'{"n":12345}'),
            created_at=NOW,
            run_at=NOW,
            context=_CONTEXT,
            dedup=Dedup(f"d{self._made}") if dedup else None,
            key=limit,
        )

    async def fill(self, count: int, say: Say) -> None:
        await self.engine.open()
        for start in range(0, count, 2000):
            if start % 100_000 == 0:
                say(f"backlog: {start:,} of {count:,} jobs")
            size = min(2000, count - start)
            jobs = [
                self.job(dedup=n % 10 == 1, key=n % 50 if n % 10 == 0 else None)
                for n in range(size)
            ]
            await self.engine.insert([(job,) for job in jobs], NOW)

    async def claim_and_finish(self) -> None:
        request = ClaimRequest(
            service="default",
            worker="w",
            shares=(Share("default", 100),),
            limit=100,
            lease=30_000,
            now=NOW,
        )
        claimed = await self.engine.claim(request)
        assert len(claimed.jobs) == 100
        await self.engine.apply(
            [settle(job, Completed(), NOW, 0.5, DEFAULTS) for job in claimed.jobs]
        )

    async def dedup(self) -> None:
        twice = [self.job(dedup=True) for _ in range(50)]
        again = [msgspec.structs.replace(job, id=f"again-{job.id}") for job in twice]
        answers = await self.engine.insert([(job,) for job in (*twice, *again)], NOW)
        assert sum(verdict.taken for (verdict,) in answers) == 50

    async def keys(self) -> None:
        await self.engine.insert([(self.job(key=n % 50),) for n in range(100)], NOW)

    async def page(self) -> None:
        pages = [
            Filter(queue="default", states=frozenset({State.PENDING})),
            Filter(states=frozenset({State.COMPLETED})),
            Filter(type="noop"),
        ]
        for wanted in pages:
            page = await self.engine.find(wanted, limit=50)
            assert len(page.jobs) == 50


async def figures(folder: Path, say: Say, large: int = LARGE) -> list[Figure]:
    small, big = Backlog(folder / "small.db"), Backlog(folder / "big.db")
    await big.fill(large, say)
    costs: dict[str, tuple[list[float], list[float]]] = {}
    say("backlog: measuring")
    # The small file is filled again as its jobs are used up, the large one is not noticed.
    await small.fill(SMALL, say)
    for round_ in range(25):
        for name in ("claim_and_finish", "dedup", "keys", "page"):
            for backlog, index in ((small, 0), (big, 1)):
                taken = await _timed(getattr(backlog, name))
                if round_ >= 3:
                    costs.setdefault(name, ([], []))[index].append(taken)
        await small.engine.insert([(small.job(),) for _ in range(100)], NOW)
    await small.engine.close()
    await big.engine.close()
    return [
        grown(f"sqlite.{name}", (SMALL, at_small), (large, at_large), "ms")
        for name, (at_small, at_large) in costs.items()
    ]


async def _timed(work: Callable[[], Awaitable[None]]) -> float:
    start = time.perf_counter()
    await work()
    return (time.perf_counter() - start) * 1000
