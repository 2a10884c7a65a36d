"""The state machine: an engine beside the memory engine, which is the reference.

Both get the same operations in random order, with a moved clock, stale owners, repeated writes
and, where the engine has a `fault` hook, crashes around a commit. After every step both must
answer the same and hold the same, and what `invariants` says must hold for the engine's journal
and jobs by themselves.

    TestMachine = engine_machine(lambda: MyEngine(new_path())).TestCase
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from headrace.core import actions
from headrace.core.change import Answer, Change, NotApplied
from headrace.core.claims import Claimed, ClaimRequest, Lease, Share
from headrace.core.model import Filter, Job, LogEntry, NewJob, Progress
from headrace.core.outcome import Completed, Outcome, settle
from headrace.core.queue import DEFAULTS, QueueSettings
from headrace.core.retention import cutoffs
from headrace.core.states import FINAL, WAITING, State
from headrace.engine.protocol import Engine, Entry, Prune
from headrace.testing.conformance.bench import ACTIVE
from headrace.testing.invariants import Watch
from headrace.testing.plain import plain
from headrace.testing.sidebyside import Both, SideBySide
from headrace.testing.strategies import (
    ACTIONS,
    DELAYS,
    DRAFTS,
    KEYS,
    LEASE,
    MAX_ACTIVE,
    OUTCOMES,
    QUEUES,
    SETTINGS,
    WORKERS,
    Draft,
)

PICK = st.integers(0, 30)
"""Which of the known jobs, counted from the newest."""


class EngineMachine(SideBySide):
    """The rules; `engine_machine` gives them an engine."""

    in_parts = False

    def __init__(self) -> None:
        super().__init__()
        self.watch = Watch()
        self.specs: dict[str, NewJob] = {}
        self.drafted: dict[str, NewJob] = {}
        """What was last inserted under an id; a repeated insert may be taken the second time."""
        self.settings: dict[str, QueueSettings] = dict.fromkeys(QUEUES, DEFAULTS)
        self.held: list[Both[Job]] = []
        self.old: list[Both[Job]] = []
        self.after = [0, 0]
        self.jobs: dict[str, Job] = {}
        self.several = False
        """Whether the last step made more than one change."""

    def known(self, place: int) -> str:
        ids = list(self.specs)
        return ids[-1 - place % len(ids)]

    # Rules

    @initialize()
    def open(self) -> None:
        self.read(lambda bench: bench.engine.open())

    def build(self, draft: Draft, added: list[str]) -> NewJob:
        ids = [*self.specs, *added]
        parents = tuple(ids[-1 - place % len(ids)] for place in draft.parents if ids)
        if draft.missing:
            parents = (*parents, "missing")
        fresh = f"j{len(ids)}"
        return self.subject.new(
            ids[-1] if draft.again and ids else fresh,
            queue=draft.queue,
            priority=draft.priority,
            lifo=draft.lifo,
            delay=draft.delay,
            max_tries=draft.max_tries,
            retry=draft.retry,
            deadline=None if draft.deadline_in is None else self.now + draft.deadline_in,
            ttl=draft.ttl,
            dedup=draft.dedup,
            key=draft.key,
            depends_on=parents,
            on_parent_failure=draft.on_parent_failure,
            payload={"again": draft.again, "n": len(ids)},
        )

    @rule(drafts=st.lists(DRAFTS, min_size=1, max_size=6))
    def insert(self, drafts: list[Draft]) -> None:
        self._insert([[draft] for draft in drafts])

    @rule(groups=st.lists(st.lists(DRAFTS, min_size=2, max_size=4), min_size=1, max_size=2))
    def insert_groups(self, groups: list[list[Draft]]) -> None:
        self._insert(groups)

    def _insert(self, groups: list[list[Draft]]) -> None:
        built: list[list[NewJob]] = []
        added: list[str] = []
        for group in groups:
            built.append([])
            for draft in group:
                built[-1].append(self.build(draft, added))
                added.append(built[-1][-1].id)
        self.drafted |= {new.id: new for group in built for new in group}
        now = self.now
        answers, _ = self.write(lambda bench: bench.engine.insert(built, now))
        for group, verdicts in zip(built, answers, strict=True):
            for new, verdict in zip(group, verdicts, strict=True):
                if verdict.taken and verdict.job is not None and verdict.job.spec == new:
                    self.specs.pop(new.id, None)
                    self.specs[new.id] = new

    @rule(worker=st.sampled_from(WORKERS), limit=st.integers(1, 4))
    def claim_from_all(self, worker: str, limit: int) -> None:
        self.claim(worker, list(QUEUES), limit, LEASE)

    @rule(
        worker=st.sampled_from(WORKERS),
        shares=st.lists(st.sampled_from(QUEUES), min_size=1, max_size=3),
        limit=st.integers(0, 5),
        lease=st.sampled_from((LEASE, LEASE, 1)),
    )
    def claim(self, worker: str, shares: list[str], limit: int, lease: int) -> None:
        request = self.request(worker, shares, limit, lease)
        before = {} if self.crash_at else self.jobs
        self.claimed(*self.write(lambda bench: bench.engine.claim(request)), before)

    def request(self, worker: str, shares: list[str], limit: int, lease: int) -> ClaimRequest:
        return ClaimRequest(
            service=self.subject.service,
            worker=worker,
            shares=tuple(Share(queue, max(1, limit - 1)) for queue in shares),
            limit=limit,
            lease=lease,
            now=self.now,
        )

    def claimed(self, mine: Claimed, theirs: Claimed, before: dict[str, Job]) -> None:
        self.watch.check_claim(mine.jobs, before, self.settings, self.now)
        self.look()
        self.watch.check_caps(mine.jobs, self.jobs.values(), self.settings)
        self.held.extend(zip(mine.jobs, theirs.jobs, strict=True))

    @precondition(lambda self: self.held)
    @rule(
        places=st.lists(PICK, min_size=1, max_size=3, unique=True),
        outcome=OUTCOMES,
        worker=st.sampled_from(WORKERS),
        limit=st.integers(0, 4),
    )
    def exchange(
        self, places: list[int], outcome: Callable[[int], Outcome], worker: str, limit: int
    ) -> None:
        """Hands in and claims in one step."""
        if self.subject.engine.overlap > 1:
            self.crash_at = None  # the step may be two commits, and a crash fall between them
        pairs = [self.pick(self.held, place) for place in places]
        self.several = True
        result = outcome(self.now)
        mine = [self.decided(job, result) for job, _ in pairs]
        theirs = [self.decided(job, result) for _, job in pairs]
        request = self.request(worker, list(QUEUES), limit, LEASE)
        claimed = self.write(
            lambda bench: bench.engine.claim(request, mine if bench is self.subject else theirs)
        )
        self.check_fenced(claimed[0].answers, pairs)
        self.claimed(*claimed, {})

    @precondition(lambda self: self.held)
    @rule(places=st.lists(PICK, min_size=1, max_size=3, unique=True), outcome=OUTCOMES)
    def settle(self, places: list[int], outcome: Callable[[int], Outcome]) -> None:
        """By the owner, or by one that lost the job long ago: held jobs are kept for ever."""
        pairs = [self.pick(self.held, place) for place in places]
        self.several = len(pairs) > 1
        result = outcome(self.now)
        answers = self.apply(lambda job: self.decided(job, result), *pairs)
        self.check_fenced(answers, pairs)

    @staticmethod
    def check_fenced(answers: Sequence[Answer], pairs: Sequence[Both[Job]]) -> None:
        """Only the newest owner of a job changes it."""
        for answer, (job, _) in zip(answers, pairs, strict=True):
            assert isinstance(answer, NotApplied) or answer.job.token == job.token

    @precondition(lambda self: self.held)
    @rule(outcome=OUTCOMES)
    def settle_the_newest(self, outcome: Callable[[int], Outcome]) -> None:
        self.settle([0], outcome)

    def decided(self, job: Job, outcome: Outcome) -> Change:
        return settle(job, outcome, self.now, 0.5, self.settings[job.queue])

    @precondition(lambda self: self.held)
    @rule(place=PICK, logs=st.booleans())
    def report(self, place: int, logs: bool) -> None:
        mine, theirs = self.pick(self.held, place)
        entries = [LogEntry(self.now, "info", "x")] if logs else []
        progress = None if logs else Progress("step", current=1)
        answer, _ = self.write(
            lambda bench: bench.report(mine if bench is self.subject else theirs, progress, entries)
        )
        self.check_fenced([answer], [(mine, theirs)])

    @precondition(lambda self: self.held)
    @rule(places=st.lists(PICK, min_size=1, max_size=4))
    def extend(self, places: list[int]) -> None:
        pairs = [self.pick(self.held, place) for place in places]
        mine = [Lease(job.id, job.seq, job.token) for job, _ in pairs]
        theirs = [Lease(job.id, job.seq, job.token) for _, job in pairs]
        until = self.now + LEASE
        renewals, _ = self.write(
            lambda bench: bench.engine.extend(mine if bench is self.subject else theirs, until)
        )
        for renewal, lease in zip(renewals, mine, strict=True):
            stored = self.jobs.get(lease.job_id)
            owned = stored is not None and (stored.state, stored.token) == (
                State.ACTIVE,
                lease.token,
            )
            assert renewal.held == owned

    @precondition(lambda self: self.specs)
    @rule(place=PICK, action=ACTIONS)
    def operate(self, place: int, action: Callable[[Job, int], Change]) -> None:
        pair = self.snapshots(self.known(place))
        if pair is not None:
            self.old.append(pair)
            self.apply(lambda job: action(job, self.now), pair)

    @precondition(lambda self: self.old)
    @rule(place=PICK, action=ACTIONS)
    def operate_from_an_older_snapshot(
        self, place: int, action: Callable[[Job, int], Change]
    ) -> None:
        self.apply(lambda job: action(job, self.now), self.pick(self.old, place))

    @rule()
    def rescue(self) -> None:
        wanted = Filter(states=ACTIVE, lease_until=self.now)
        mine, theirs = self.read(lambda bench: bench.engine.find(wanted))
        assert plain(mine.jobs) == plain(theirs.jobs)
        for pair in zip(mine.jobs, theirs.jobs, strict=True):
            if actions.lapses(pair[0]):
                first, second = self.run(self._lost(pair))
                self.write(
                    lambda bench, a=first, b=second: bench.apply(a if bench is self.subject else b)
                )

    async def _lost(self, pair: Both[Job]) -> Both[Change]:
        return await self.subject.lost(pair[0]), await self.reference.lost(pair[1])

    @rule()
    def expire(self) -> None:
        wanted = Filter(states=WAITING, expires_until=self.now)
        mine, theirs = self.read(lambda bench: bench.engine.find(wanted))
        pairs = list(zip(mine.jobs, theirs.jobs, strict=True))
        if pairs:
            self.apply(lambda job: actions.expire(job, self.now), *pairs)

    @rule(limit=st.integers(1, 4), journal=st.sampled_from((0, 100)))
    def prune(self, limit: int, journal: int) -> None:
        service = self.subject.service
        places = {(service, queue): chosen for queue, chosen in self.settings.items()}
        order = Prune(
            now=self.now,
            cutoffs=tuple(cutoffs(places, self.now)),
            journal_before=self.now - journal if journal else 0,
            limit=limit,
        )
        self.write(lambda bench: bench.engine.prune(order))

    @rule(queue=st.sampled_from(QUEUES), settings=SETTINGS)
    def set_queue(self, queue: str, settings: QueueSettings) -> None:
        self.settings[queue] = settings
        self.write(lambda bench: bench.set_queue(settings, queue))

    @rule(by=st.sampled_from((*DELAYS, LEASE)))
    def tick(self, by: int) -> None:
        self.subject.now = self.reference.now = self.now + by

    @precondition(lambda self: self.repeat)
    @rule()
    def repeat_the_last_write(self) -> None:
        """As after a lost answer."""
        assert self.repeat is not None
        self.write(self.repeat)

    @precondition(lambda self: hasattr(self.subject.engine, "fault"))
    @rule(point=st.sampled_from(("before_commit", "after_commit")))
    def crash_the_next_write(self, point: str) -> None:
        self.crash_at = point

    # After every step

    @invariant()
    def look(self) -> None:
        """Compares what both hold, and checks what holds for the engine by itself."""
        self.run(self._look())

    async def _look(self) -> None:
        await self._follow_journal()
        mine, theirs = self.subject.engine, self.reference.engine
        page = await mine.find(Filter(), limit=10_000)
        ids = [job.id for job in page.jobs]
        assert ids == [job.id for job in (await theirs.find(Filter(), limit=10_000)).jobs]
        details = await mine.get(ids)
        assert plain(details) == plain(await theirs.get(ids))
        assert [d.job for d in details if d] == list(page.jobs)
        counted = await mine.count()
        assert counted == await theirs.count()
        for limit in {k.hash: k for k in KEYS}.values():
            status = await mine.key(self.subject.service, limit.hash)
            assert plain(status) == plain(await theirs.key(self.subject.service, limit.hash))
        self.jobs = {job.id: job for job in page.jobs}
        self.watch.check(page.jobs, counted, MAX_ACTIVE, self.now)

    async def _follow_journal(self) -> None:
        """Reads what is new in both journals. Where several changes may have been stored in parts,
        what happened to each job is in order, not all of it."""
        mine = await self.subject.engine.journal(self.after[0], 10_000)
        theirs = await self.reference.engine.journal(self.after[1], 10_000)
        if self.several and self.in_parts:
            assert plain(sorted(mine, key=_job_of)) == plain(sorted(theirs, key=_job_of))
        else:
            assert plain(mine) == plain(theirs)
        self.several = False
        if mine:
            self.after = [mine[-1].event.seq, theirs[-1].event.seq]
        for entry in mine:
            job_id = entry.event.job_id
            spec = self.specs.setdefault(job_id, self.drafted[job_id])
            self.watch.tell(entry.event, spec)

    def teardown(self) -> None:
        try:
            if sys.exc_info()[0] is None:  # else a step has failed, and that is the news
                self.drain()
        finally:
            self.read(lambda bench: bench.engine.close())
            self.runner.close()

    def drain(self) -> None:
        """Once nothing stands in the way, everything that can run comes to an end."""
        self.crash_at = None
        for queue in QUEUES:
            self.set_queue(queue, DEFAULTS)
        for _ in range(200):
            self.tick(10_000_000)
            self.expire()
            running = [job for job in self.jobs.values() if job.state is State.ACTIVE]
            for job in running:
                pair = self.snapshots(job.id)
                assert pair
                self.apply(lambda job: self.decided(job, Completed()), pair)
            self.claim("w1", list(QUEUES), 1000, LEASE)
            self.look()
            if all(job.state in FINAL | {State.BLOCKED} for job in self.jobs.values()):
                break
        for job in self.jobs.values():
            assert job.state in FINAL or self._waits_rightly(job), f"{job.id} is stuck {job.state}"

    def _waits_rightly(self, job: Job) -> bool:
        """A blocked job may be left only where a parent ended without success and it waits."""
        parents = [self.watch.stories[p].state for p in job.spec.depends_on]
        return job.state is State.BLOCKED and any(s is not State.COMPLETED for s in parents)


def _job_of(entry: Entry) -> str:
    return entry.event.job_id


async def reopened(engine: Engine) -> Engine:
    """The same engine, closed and opened again."""
    await engine.close()
    await engine.open()
    return engine


def engine_machine(
    make_engine: Callable[[], Engine],
    reopen: Callable[[Engine], Coroutine[Any, Any, Engine]] = reopened,
    *,
    in_parts: bool = False,
) -> type[EngineMachine]:
    """A state machine for the engines that `make_engine` makes, each on a store of its own.

    `reopen` gives the engine on the same store after a crash. An engine that makes the changes of
    one call `in_parts` promises that each of them is atomic, not all of them together.
    """

    class Machine(EngineMachine):
        def make_engine(self) -> Engine:
            return make_engine()

        async def reopen(self, engine: Engine) -> Engine:
            return await reopen(engine)

    Machine.in_parts = in_parts
    return Machine
