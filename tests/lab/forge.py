"""Histories made by hand: a run of a few jobs that is as it should be, to be spoilt at will."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from headrace.testing.lab.history import Entry, History, Plan, QueueRules, Stored
from headrace.testing.lab.notes import (
    Answer,
    Answered,
    AnyNote,
    End,
    Intended,
    Settled,
    Spec,
    Start,
)
from headrace.testing.lab.rules import FINAL

T0 = 1_900_000_000_000
"""When a forged run begins, by its wall clock, in milliseconds."""
LEASE = 2000

PLAN = Plan(
    engine="forged",
    url="",
    seed=1,
    lease=LEASE,
    concurrency=2,
    mono=0,
    wall=T0,
    queues={
        "default": QueueRules(),
        "capped": QueueRules(max_active=1),
        "rated": QueueRules(rate=(10, 1000, 2)),
        "brief": QueueRules(forgets=("completed",)),
    },
)


class Forge:
    """Writes a history the way an engine and its processes would. `ms` is the time since the
    run's begin; what handlers do has the same time by the monotonic clock."""

    def __init__(self, plan: Plan = PLAN) -> None:
        self.plan = plan
        self.entries: list[Entry] = []
        self.notes: list[AnyNote] = []
        self.specs: dict[str, Spec] = {}
        self.last: dict[str, Entry] = {}
        self.tokens: dict[str, int] = {}
        self.results: dict[str, int] = {}
        self.gone: set[str] = set()

    def mono(self, ms: int) -> int:
        return self.plan.mono + ms * 1_000_000

    def note(self, note: AnyNote, ms: int, pid: int = 1) -> None:
        self.notes.append(msgspec.structs.replace(note, mono=self.mono(ms) or 1, pid=pid))

    # Jobs

    def spec(self, job: str, ms: int = 0, **fields: Any) -> Spec:
        at = self.plan.wall + ms
        fields = {"queue": "default", "type": "step", "created_at": at, "run_at": at, **fields}
        return Spec(id=job, **fields)

    def create(self, job: str, ms: int = 0, state: str = "pending", **fields: Any) -> Spec:
        """A confirmed job."""
        spec = self.specs[job] = self.spec(job, ms, **fields)
        self.note(Intended(jobs=(spec,)), ms)
        delayed = spec.run_at if spec.run_at > spec.created_at and state == "pending" else None
        self.add(job, "created", ms, state, run_at=delayed, previous=None)
        self.note(Answered(answers=(Answer(job, "accepted"),)), ms + 1)
        return spec

    def add(self, job: str, event: str, ms: int, state: str, **fields: Any) -> Entry:
        """One entry, going on from the last."""
        last, spec = self.last.get(job), self.specs.get(job)
        seq = self.entries[-1].seq + 1 if self.entries else 1
        given: dict[str, Any] = {
            "previous": last.state if last else None,
            "tries": last.tries if last else 0,
            "max_tries": 3,
            "queue": spec.queue if spec else "default",
            "deadline": spec.deadline if spec else None,
            "key": spec.key if spec else None,
            "worker": last.worker if last and last.state == "active" else None,
        }
        entry = Entry(
            seq=seq,
            at=self.plan.wall + ms,
            job=job,
            event=event,
            state=state,
            **{**given, **fields},
        )
        self.entries.append(entry)
        self.last[job] = entry
        return entry

    def start(self, job: str, ms: int, worker: str = "w1", pid: int = 11, **fields: Any) -> int:
        """Claimed and begun; returns the token."""
        tries = self.last[job].tries + 1
        fields = {"tries": tries, "worker": worker, **fields}
        token = self.add(job, "started", ms, "active", **fields).seq
        self.tokens[job] = token
        number = fields["tries"]
        self.note(Start(job=job, number=number, token=token, worker=worker), ms, pid)
        return token

    def finish(
        self, job: str, ms: int, event: str = "completed", state: str = "", pid: int = 11, **f: Any
    ) -> Entry:
        """The handler returns and its outcome is stored."""
        token = self.tokens[job]
        self.note(End(job=job, token=token, how=event), ms, pid)
        entry = self.add(job, event, ms, state or event, **f)
        settled = Settled(job=job, token=token, applied=True, event=event, version=entry.seq)
        self.note(settled, ms + 1, pid)
        if event == "completed":
            self.results[job] = token
        return entry

    def lose(self, job: str, ms: int) -> Entry:
        """The lease has run out."""
        worker = self.last[job].worker
        error = f"LeaseLost: worker {worker} stopped renewing its lease"
        return self.add(job, "retry", ms, "retry", error=error)

    def run(self, job: str, ms: int, **fields: Any) -> None:
        """A job from its creation to its completion."""
        self.create(job, ms, **fields)
        self.start(job, ms + 10)
        self.finish(job, ms + 20)

    # The whole

    def history(self) -> History:
        stored: dict[str, Stored] = {}
        for job in {entry.job: None for entry in self.entries}:
            told = [
                entry
                for entry in self.entries
                if entry.job == job and entry.event != "stale_completion_ignored"
            ]
            if told and job not in self.gone:
                last = told[-1]
                stored[job] = Stored(
                    id=job,
                    state=last.state,
                    version=last.seq,
                    tries=last.tries,
                    token=self.tokens.get(job, 0),
                    result_token=self.results.get(job) if last.state in FINAL else None,
                )
        return History(self.plan, list(self.entries), stored, list(self.notes))


Forgery = Callable[[Forge], None]
