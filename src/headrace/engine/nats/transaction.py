"""A transaction: `Records` over what was read from the stream, whose writes become messages.

The ledger runs on it as on any store. What it writes is gathered; nothing is stored until the whole
of it is, in one atomic batch in which everything that was read is guarded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import cast

import msgspec

from headrace.core.admission import Holder
from headrace.core.change import Answer, Applied, Change, choose, completed, completes_plainly
from headrace.core.claims import ClaimRequest, begun
from headrace.core.edges import EdgeState
from headrace.core.model import Job, LogEntry, Stage, TryError
from headrace.core.queue import DEFAULTS, QueueSettings
from headrace.core.states import FINAL, WAITING, State
from headrace.engine.nats import layout as names
from headrace.engine.nats import message
from headrace.engine.nats.keyed import KeyedWorkspace
from headrace.engine.nats.parts import (
    Domain,
    Draft,
    KeyRecord,
    Known,
    Part,
    Rules,
    Tally,
    Timer,
    job_part,
    key_part,
    lease_timer,
    member_of,
)
from headrace.engine.records import Edge, Happening, KeyRow

replace = msgspec.structs.replace


FEW = 100
"""The dependents of a job are told in one step if there are no more of them."""

STEP = 300
"""Else in steps of about so many messages."""

WEIGHT = 4 << 20
"""And of about so many bytes: each of them is told the result."""


BUDGET = 900
"""A batch holds 1000 messages: a claim that needs more is made in several steps."""


def _comes_sooner(old: Job | None, new: Job) -> bool:
    """Whether a lease ends at a time that its timer cannot tell of: that moves on, never back."""
    if new.lease_until is None:
        return False
    return old is None or old.lease_until is None or new.lease_until < old.lease_until


def _ends_alone(domain: Domain, record: KeyRecord | None) -> bool:
    """Whether nobody waits for the end of a job: no dependent, no other job of its key."""
    assert domain.job
    if domain.children or domain.job.spec.dedup:
        return False
    return record is None or all(m.stage is not Stage.PARKED for m in record.members.values())


ReadRules = Callable[[str, str], Rules | None]


class Transaction(KeyedWorkspace):
    """`Records` over a workspace."""

    def __init__(
        self, base: int, rules: ReadRules, recent: Mapping[Part, Known] | None = None
    ) -> None:
        super().__init__(base, recent)
        self._read_rules = rules
        self._rules: dict[tuple[str, str], Rules] = {}

    # Jobs

    def current(self, snapshot: Job) -> Job | None:
        return self.job(snapshot.id)

    def record(self, entry: Happening) -> None:
        job_id = entry.new.id
        domain = self._domain(job_id)
        error, clears = self._aside.pop(job_id, (None, False))
        event = entry.event()
        told = bool(error or event.logs) or (domain.told and not clears)
        self._add(Draft(job_id, str(event.event), domain.job, event, error, clears, told))

    def create(self, job: Job) -> None:
        self.record(Happening(None, job))
        self.save(None, job)

    def save(self, old: Job | None, new: Job) -> None:
        part = job_part(new.id)
        domain = self._domain(new.id)
        if new.key and domain.job:
            self._settle_in_key(domain.job)
        place = self._newest.get(new.id)
        told = domain.told
        if place is None or not self.drafts[place].open:
            self._add(Draft(new.id, names.PLACED, new, told=told))
        else:
            before = self.drafts[place]
            told = before.told
            self._redraft(place, replace(before, job=new))
        self._set(part, replace(domain, job=new, told=told))
        self._place_in_key(domain.job, new)
        self._count(domain.job, new)
        self._set_timers(domain.job, new)

    def remove(self, job: Job) -> None:
        domain = self._domain(job.id)
        if domain.job is None or job.id in self.unfinished:
            return
        self._add(Draft(job.id, names.REMOVED, None))
        self._set(job_part(job.id), replace(domain, job=None, told=False, parents={}))
        if job.key:
            self._forget_in_key(job)
        self._count(domain.job, None)

    def renew(self, job: Job, until: int) -> Job:
        """Moves the end of a lease."""
        domain = self._domain(job.id)
        renewed = replace(job, lease_until=until)
        self._add(Draft(job.id, names.HEARTBEAT, renewed, told=domain.told))
        self._set(job_part(job.id), replace(domain, job=renewed))
        return renewed

    def _set_timers(self, old: Job | None, new: Job) -> None:
        if new.stage is Stage.DELAYED and (
            old is None or (old.stage, old.run_at, old.queue) != (new.stage, new.run_at, new.queue)
        ):
            self.watch(Timer(new.service, new.queue, f"run.{new.id}", new.run_at))
        if (
            new.expires_at is not None
            and new.state in WAITING
            and (old is None or old.state not in WAITING or old.expires_at != new.expires_at)
        ):
            self.watch(Timer(new.service, names.WATCH, f"expire.{new.id}", new.expires_at))
        if new.detached and _comes_sooner(old, new):
            self.watch(lease_timer(new.service, [new.id], new.lease_until or 0))

    def watch(self, timer: Timer) -> None:
        """Has someone look at a moment."""
        self.timers.append(timer)
        self.timed.append(len(self.touched) - 1)

    # History

    def add_error(self, job: Job, error: TryError) -> None:
        self._aside[job.id] = (error, self._aside.get(job.id, (None, False))[1])

    def add_logs(self, job: Job, entries: Sequence[LogEntry]) -> None:
        """They are in the event."""

    def clear_history(self, job: Job) -> None:
        self._aside[job.id] = (None, True)

    # Lines: over what is known; the engine sees to it that what matters is

    def start(self, request: ClaimRequest, queue: str, room: int) -> list[Job]:
        started: list[Job] = []
        for job in self.ready(request.service, queue, room):
            found = self._plain(job.spec.id)
            if found is None:
                break
            domain, record = found
            if job.spec.key and record and record.row.active >= job.spec.key.max_active:
                break
            new = begun(job, request, self.next_seq())
            self._write_plainly(domain, record, new, message.started(new, job.state))
            started.append(new)
        return started

    def finish(self, changes: Sequence[Change], first: int) -> list[Answer]:
        answers: list[Answer] = []
        for change in islice(changes, first, None):
            found = self._plain(change.job.spec.id)
            if found is None:
                break
            domain, record = found
            job = domain.job
            assert job
            write = choose(change, job)
            if write is None or not completes_plainly(write) or not _ends_alone(domain, record):
                break
            new = completed(job, write, self.next_seq())
            self._write_plainly(domain, record, new, message.completed(new, job.worker))
            answers.append(Applied(new))
        return answers

    def _plain(self, job_id: str) -> tuple[Domain, KeyRecord | None] | None:
        """A job and the record of its key, where nothing else is kept of it or counted than what
        the messages of its start and its end tell."""
        domain = self._domain(job_id)
        job = domain.job
        if (
            job is None
            or domain.told
            or job_id in self._newest
            or not message.tells_all(job)
            or self._counts(job.spec.service, job.queue)
        ):
            return None
        key = job.spec.key
        if key is None:
            return domain, None
        record = self._key(job.spec.service, key.hash)
        return (domain, record) if record.beyond <= 0 and job_id in record.members else None

    def _write_plainly(
        self, domain: Domain, record: KeyRecord | None, new: Job, body: bytes
    ) -> None:
        """Writes the start or the end of a job, and what becomes of its key."""
        spec = new.spec
        self._add(Draft(spec.id, str(new.event), new, body=body))
        self._set(job_part(spec.id), replace(domain, job=new))
        if record is None or spec.key is None:
            return
        active, queued, takeovers = record.row.active, record.row.queued, record.row.takeovers
        members = dict(record.members)
        if new.state is State.ACTIVE:
            row = KeyRow(active + 1, queued - 1, takeovers)
            members[spec.id] = member_of(new)
        else:
            row = KeyRow(active - 1, queued, takeovers)
            del members[spec.id]
        self._set(key_part(spec.service, spec.key.hash), replace(record, row=row, members=members))

    def _jobs(self, service: str, queue: str, stage: Stage) -> Iterable[Job]:
        for part in {**self.known, **self.values}:
            if part.kind == "job":
                domain: Domain = (
                    self.values[part] if part in self.values else self.known[part].value
                )
                job = domain.job
                if job and job.stage is stage and (job.service, job.queue) == (service, queue):
                    yield job

    def ready(self, service: str, queue: str, limit: int) -> list[Job]:
        jobs = sorted(
            self._jobs(service, queue, Stage.READY), key=lambda job: (job.priority, job.position)
        )
        return self._affordable(jobs[:limit])

    def _affordable(self, jobs: list[Job]) -> list[Job]:
        """As many of them as can be written about, each with the record of its key and the others
        of the key that must be told."""
        room = BUDGET - len(self.drafts) - len(self.values)
        for number, job in enumerate(jobs):
            room -= 3 + self._binds(job)
            if room < 0:
                self.cut_short = True
                return jobs[:number]
        return jobs

    def due(self, service: str, queue: str, now: int, limit: int) -> list[Job]:
        jobs = [j for j in self._jobs(service, queue, Stage.DELAYED) if j.run_at <= now]
        jobs.sort(key=lambda job: (job.run_at, job.seq))
        return self._affordable(jobs[:limit])

    def next_due(self, service: str, queue: str) -> int | None:
        return min((j.run_at for j in self._jobs(service, queue, Stage.DELAYED)), default=None)

    # Queues

    def settings(self, service: str, queue: str) -> QueueSettings:
        place = (service, queue)
        rules = self._rules.get(place)
        if rules is None:
            rules = self._read_rules(service, queue)
            if rules is None:
                self.missing.add(Part("settings", queue, service))
                return DEFAULTS
            self._rules[place] = rules
        return rules.settings

    def abide(self, service: str, queue: str) -> None:
        """What is done here is done only if the settings of the queue are still as they were."""
        rules = self._rules.get((service, queue))
        if rules is not None:
            part = Part("settings", queue, service)
            self._touching.add(part)
            self.abided[part] = rules.last

    def _counts(self, service: str, queue: str) -> bool:
        settings = self.settings(service, queue)
        return settings.max_active is not None or settings.max_entries is not None

    def _tally(self, service: str, queue: str) -> Tally:
        part = Part("tally", queue, service)
        tally = cast(Tally, self._get(part))
        if not tally.counting and part not in self.missing and self._counts(service, queue):
            self.missing.add(Part("census", queue, service))
        return tally

    def counted(self, service: str, queue: str, state: State) -> int:
        return self._tally(service, queue).counts.get(state, 0)

    def _count(self, old: Job | None, new: Job | None) -> None:
        if old and new and old.state is new.state and old.queue == new.queue:
            return
        for job, step in ((old, -1), (new, 1)):
            if job is None or not self._counts(job.service, job.queue):
                continue
            tally = self._tally(job.service, job.queue)
            counts = tally.counts | {job.state: tally.counts.get(job.state, 0) + step}
            self._set(Part("tally", job.queue, job.service), replace(tally, counts=counts))

    def correct(self, part: Part, seen: Known, counts: dict[State, int]) -> None:
        """Puts right what is counted of a queue, if it is still as it was seen."""
        tally = cast(Tally, self._get(part))
        if part in self.known and self.known[part].last == seen.last:
            self._set(part, replace(tally, counts=counts))

    def oldest_waiting(self, service: str, queue: str) -> str | None:
        waiting: list[str] = self._get(Part("waiting", queue, service))
        for job_id in waiting:
            job = self.job(job_id)
            if job and job.state in WAITING and job.queue == queue:
                return job_id
        jobs = [
            job
            for part, domain in self.values.items()
            if part.kind == "job"
            and (job := cast(Domain, domain).job)
            and (job.service, job.queue) == (service, queue)
            and job.state in WAITING
        ]
        return min(jobs, key=lambda job: job.seq).id if jobs else None

    def arrival(self, service: str, queue: str) -> int:
        return cast(Tally, self._get(Part("tally", queue, service))).arrival

    def set_arrival(self, service: str, queue: str, arrival: int) -> None:
        part = Part("tally", queue, service)
        self._set(part, replace(cast(Tally, self._get(part)), arrival=arrival))

    # The journal

    def raise_floor(self, floor: int) -> None:
        """Entries up to here are of no more interest."""
        part = Part("floor", "")
        self._set(part, max(floor, cast(int, self._get(part))))

    # Dedup keys

    def holder(self, service: str, key: str) -> Holder | None:
        return self._get(Part("dedup", key, service))

    def set_holder(self, service: str, key: str, holder: Holder | None) -> None:
        part = Part("dedup", key, service)
        self._get(part)
        self._set(part, holder)

    # Edges: a dependent keeps what it knows of its parents, a parent only who depends on it

    def alone(self, job_id: str) -> bool:
        """Whether nothing is kept beside a job: no dependents, no errors or logs."""
        domain = cast(Domain, self._peek(job_part(job_id)))
        return not domain.children and not domain.told

    def edges_to(self, parent_id: str, state: EdgeState | None = None) -> list[Edge]:
        parent = self._domain(parent_id)
        children = [cast(Domain, self._peek(job_part(child))) for child in parent.children]
        edges = [edge for child in children if (edge := child.parents.get(parent_id))]
        left = room = max(0, STEP - self.owner.count(len(self.touched) - 1))
        if parent.job is not None and parent.job.result is not None:
            room = min(room, max(1, WEIGHT // len(bytes(parent.job.result))))
        few = len(edges) <= min(FEW, room) and len(self._tellable(edges, left)) == len(edges)
        if parent.job is None or few:
            self.touched[-1] |= {job_part(child) for child in parent.children}
            return [edge for edge in edges if state in (None, edge.state)]
        if state is EdgeState.BROKEN:
            return [edge for edge in edges if edge.state is state]
        ended = parent.job.state in FINAL
        concerned = [
            edge
            for edge in edges
            if edge.state is not EdgeState.SATISFIED
            and (edge.state is state if state else (edge.parent_state is None) == ended)
        ]
        told = self._tellable(concerned[:room], left)
        if len(concerned) > len(told):
            self._assign(self.unfinished, parent_id, len(self.touched) - 1)
        return told

    def _tellable(self, edges: list[Edge], room: int) -> list[Edge]:
        """As many of them as can be told with so many messages, where others of their keys must be
        told of each that comes into line."""
        for number, edge in enumerate(edges):
            child = cast(Domain, self._peek(job_part(edge.child_id))).job
            room -= 1 + (self._binds(child) if child else 0)
            if room < 0:
                return edges[:number]
        return edges

    def _look_closer_at(self, parent: Domain) -> None:
        """A job that could be started on its own no longer can once others depend on it: it gets a
        ticket that says so."""
        job = parent.job
        if not parent.children and job and job.stage is Stage.READY:
            self.save(job, job)

    def edges_from(self, child_id: str) -> list[Edge]:
        return list(self._domain(child_id).parents.values())

    def set_edge(self, edge: Edge) -> None:
        child, parent = self._domain(edge.child_id), self._domain(edge.parent_id)
        known = edge.parent_id in child.parents
        if not known:
            self._look_closer_at(parent)
            parent = self._domain(edge.parent_id)
            others = tuple(id for id in parent.children if id != edge.child_id)
            self._set(job_part(edge.parent_id), replace(parent, children=(*others, edge.child_id)))
            child = self._domain(edge.child_id)
        parents = child.parents | {edge.parent_id: edge}
        self._set(job_part(edge.child_id), replace(child, parents=parents))
