"""The mechanics of a commit, once, for every engine that has a transaction.

A `Ledger` carries out verdicts, claims and changes over the primitive reads and writes of
`Records` (records.py), inside one transaction of the engine. It holds no policy: what becomes of
a job is decided by core; the ledger sees to it that state, journal, slots, edges and dedup keys
move together.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from headrace.core import actions, admission, claims, edges, keys, rate
from headrace.core.admission import Facts, Holder, Outcome, Verdict
from headrace.core.change import (
    Answer,
    Applied,
    Change,
    NotApplied,
    Write,
    choose,
    repeated,
    written,
)
from headrace.core.claims import Claimed, ClaimRequest
from headrace.core.edges import EdgeState
from headrace.core.model import Job, NewJob, OnParentFailure, Stage, TryError
from headrace.core.queue import DEFAULTS, QueueSettings, RateLimit
from headrace.core.states import CLAIMABLE, FINAL, WAITING, EventType, State
from headrace.engine.protocol import JOURNAL_TOPIC, job_topic, work_topic, worker_topic
from headrace.engine.records import Edge, Happening, KeyRow, Records

PROMOTE = 1000
"""At most so many delayed jobs of a queue become ready in one claim."""

PASS = 1000
"""At most about so many ready jobs are expired or parked in one claim."""

# Python 3.11 takes 0.1 µs to find a member of an enum: what every job asks for has a name here.
_READY, _ACCEPTED = Stage.READY, Outcome.ACCEPTED
_BROKEN_TO_OPEN = (EdgeState.BROKEN, EdgeState.OPEN)


class Ledger:
    """One transaction's work. `topics` gathers whom to wake once it is committed."""

    def __init__(self, records: Records) -> None:
        self._records = records
        self._effects: deque[Callable[[], None]] = deque()
        self.topics: set[str] = set()
        self._rung: set[tuple[str, str]] = set()

    # Insert

    def insert_all(self, groups: Sequence[Sequence[NewJob]], now: int) -> list[tuple[Verdict, ...]]:
        """Takes groups in order. Most are one plain job like the last: for these there are no
        facts to look up, and the settings of the queue are known."""
        records = self._records
        answers: list[tuple[Verdict, ...]] = []
        service = queue = ""
        settings = DEFAULTS
        for group in groups:
            if len(group) == 1:
                new = group[0]
                if new.queue != queue or new.service != service:
                    service, queue = new.service, new.queue
                    settings = records.settings(service, queue)
                if admission.plain(new, settings) and records.job(new.id) is None:
                    job = self._create(new, settings, now)
                    answers.append((Verdict(_ACCEPTED, new.id, job=job),))
                    continue
            answers.append(self.insert(group, now))
        return answers

    def insert(self, group: Sequence[NewJob], now: int) -> tuple[Verdict, ...]:
        """Takes the whole group or nothing of it."""
        if len(group) == 1:
            return (self._admit(group[0], now),)
        undo = self._records.undoable()
        verdicts = [self._admit(new, now) for new in group]
        if all(verdict.taken for verdict in verdicts):
            return tuple(verdicts)
        undo()
        return tuple(
            Verdict(Outcome.REJECTED, verdict.job_id, admission.IN_GROUP)
            if verdict.taken
            else verdict
            for verdict in verdicts
        )

    def _admit(self, new: NewJob, now: int) -> Verdict:
        records = self._records
        settings = records.settings(new.service, new.queue)
        if admission.plain(new, settings) and records.job(new.id) is None:
            return Verdict(Outcome.ACCEPTED, new.id, job=self._create(new, settings, now))
        facts = self._facts(new)
        verdict = admission.admit(new, facts, now)
        if verdict.job is None or verdict.job.version:
            self._extend_window(new, verdict, now)
            return verdict
        for replaced_id in verdict.replaced:
            replaced = records.job(replaced_id)
            if replaced is not None:
                self._carry_out(actions.skip(replaced, now, f"replaced by {new.id}"), replaced)
        if verdict.replaced and new.depends_on:
            facts.parents = {parent: records.job(parent) for parent in new.depends_on}
            verdict = admission.reconsidered(verdict, new, facts, now)
        assert verdict.job
        seq = records.next_seq()
        job = msgspec.structs.replace(verdict.job, seq=seq, version=seq)
        policy = admission.creation_policy(verdict)
        records.record(Happening(None, job, None, policy))
        if new.depends_on or verdict.behind:
            self._tie(new, verdict.behind)
        if new.dedup:
            records.set_holder(new.service, new.dedup.key, admission.holder_after(new, now))
        job = self._place(None, job, now)
        if verdict.then is not None:
            job = self._write(job, verdict.then) or job
        self._run_effects()
        return msgspec.structs.replace(verdict, job=job, then=None)

    def _create(self, new: NewJob, settings: QueueSettings, now: int) -> Job:
        """A job that has no key, dedup key or parents."""
        records = self._records
        stage = Stage.DELAYED if new.run_at > now else _READY
        job = admission.created(new, settings, records.next_seq(), 0, stage)
        records.create(job)
        place = (new.service, new.queue)
        if place not in self._rung:
            self._rung.add(place)
            self.topics |= {work_topic(*place), JOURNAL_TOPIC}
        return job

    def _facts(self, new: NewJob) -> Facts:
        records = self._records
        facts = Facts(records.settings(new.service, new.queue), records.job(new.id))
        if facts.existing is not None:
            return facts
        if new.dedup:
            facts.holder = records.holder(new.service, new.dedup.key)
            facts.holder_job = records.job(facts.holder.job_id) if facts.holder else None
            facts.holder_behind = self._behind(facts.holder_job)
        if new.key:
            row = records.key(new.service, new.key.hash)
            facts.active, facts.queued = row.active, row.queued
            if new.key.max_queued is not None:
                facts.first_queued = records.first_of_key(new.service, new.key.hash, False)
                facts.first_active = records.first_of_key(new.service, new.key.hash, True)
        if new.depends_on:
            facts.parents = {parent: records.job(parent) for parent in new.depends_on}
        if facts.settings.max_entries is not None:
            facts.waiting = sum(records.counted(new.service, new.queue, s) for s in WAITING)
            facts.oldest_waiting = records.oldest_waiting(new.service, new.queue)
        return facts

    def _extend_window(self, new: NewJob, verdict: Verdict, now: int) -> None:
        if new.dedup and verdict.reason == "dedup-key":
            holder = self._records.holder(new.service, new.dedup.key)
            longer = holder and admission.extended(new, holder, now)
            if longer:
                self._records.set_holder(new.service, new.dedup.key, longer)

    def _behind(self, job: Job | None) -> Job | None:
        """The running owner that a blocked job of a dedup key waits behind."""
        if job is None or job.state is not State.BLOCKED:
            return None
        for edge in self._records.edges_from(job.id):
            if edge.state is EdgeState.OPEN and edge.parent_id not in job.spec.depends_on:
                return self._records.job(edge.parent_id)
        return None

    def _tie(self, new: NewJob, behind: str | None) -> None:
        """Writes the edges of a new job."""
        policies = dict.fromkeys(new.depends_on, new.on_parent_failure)
        if behind is not None:
            policies.setdefault(behind, OnParentFailure.RUN)
        for parent_id, policy in policies.items():
            parent = self._records.job(parent_id)
            assert parent is not None
            self._set_edge(Edge(parent_id, new.id, policy), parent)

    def _set_edge(self, edge: Edge, parent: Job) -> EdgeState:
        state = edges.edge_state(parent.state, edge.policy)
        ended = parent.state in FINAL
        self._records.set_edge(
            msgspec.structs.replace(
                edge,
                state=state,
                parent_state=parent.state if ended else None,
                result=parent.result if ended else None,
            )
        )
        return state

    # Claim

    def exchange(self, request: ClaimRequest, changes: Sequence[Change]) -> Claimed:
        """Makes changes, then claims."""
        answers = self.apply_all(changes)
        return msgspec.structs.replace(self.claim(request), answers=tuple(answers))

    def claim(self, request: ClaimRequest) -> Claimed:
        """Takes due jobs from the shares in turn, until the limit is reached."""
        records, jobs = self._records, list[Job]()
        promoted: set[str] = set()
        next_due: int | None = None
        for share in request.shares:
            room = min(share.at_most, request.limit - len(jobs))
            settings = records.settings(request.service, share.queue)
            if settings.paused:
                continue
            if share.queue not in promoted:
                promoted.add(share.queue)
                due = self._promote(request.service, share.queue, request.now)
                next_due = _sooner(next_due, due)
            if settings.max_active is not None:
                active = records.counted(request.service, share.queue, State.ACTIVE)
                room = min(room, settings.max_active - active)
            if settings.rate is not None:
                room, free_at = self._rated(request, share.queue, settings.rate, room)
                next_due = _sooner(next_due, free_at)
            if room > 0:
                taken, left = self._take(request, share.queue, room)
                jobs.extend(taken)
                if settings.rate is not None:
                    self._spend(request, share.queue, settings.rate, len(taken))
                if left:
                    next_due = request.now
        self._run_effects()
        return Claimed(tuple(jobs), next_due)

    def _promote(self, service: str, queue: str, now: int) -> int | None:
        """Puts due jobs into the ready line; returns when the next one is due."""
        records = self._records
        next_due = records.next_due(service, queue)
        if next_due is None or next_due > now:
            return next_due
        for job in records.due(service, queue, now, PROMOTE):
            records.save(job, msgspec.structs.replace(job, stage=self._stage(job, now)))
        return records.next_due(service, queue)

    def _take(self, request: ClaimRequest, queue: str, room: int) -> tuple[list[Job], bool]:
        """The jobs started, and whether it stopped before it had looked at enough."""
        records = self._records
        taken = records.start(request, queue, room)
        if taken:
            self._tell(taken)
        room -= len(taken)
        passed = 0
        while room > 0 and passed < PASS:
            line = records.ready(request.service, queue, room)
            for job in line:
                if job.expires_at is not None and job.expires_at <= request.now:
                    passed += 1
                    self._carry_out(actions.expire(job, request.now), job)
                elif (
                    job.key and records.key(job.service, job.key.hash).active >= job.key.max_active
                ):
                    passed += 1
                    records.save(job, msgspec.structs.replace(job, stage=Stage.PARKED))
                else:
                    started = self._write(job, claims.started(job, request))
                    assert started is not None
                    taken.append(started)
                    room -= 1
            if not line:
                return taken, False
        return taken, room > 0

    def _rated(
        self, request: ClaimRequest, queue: str, limit: RateLimit, room: int
    ) -> tuple[int, int | None]:
        """How many may start under the rate, and when more may."""
        arrival = self._records.arrival(request.service, queue)
        allowed = rate.allowed(limit, arrival, request.now)
        if allowed >= room:
            return room, None
        spent = rate.advanced(limit, arrival, request.now, allowed)
        return allowed, rate.next_start(limit, spent, request.now)

    def _spend(self, request: ClaimRequest, queue: str, limit: RateLimit, started: int) -> None:
        arrival = self._records.arrival(request.service, queue)
        arrival = rate.advanced(limit, arrival, request.now, started)
        self._records.set_arrival(request.service, queue, arrival)

    # Apply

    def apply_all(self, changes: Sequence[Change]) -> list[Answer]:
        """Makes changes in order; runs of those that end no more than their own job in one go."""
        answers: list[Answer] = []
        while len(answers) < len(changes):
            finished = self._records.finish(changes, len(answers))
            if finished:
                ended = [answer.job for answer in finished if answer.job]
                self._tell(ended)
                for service, queue in {(job.spec.service, job.queue) for job in ended}:
                    self._wake_capped(service, queue)
                answers += finished
            if len(answers) < len(changes):
                answers.append(self.apply(changes[len(answers)]))
        return answers

    def _tell(self, jobs: Sequence[Job]) -> None:
        """Wakes whoever watches these jobs."""
        self.topics.add(JOURNAL_TOPIC)
        self.topics.update([job_topic(job.spec.id) for job in jobs])

    def apply(self, change: Change) -> Answer:
        """Makes the first case whose guard fits."""
        stored = self._records.current(change.job)
        if stored is None:
            return NotApplied("the job does not exist", None)
        return self._carry_out(change, stored)

    def _carry_out(self, change: Change, stored: Job) -> Answer:
        write = choose(change, stored)
        if write is not None:
            if write.event is EventType.RETRIED and self._dedup_taken(stored):
                return NotApplied("another job holds its dedup key", stored)
            after = self._write(stored, write)
            self._run_effects()
            if after is not None:
                return Applied(after)
        if repeated(change, stored):
            return Applied(stored)
        if change.leaves_trace:
            self._note(stored, change.cases[0].write)
        return NotApplied(_why(change, stored), stored)

    def _note(self, job: Job, refused: Write) -> None:
        """Leaves a trace of a refused write in the journal, and the job as it is."""
        event = EventType.STALE_COMPLETION_IGNORED
        write = Write(event=event, at=refused.at, reason=str(refused.event))
        seq = self._records.next_seq()
        seen = msgspec.structs.replace(job, version=seq, updated_at=write.at)
        self._records.record(Happening(job, seen, write))
        self.topics.add(JOURNAL_TOPIC)

    def _dedup_taken(self, job: Job) -> bool:
        if job.spec.dedup is None:
            return False
        holder = self._records.holder(job.service, job.spec.dedup.key)
        if holder is None or holder.job_id == job.id:
            return False
        other = self._records.job(holder.job_id)
        return other is not None and other.state not in FINAL

    # One write and what follows from it

    def _write(self, job: Job, write: Write) -> Job | None:
        """Journals and saves one write; None where the transition table does not allow it."""
        records = self._records
        seq = records.next_seq()
        new = written(job, write, seq)
        if new is None:
            return None
        if write.clears:
            records.clear_history(job)
        if isinstance(write.error, TryError):
            records.add_error(job, write.error)
        if write.logs:
            records.add_logs(job, write.logs)
        takeovers = self._count_takeover(job) if write.takeover and job.key else None
        records.record(Happening(job, new, write, write.policy, takeovers))
        new = self._place(job, new, write.at)
        if job.worker and (write.event is EventType.CANCELLING or write.takeover):
            self.topics.add(worker_topic(job.worker))
        if new.state in FINAL:
            self._end(job, new, write)
        elif write.event is EventType.RETRIED:
            new = self._revive(new, write)
        elif write.frees_dedup and new.spec.dedup:
            holder = records.holder(new.service, new.spec.dedup.key)
            if holder and holder.job_id == new.id:
                records.set_holder(new.service, new.spec.dedup.key, None)
        return new

    def _place(self, old: Job | None, new: Job, now: int) -> Job:
        """Saves the job with its stage, keeps its key's counts, and wakes whom it concerns."""
        records, topics, key = self._records, self.topics, new.spec.key
        was = old.state if old is not None else None
        if key is not None:
            self._count_key(new, was is State.ACTIVE, was in WAITING)
        if new.state in CLAIMABLE:
            stage = self._stage(new, now)
            if stage is Stage.READY and was is State.ACTIVE and key and self._overtakes(new):
                stage = Stage.PARKED
            if stage is not Stage.PARKED:
                topics.add(work_topic(new.spec.service, new.queue))
            if stage is not new.stage:
                new = msgspec.structs.replace(new, stage=stage)
        records.save(old, new)
        topics.add(job_topic(new.spec.id))
        topics.add(JOURNAL_TOPIC)
        if old is not None and was is State.ACTIVE and new.state is not State.ACTIVE:
            self._wake_capped(old.service, old.queue)
        if (
            key is not None
            and old is not None
            and was not in FINAL
            and new.state is not State.ACTIVE
        ):
            self._later(lambda: self._refill(new))  # a start leaves no slot
        return new

    def _wake_capped(self, service: str, queue: str) -> None:
        """A place under the queue's cap is free."""
        if self._records.settings(service, queue).max_active is not None:
            self.topics.add(work_topic(service, queue))

    def _stage(self, job: Job, now: int) -> Stage:
        if job.run_at > now:
            return Stage.DELAYED
        if job.key:
            row = self._records.key(job.service, job.key.hash)
            if keys.parks(row.active, self._records.ready_ahead(job), job.key.max_active):
                return Stage.PARKED
        return Stage.READY

    def _overtakes(self, job: Job) -> bool:
        """Whether a job that gives its slot back would take it again before its turn."""
        assert job.key
        return any(
            head.queue == job.queue
            and (head.priority, head.position) < (job.priority, job.position)
            for head in self._records.parked(job.service, job.key.hash)
        )

    def _count_key(self, job: Job, was_active: bool, was_waiting: bool) -> None:
        assert job.key
        active = (job.state is State.ACTIVE) - was_active
        queued = (job.state in WAITING) - was_waiting
        if active or queued:
            row = self._records.key(job.service, job.key.hash)
            self._records.set_key(
                job.service,
                job.key.hash,
                KeyRow(row.active + active, row.queued + queued, row.takeovers),
            )

    def _count_takeover(self, job: Job) -> int:
        assert job.key
        row = self._records.key(job.service, job.key.hash)
        row = KeyRow(row.active, row.queued, row.takeovers + 1)
        self._records.set_key(job.service, job.key.hash, row)
        return row.takeovers

    def _refill(self, of: Job) -> None:
        """Lets parked jobs of the key into the ready lines while slots are free."""
        assert of.key
        records = self._records
        while True:
            moved = False
            for job in records.parked(of.service, of.key.hash):
                assert job.key
                row = records.key(of.service, of.key.hash)
                if not keys.parks(row.active, records.ready_ahead(job), job.key.max_active):
                    records.save(job, msgspec.structs.replace(job, stage=Stage.READY))
                    self.topics.add(work_topic(job.service, job.queue))
                    moved = True
            if not moved:
                return

    def _end(self, old: Job, new: Job, write: Write) -> None:
        records = self._records
        if new.spec.dedup:
            holder = records.holder(new.service, new.spec.dedup.key)
            if (
                holder
                and holder.job_id == new.id
                and (holder.held_until is None or holder.held_until <= write.at)
            ):
                owner = self._behind(old)
                lives = owner is not None and owner.state not in FINAL
                back = Holder(owner.id) if owner and lives else None
                records.set_holder(new.service, new.spec.dedup.key, back)
        if old.state not in FINAL and records.edges_to(new.id):
            self._later(lambda: self._fire(new, write.at))
        if write.discards:
            self._later(lambda: self._discard(new, write.at))

    def resume(self, parent_id: str, at: int) -> None:
        """Goes on telling the dependents of a job what became of it, where the store's
        transactions are too small to do that in one."""
        parent = self._records.job(parent_id)
        if parent is None:
            return
        if parent.state not in FINAL:
            self._reopen(parent, at)
        elif self._leaves(parent):
            self._discard(parent, at)
        else:
            self._fire(parent, at)
        self._run_effects()

    def _leaves(self, parent: Job) -> bool:
        """Whether a job is being deleted: dependents that could have waited for it no longer do."""
        return any(
            edges.edge_state(parent.state, edge.policy) is EdgeState.OPEN
            for edge in self._records.edges_to(parent.id, EdgeState.BROKEN)
        )

    def discard(self, job: Job, at: int) -> None:
        """Deletes a job that has ended, as retention orders."""
        self._discard(job, at)
        self._run_effects()

    def _discard(self, job: Job, at: int) -> None:
        """Deletes the job; dependents that still wait for it can wait no longer."""
        for edge in self._records.edges_to(job.id, EdgeState.OPEN):
            self._records.set_edge(msgspec.structs.replace(edge, state=EdgeState.BROKEN))
            child = self._records.job(edge.child_id)
            if child and child.state is State.BLOCKED:
                self._write(child, edges.unreachable(at, job.id, job.state))
        self._records.remove(job)

    def _fire(self, parent: Job, at: int) -> None:
        """Tells the dependents of a job that has ended."""
        for edge in self._records.edges_to(parent.id):
            if edge.state is EdgeState.SATISFIED:
                continue
            state = self._set_edge(edge, parent)
            child = self._records.job(edge.child_id)
            if child is None or child.state is not State.BLOCKED:
                continue
            if state is EdgeState.BROKEN:
                self._write(child, edges.unreachable(at, parent.id, parent.state))
            elif state is EdgeState.SATISFIED and child.waiting_on > 1:
                waiting_on = child.waiting_on - 1
                self._records.save(child, msgspec.structs.replace(child, waiting_on=waiting_on))
            elif state is EdgeState.SATISFIED:
                self._write(child, edges.released(at, child.run_at))

    def _revive(self, job: Job, write: Write) -> Job:
        """A job came back: it holds its dedup key again, dependents that it had made unreachable
        wait again, and so does the job itself where a parent has not ended yet."""
        self._hold(job)
        waiting_on = sum(edge.state is EdgeState.OPEN for edge in self._records.edges_from(job.id))
        if waiting_on:
            job = self._write(job, edges.still_waiting(write.at, waiting_on)) or job
        self._later(lambda: self._reopen(job, write.at))
        return job

    def _hold(self, job: Job) -> None:
        """A job that came back takes its dedup key again, if nobody has it."""
        if job.spec.dedup and self._records.holder(job.service, job.spec.dedup.key) is None:
            self._records.set_holder(job.service, job.spec.dedup.key, Holder(job.id))

    def _reopen(self, parent: Job, at: int) -> None:
        records = self._records
        for edge in records.edges_to(parent.id):
            if edge.state is EdgeState.SATISFIED:
                continue
            state = self._set_edge(edge, parent)
            child = records.job(edge.child_id)
            if child is None:
                continue
            if child.state is State.BLOCKED and (edge.state, state) == _BROKEN_TO_OPEN:
                # It was brought back without this parent, and still waits for another.
                waiting_on = child.waiting_on + 1
                records.save(child, msgspec.structs.replace(child, waiting_on=waiting_on))
            if child.state is not State.UNREACHABLE:
                continue
            states = [other.state for other in records.edges_from(child.id)]
            if EdgeState.BROKEN not in states and not self._dedup_taken(child):
                self._hold(child)
                waiting_on = len(states) - states.count(EdgeState.SATISFIED)
                back = self._write(child, edges.reblocked(at, waiting_on, parent.id))
                if back is not None:
                    self._later(lambda child=back: self._reopen(child, at))

    def _later(self, effect: Callable[[], None]) -> None:
        """Queues a follow-up of this same step; a queue, because chains can be long."""
        self._effects.append(effect)

    def _run_effects(self) -> None:
        while self._effects:
            self._effects.popleft()()


def _sooner(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else min(one, other)


def _why(change: Change, stored: Job) -> str:
    """Why no case fitted, for people."""
    token = change.cases[0].guard.token
    if token is not None and token != stored.token:
        return f"the lease was lost: the job is {stored.state} and its token has moved on"
    return f"the job is {stored.state}"
