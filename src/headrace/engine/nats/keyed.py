"""Concurrency keys within a transaction: their records, and the jobs that are sure of their slots.

A job is *sure* if its key has room for every job that stands ready or runs, whatever becomes of
them. It starts and ends by plain messages, without a word in the record of its key: there it stands
as it was made. Whoever must know more looks it up (`_key`). Whoever takes the room away, because a
job has to wait, writes under the prefix of each sure one in the same step: their plain messages are
refused from then on, and they go by way of the record.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import cast

import msgspec

from headrace.core.model import Job, KeyLimit, NewJob, Stage
from headrace.core.states import FINAL, State
from headrace.engine.nats import layout as names
from headrace.engine.nats.parts import (
    MEMBERS,
    Domain,
    Draft,
    KeyRecord,
    Known,
    Note,
    Part,
    job_part,
    key_part,
    member_of,
)
from headrace.engine.nats.workspace import Workspace
from headrace.engine.records import KeyRow

replace = msgspec.structs.replace

SURE = 8
"""So many jobs of a key can be sure at a time: each may have to be looked up."""


class KeyedWorkspace(Workspace):
    """A workspace that knows of keys."""

    def __init__(self, base: int, recent: Mapping[Part, Known] | None = None) -> None:
        super().__init__(base, recent)
        self._roomy: set[Part] = set()
        """Keys with room for what the present operation adds, however their sure jobs stand."""

    def begin(self) -> Callable[[], None]:
        self._roomy = set()
        return super().begin()

    def expect(self, group: Sequence[NewJob]) -> None:
        """Says which jobs the present operation adds: where there is room for all of them, the sure
        ones of their keys need not be looked up. Where depth counts, they must be."""
        limits: defaultdict[Part, list[KeyLimit]] = defaultdict(list)
        for new in group:
            if new.key:
                limits[key_part(new.service, new.key.hash)].append(new.key)
        for part, wanted in limits.items():
            counts = any(limit.max_queued is not None for limit in wanted)
            lowest = min(limit.max_active for limit in wanted)
            if not counts and self._record(part).has_room(len(wanted), lowest):
                self._roomy.add(part)

    # Records

    def _record(self, part: Part) -> KeyRecord:
        return cast(KeyRecord, self._get(part))

    def _key(self, service: str, hash: str) -> KeyRecord:
        """A key as it stands."""
        part = key_part(service, hash)
        record = self._record(part)
        return record if part in self._roomy else self._looked_up(record)

    def _looked_up(self, record: KeyRecord) -> KeyRecord:
        """The record with its sure jobs as they are. One that has ended cannot come back but by a
        change of the record, so its own end needs no guard; but one that is not there may have been
        made since it was looked for, and before the record was read."""
        active, queued, members = record.row.active, record.row.queued, dict(record.members)
        for job_id, member in record.members.items():
            if not member.sure:
                continue
            domain = cast(Domain, self._peek(job_part(job_id)))
            job = domain.job
            if domain.last < member.seq:
                self._touching.add(job_part(job_id))
            if job is None or job.seq != member.seq or job.state in FINAL:
                del members[job_id]
                active -= member.active
                queued -= not member.active
                continue
            self._touching.add(job_part(job_id))
            if job.state is State.ACTIVE and not member.active:
                members[job_id] = replace(member_of(job), sure=member.sure)
                active, queued = active + 1, queued - 1
        return replace(record, row=KeyRow(active, queued, record.row.takeovers), members=members)

    def key_record(self, service: str, hash: str) -> KeyRecord:
        """A key as it stands, for those who only look."""
        return self._key(service, hash)

    def key(self, service: str, hash: str) -> KeyRow:
        return self._key(service, hash).row

    def peek_key(self, service: str, hash: str) -> KeyRow:
        """Likewise, where nothing depends on it."""
        return cast(KeyRecord, self._peek(key_part(service, hash))).row

    def set_key(self, service: str, hash: str, row: KeyRow) -> None:
        record = replace(self._key(service, hash), row=row)
        self._set_record(key_part(service, hash), record)

    def _set_record(self, part: Part, record: KeyRecord) -> None:
        """Writes a record; where not all of its jobs fit any more, none is sure."""
        if record.sure and not record.has_room():
            record = self._looked_up(record)
            for job_id in record.sure:
                self._bind(job_id)
            members = {
                id: replace(member, sure=0) if member.sure else member
                for id, member in record.members.items()
            }
            record = replace(record, members=members)
        self._set(part, record)

    def _bind(self, job_id: str) -> None:
        """A job that was sure goes by way of the record of its key from now on."""
        if not self._say_sure(job_id, False):
            domain = self._domain(job_id)
            self._add(Draft(job_id, names.PLACED, domain.job, told=domain.told))
            self._set(job_part(job_id), domain)

    def _say_sure(self, job_id: str, sure: bool) -> bool:
        """Whether there is a message of the job in this step to say it in."""
        place = self._newest.get(job_id)
        if place is None:
            return False
        self._redraft(place, replace(self.drafts[place], sure=sure))
        return True

    def _binds(self, job: Job) -> int:
        """How many others may have to be told that they are not sure any more, when a job stands
        ready or has to wait."""
        if job.key is None:
            return 0
        record = cast(KeyRecord, self._peek(key_part(job.service, job.key.hash)))
        starts = job.stage is Stage.READY and record.has_room(0, job.key.max_active)
        return 0 if starts else len(record.sure)

    @staticmethod
    def _has_room(record: KeyRecord, limit: int) -> bool:
        return len(record.sure) < SURE and record.has_room(1, limit)

    # Members

    def _place_in_key(self, old: Job | None, job: Job) -> None:
        if job.key is None:
            return
        if job.state in FINAL:
            if old is not None and old.state not in FINAL:
                self._leave_key(job)
            return
        record = self._key(job.service, job.key.hash)
        member = member_of(job)
        if old is None and _starts_plainly(job) and self._has_room(record, job.key.max_active):
            member = replace(member, sure=job.key.max_active)
            self._say_sure(job.id, True)
        if record.members.get(job.id) == member:
            return
        noted = old is not None and old.state not in FINAL and job.id not in record.members
        members = record.members | {job.id: member}
        record = replace(record, members=members, beyond=record.beyond - noted)
        self._set_small(key_part(job.service, job.key.hash), record)

    def _settle_in_key(self, job: Job) -> None:
        """A job is about to change: the record has it as it stands until then."""
        assert job.key
        record = self._key(job.service, job.key.hash)
        member = record.members.get(job.id)
        if member and member.sure:
            self._say_sure(job.id, False)
            members = record.members | {job.id: replace(member, sure=0)}
            self._set(key_part(job.service, job.key.hash), replace(record, members=members))

    def _leave_key(self, job: Job) -> None:
        """A job of a key ends."""
        assert job.key
        record = self._key(job.service, job.key.hash)
        if job.id in record.members:
            members = {id: m for id, m in record.members.items() if id != job.id}
            record = replace(record, members=members)
        else:
            record = replace(record, beyond=record.beyond - 1)
        self._set_small(key_part(job.service, job.key.hash), record)

    def _forget_in_key(self, job: Job) -> None:
        """A job is deleted that ended without a word in the record of its key."""
        assert job.key
        part = key_part(job.service, job.key.hash)
        if job.id in cast(KeyRecord, self._peek(part)).members:
            self._set_record(part, self._key(job.service, job.key.hash))

    def _set_small(self, part: Part, record: KeyRecord) -> None:
        """Keeps the record small."""
        if len(record.members) <= MEMBERS and record.beyond <= 0:
            self._set_record(part, record)
            return
        waiting = sorted(
            (member.place, id)
            for id, member in record.members.items()
            if not member.active and member.stage is not Stage.READY
        )
        horizon = record.horizon if record.beyond > 0 else None
        if len(record.members) > MEMBERS and len(waiting) > MEMBERS // 2:
            place = waiting[MEMBERS // 2][0]
            horizon = min(horizon, place) if horizon else place
        spilled = {id for place, id in waiting if horizon and place >= horizon}
        for _, id in waiting:
            if id in spilled:
                self.notes.append((part.of, part.name, Note(0, record.members[id].priority, id)))
                self.noted.append(len(self.touched) - 1)
        members = {id: m for id, m in record.members.items() if id not in spilled}
        beyond = record.beyond + len(spilled)
        record = replace(record, members=members, beyond=beyond, horizon=horizon)
        self._set_record(part, record)

    def _take_notes(self, service: str, hash: str) -> KeyRecord:
        """Reads on in the notes where no parked job is left in the record."""
        while True:
            record = self._key(service, hash)
            if record.beyond <= 0 or any(m.stage is Stage.PARKED for m in record.members.values()):
                return record
            known = Part("notes", hash, f"{service} {sum(record.taken.values())}")
            notes = cast(Sequence[Note], self._get(known))
            if not notes:
                return record
            members, taken = dict(record.members), dict(record.taken)
            beyond = record.beyond
            for note in notes:
                taken[note.priority] = max(note.seq, taken.get(note.priority, 0))
                job = self.job(note.job_id)
                fits = job and job.key and job.key.hash == hash and job.state not in FINAL
                if job and fits and job.priority == note.priority and job.id not in members:
                    members[job.id] = member_of(job)
                    beyond -= 1
            read = [members[note.job_id].place for note in notes if note.job_id in members]
            horizon = max(read) if read and beyond > 0 else None
            horizon = (horizon[0], horizon[1] + 1) if horizon else record.horizon
            record = replace(record, members=members, taken=taken, beyond=beyond, horizon=horizon)
            self._set_record(key_part(service, hash), record)

    # Lines

    def ready_ahead(self, job: Job) -> int:
        assert job.key
        return sum(
            other.stage is Stage.READY
            and other.queue == job.queue
            and other.priority <= job.priority
            and id != job.id
            for id, other in self._key(job.service, job.key.hash).members.items()
        )

    def parked(self, service: str, hash: str) -> list[Job]:
        members = self._take_notes(service, hash).members
        heads: dict[str, str] = {}
        for id, member in sorted(members.items(), key=lambda item: item[1].place):
            if member.stage is Stage.PARKED:
                heads.setdefault(member.queue, id)
        jobs = [self.job(heads[queue]) for queue in sorted(heads)]
        # Record and jobs may be of different moments: then the guards will tell.
        return [job for job in jobs if job and job.stage is Stage.PARKED]

    def first_of_key(self, service: str, hash: str, active: bool) -> str | None:
        members = self._key(service, hash).members
        wanted = [(member.seq, id) for id, member in members.items() if member.active == active]
        return min(wanted)[1] if wanted else None


def _starts_plainly(job: Job) -> bool:
    """Whether a new job can start by a plain message, as far as its key is not concerned."""
    spec = job.spec
    return (
        job.stage is Stage.READY
        and job.expires_at is None
        and job.run_at >= job.updated_at
        and spec.dedup is None
        and not spec.depends_on
        and not spec.lifo
    )
