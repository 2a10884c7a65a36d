"""Jobs in memory by their state and in the order in which they were made, so that a search looks at
no more of them than it needs."""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Collection, Iterator

from headrace.core.model import Job
from headrace.core.states import State


class ByState:
    """The sequences of the jobs in each state, sorted."""

    def __init__(self) -> None:
        self._jobs: dict[int, Job] = {}
        self._seqs: defaultdict[State, list[int]] = defaultdict(list)

    def put(self, before: Job | None, new: Job) -> None:
        """Adds a job, or puts it in the place of what it was before."""
        self._jobs[new.seq] = new
        if before is not None and before.state is new.state:
            return
        if before is not None:
            self._leave(before)
        insort(self._seqs[new.state], new.seq)

    def drop(self, job: Job) -> None:
        del self._jobs[job.seq]
        self._leave(job)

    def _leave(self, job: Job) -> None:
        seqs = self._seqs[job.state]
        del seqs[bisect_left(seqs, job.seq)]

    def newest(self, states: Collection[State], before: int | None) -> Iterator[Job]:
        """The jobs in these states, or all, that were made before a sequence, newest first."""
        lines = [self._seqs[state] for state in states or State]
        ends = [len(seqs) if before is None else bisect_left(seqs, before) for seqs in lines]
        backwards = [
            map(seqs.__getitem__, range(end - 1, -1, -1))
            for seqs, end in zip(lines, ends, strict=True)
        ]
        return map(self._jobs.__getitem__, heapq.merge(*backwards, reverse=True))
