"""The lines of concurrency keys within a transaction: who stands ready, who is parked first.

Both are kept while the transaction moves jobs about, so that the end of a keyed job costs no
query of its own.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from typing import cast

import msgspec

from headrace.core.model import Job, Stage
from headrace.engine.sqlite.pending import Place
from headrace.engine.sqlite.rows import fetch_jobs
from headrace.engine.sqlite.sql import statement
from headrace.engine.sqlite.store import Store, texts
from headrace.engine.statements import LARGEST

_READY = msgspec.json.Decoder(list[tuple[str, str, int, int]])
_QUEUES = msgspec.json.Decoder(list[tuple[str, str | None]])

_HEADS = 4
"""So many parked jobs are read of a key: the first goes on when a slot is freed, and the next is
looked at to see that it has to wait."""


def _order(job: Job) -> tuple[str, int, int]:
    return job.queue, job.priority, job.position


class _Line:
    """One key. `ready` counts by queue and priority. `parked` has the first parked jobs, or all
    of them; None when it can no longer tell and must be read again."""

    __slots__ = ("complete", "parked", "ready")

    def __init__(self) -> None:
        self.ready: Counter[tuple[str, int]] = Counter()
        self.parked: list[Job] | None = []
        self.complete = True
        """Whether `parked` holds all. If not, all are of one queue, and these its first."""

    def leave(self, job: Job) -> None:
        if job.stage is Stage.READY:
            self.ready[job.queue, job.priority] -= 1
        elif job.stage is Stage.PARKED and self.parked is not None:
            parked = [other for other in self.parked if other.seq != job.seq]
            self.parked = parked if parked or self.complete else None

    def enter(self, job: Job) -> None:
        if job.stage is Stage.READY:
            self.ready[job.queue, job.priority] += 1
        elif job.stage is Stage.PARKED and self.parked is not None:
            if self.complete or _order(job) < _order(self.parked[-1]):
                insort(self.parked, job, key=_order)
            if not self.complete and job.queue != self.parked[-1].queue:
                self.parked = None


class KeyLines:
    """The lines of the keys that a transaction deals with."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lines: dict[Place, _Line] = {}

    def __contains__(self, place: Place) -> bool:
        return place in self._lines

    def clear(self) -> None:
        self._lines.clear()

    def load(self, service: str, hashes: list[str]) -> None:
        """Reads the lines of keys; the tables must be up to date."""
        for start in range(0, len(hashes), LARGEST // _HEADS):
            self._load(service, hashes[start : start + LARGEST // _HEADS])

    def _load(self, service: str, hashes: list[str]) -> None:
        store = self._store
        lines = {hash: _Line() for hash in hashes}
        ready = store.text(statement("ready_of_keys"), (service, texts(hashes)))
        for hash, queue, priority, jobs in _READY.decode(ready):
            lines[hash].ready[queue, priority] = jobs
        parked: dict[str, list[Job]] = {hash: [] for hash in hashes}
        values = (service, texts(hashes), _HEADS)
        for job in fetch_jobs(store, statement("parked_of_keys"), values):
            assert job.key
            parked[job.key.hash].append(job)
        for hash, line in lines.items():
            line.parked = sorted(parked[hash], key=_order)
            self._lines[service, hash] = line
        full = [hash for hash, jobs in parked.items() if len(jobs) == _HEADS]
        if full:
            values = (service, texts(full))
            found = store.text(statement("last_parked_queues"), values)
            for hash, last_queue in _QUEUES.decode(found):
                line = lines[hash]
                line.complete = False
                if parked[hash][0].queue != last_queue or parked[hash][-1].queue != last_queue:
                    line.parked = None  # parked in several queues

    def moved(self, before: Job | None, new: Job | None) -> None:
        """Follows a keyed job from one place to the next."""
        job = new or before
        assert job is not None
        assert job.key
        line = self._lines.get((job.service, job.key.hash))
        if line is not None:
            if before is not None:
                line.leave(before)
            if new is not None:
                line.enter(new)

    def ready(self, place: Place) -> Counter[tuple[str, int]]:
        return self._lines[place].ready

    def parked(self, place: Place) -> list[Job] | None:
        """The first parked job in each queue; None when that has to be read again."""
        parked = self._lines[place].parked
        if parked is None:
            return None
        heads: dict[str, Job] = {}
        for job in parked:
            heads.setdefault(job.queue, job)
        return list(heads.values())

    def read_parked(self, place: Place) -> list[Job]:
        """The same from the tables, which must be up to date."""
        heads: list[Job] = []
        queue = ""
        while True:
            row = self._store.fetch(statement("queue_of_key"), (*place, Stage.PARKED, queue))
            if not row or row[0] is None:
                return heads
            queue = cast(str, row[0])
            values = (*place, Stage.PARKED, queue, 1)
            heads += fetch_jobs(self._store, statement("line_of_key"), values)
