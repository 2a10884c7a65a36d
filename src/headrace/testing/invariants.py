"""What holds on every engine at every moment, checked from the journal and the jobs alone.

The watch knows no engine: it reads events in order and jobs as they stand, and compares them
with the tables of core.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from headrace.core import keys
from headrace.core.event import Event
from headrace.core.model import Counted, DedupMode, Job, NewJob, OnParentFailure, Stage
from headrace.core.queue import QueueSettings
from headrace.core.states import (
    CLAIMABLE,
    FINAL,
    FIRST,
    SATISFIES,
    EventType,
    State,
    next_state,
)


@dataclass(slots=True)
class Story:
    """What the journal told of one job so far."""

    spec: NewJob
    state: State
    version: int
    token: int = 0
    started: bool = False
    satisfied: set[str] = field(default_factory=set[str])
    excused: set[str] = field(default_factory=set[str])
    """Parents that had ended when an operator brought the job back: it runs without them."""
    freed: bool = False
    """Gave its dedup key back."""


class Watch:
    """Follows the journal of one engine."""

    def __init__(self) -> None:
        self.stories: dict[str, Story] = {}

    # The journal

    def tell(self, event: Event, spec: NewJob) -> None:
        """Takes one event; `spec` is the job as it was inserted."""
        if event.event is EventType.CREATED:
            assert event.previous is None
            assert event.state in FIRST
            story = Story(spec, event.state, event.seq)
            self.stories[event.job_id] = story
            self._satisfied_at_birth(story)
            return
        story = self.stories[event.job_id]
        assert event.previous is story.state, f"{event.event} of {event.job_id} skips a state"
        assert next_state(story.state, event.event) is event.state, "illegal transition"
        if event.event is EventType.STALE_COMPLETION_IGNORED:
            return
        assert event.seq > story.version, "a version must grow"
        story.state, story.version = event.state, event.seq
        if event.event is EventType.STARTED:
            self._started(story, event)
        elif event.event is EventType.RETRIED:
            story.started = True  # its time to live is dropped
            story.excused |= {p for p in story.spec.depends_on if self._ended(p)}
        elif event.event is EventType.CHANGED and event.reason == "dedup key freed":
            story.freed = True
        if event.state in FINAL:
            self._ends(event.job_id, event.state)

    def _satisfied_at_birth(self, story: Story) -> None:
        for parent in story.spec.depends_on:
            known = self.stories.get(parent)
            if known and known.state in FINAL:
                self._satisfy(story, parent, known.state)

    def _ends(self, parent: str, state: State) -> None:
        for story in self.stories.values():
            if parent in story.spec.depends_on:
                self._satisfy(story, parent, state)

    @staticmethod
    def _satisfy(story: Story, parent: str, state: State) -> None:
        if state in SATISFIES or story.spec.on_parent_failure is OnParentFailure.RUN:
            story.satisfied.add(parent)

    def _ended(self, id: str) -> bool:
        return id not in self.stories or self.stories[id].state in FINAL

    def _started(self, story: Story, event: Event) -> None:
        missing = set(story.spec.depends_on) - story.satisfied - story.excused
        assert not missing, f"{event.job_id} started before its parents {missing}"
        assert event.seq > story.token, "a token must grow with every claim"
        assert event.run_at is None, "started before it was due"
        story.token = event.seq
        story.started = True

    # Claims

    def check_claim(
        self,
        claimed: Sequence[Job],
        waiting: Mapping[str, Job],
        settings: Mapping[str, QueueSettings],
        now: int,
    ) -> None:
        """Checks what a claim handed out; `waiting` are the jobs as they stood before it."""
        for job in claimed:
            before = waiting.get(job.id)
            if before is not None:
                assert before.state not in FINAL | {State.ACTIVE}
                assert job.tries == before.tries + 1, "the try is counted as it is delivered"
            assert job.state is State.ACTIVE
            assert not settings[job.queue].paused, "claimed from a paused queue"
            assert job.run_at <= now, "claimed before it was due"
            assert job.deadline is None or job.deadline > now, "claimed after its deadline"
            spec, story = job.spec, self.stories[job.id]
            if spec.ttl is not None and not story.started:
                assert spec.created_at + spec.ttl > now, "claimed after its time to live"

    @staticmethod
    def check_caps(
        claimed: Sequence[Job], jobs: Iterable[Job], settings: Mapping[str, QueueSettings]
    ) -> None:
        """A claim never brings a queue above its cap; a lowered cap may leave it there."""
        active = Counter(job.queue for job in jobs if job.state is State.ACTIVE)
        for queue in {job.queue for job in claimed}:
            cap = settings[queue].max_active
            assert cap is None or active[queue] <= cap, f"{queue} is above its cap of {cap}"

    # Jobs as they stand

    def check(
        self, jobs: Sequence[Job], counted: Sequence[Counted], limits: Mapping[str, int], now: int
    ) -> None:
        """Checks all living and ended jobs; `limits` is the most that may run of each key."""
        for job in jobs:
            self._check_job(job, now)
        found = Counter((job.service, job.queue, job.state) for job in jobs)
        assert found == {(c.service, c.queue, c.state): c.jobs for c in counted}
        self._check_keys(jobs, limits)
        self._check_dedup(jobs)

    def _check_job(self, job: Job, now: int) -> None:
        story = self.stories[job.id]
        assert (job.state, job.version) == (story.state, story.version)
        assert job.token == story.token
        assert (job.stage is not Stage.NONE) == (job.state in CLAIMABLE)
        assert (job.finished_at is not None) == (job.state in FINAL)
        assert job.state is not State.BLOCKED or job.waiting_on > 0
        active = job.state is State.ACTIVE
        assert (job.lease_until is not None, job.worker is not None) == (active, active)
        assert active or not (job.detached or job.cancelling)
        if job.stage in (Stage.READY, Stage.PARKED):
            assert job.run_at <= now, "ready before it is due"
        if job.stage is Stage.PARKED:
            assert job.key is not None

    @staticmethod
    def _check_keys(jobs: Sequence[Job], limits: Mapping[str, int]) -> None:
        of_key: defaultdict[str, list[Job]] = defaultdict(list)
        for job in jobs:
            if job.key and job.state not in FINAL:
                of_key[job.key.hash].append(job)
        for hash, members in of_key.items():
            active = sum(job.state is State.ACTIVE for job in members)
            assert active <= limits[hash], f"{active} jobs of one key run"
            _check_parked(members, active)

    def _check_dedup(self, jobs: Sequence[Job]) -> None:
        owners: defaultdict[str, list[Job]] = defaultdict(list)
        for job in jobs:
            dedup = job.spec.dedup
            if dedup and job.state not in FINAL and not self.stories[job.id].freed:
                owners[dedup.key].append(job)
        for living in owners.values():
            dedup = living[0].spec.dedup
            assert dedup
            if dedup.mode in (DedupMode.SIMPLE, DedupMode.DEBOUNCE):
                assert len(living) == 1, "a dedup key has two owners"
            elif dedup.mode is DedupMode.KEEP_LAST:
                assert len(living) <= 2, "more than one waits behind the owner"
                active = [job for job in living if job.state is State.ACTIVE]
                assert len(active) <= 1, "the owner and its successor run together"


def _check_parked(members: Sequence[Job], active: int) -> None:
    """The first parked job of a key in each queue has a reason to be parked: else it would wait
    for a slot that is free."""
    parked = sorted(
        (job for job in members if job.stage is Stage.PARKED),
        key=lambda job: (job.priority, job.position),
    )
    heads = {job.queue: job for job in reversed(parked)}
    for head in heads.values():
        assert head.key
        ahead = sum(
            job.stage is Stage.READY and job.queue == head.queue and job.priority <= head.priority
            for job in members
        )
        full = keys.parks(active, ahead, head.key.max_active)
        assert full, f"{head.id} is parked though its key has a free slot"
