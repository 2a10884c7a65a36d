"""What the operations of a batch are going to ask for, so that it can be looked up in one go."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from headrace.core.change import Change
from headrace.core.ids import made_at
from headrace.core.model import Job, NewJob
from headrace.engine.sqlite.pending import Place


class Wanted:
    """Gathers what is going to be asked for."""

    __slots__ = ("fresh", "holders", "ids", "keys", "parents", "snapshots")

    def __init__(self) -> None:
        self.ids: set[str] = set()
        self.fresh: list[str] = []
        """New ids that are taken to be unused; the table's own uniqueness finds those that are
        not."""
        self.snapshots: list[Job] = []
        """Jobs of which must be known how they stand."""
        self.parents: set[str] = set()
        """Jobs of which must be known who depends on them."""
        self.keys: set[Place] = set()
        self.holders: set[Place] = set()

    def insert(self, groups: Sequence[Sequence[NewJob]]) -> None:
        """What adding these jobs will ask for."""
        for group in groups:
            for new in group:
                if made_at(new.id, new.created_at):
                    self.fresh.append(new.id)
                else:
                    self.ids.add(new.id)
                if new.depends_on:
                    self.ids.update(new.depends_on)
                if new.key or new.dedup:
                    self._concern(new)

    def apply(self, changes: Iterable[Change]) -> None:
        """What making these changes will ask for."""
        for change in changes:
            spec = change.job.spec
            self.parents.add(spec.id)
            if not change.only_completes:
                self.snapshots.append(change.job)
                self._concern(spec)

    def discard(self, jobs: Iterable[Job]) -> None:
        """What deleting these jobs will ask for."""
        for job in jobs:
            self.parents.add(job.spec.id)
            self._concern(job.spec)

    def _concern(self, spec: NewJob) -> None:
        if spec.key:
            self.keys.add((spec.service, spec.key.hash))
        if spec.dedup:
            self.holders.add((spec.service, spec.dedup.key))
