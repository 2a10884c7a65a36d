"""What operations are going to ask for, so that a batch can look it up in one go."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from headrace.core.ids import made_at
from headrace.core.model import Job, NewJob
from headrace.engine.sqlite.pending import Place


@dataclass(slots=True)
class Wanted:
    """What an operation is going to ask for."""

    ids: set[str] = field(default_factory=set[str])
    fresh: list[str] = field(default_factory=list[str])
    """New ids that are taken to be unused; the table's own uniqueness finds those that are not."""
    snapshots: list[Job] = field(default_factory=list[Job])
    keys: set[Place] = field(default_factory=set[Place])
    holders: set[Place] = field(default_factory=set[Place])

    def insert(self, groups: Sequence[Sequence[NewJob]]) -> Wanted:
        for group in groups:
            for new in group:
                if made_at(new.id, new.created_at):
                    self.fresh.append(new.id)
                else:
                    self.ids.add(new.id)
                if new.depends_on:
                    self.ids.update(new.depends_on)
                self._concern(new)
        return self

    def apply(self, jobs: Iterable[Job]) -> Wanted:
        for job in jobs:
            self.snapshots.append(job)
            self._concern(job.spec)
        return self

    def _concern(self, spec: NewJob) -> None:
        if spec.key:
            self.keys.add((spec.service, spec.key.hash))
        if spec.dedup:
            self.holders.add((spec.service, spec.dedup.key))

    def join(self, other: Wanted) -> None:
        self.ids |= other.ids
        self.fresh += other.fresh
        self.snapshots += other.snapshots
        self.keys |= other.keys
        self.holders |= other.holders
