"""Starting and finishing by the batch: jobs that need no closer look are written by statements
that take a whole batch, without going through the ledger one by one.

What is written is what `core.claims.started` and `core.change.written` say; the conformance suite
and the state machine hold both ways to the same behaviour.
"""

from __future__ import annotations

from typing import cast

import msgspec
from msgspec.structs import force_setattr

from headrace.core.change import Applied, Change, choose, written
from headrace.core.claims import ClaimRequest
from headrace.core.model import Job
from headrace.core.states import EventType, State
from headrace.engine.sqlite.rows import encode, with_results
from headrace.engine.sqlite.sql import statement
from headrace.engine.sqlite.store import Store, Value, seqs
from headrace.engine.statements import LARGEST

_LINE = msgspec.json.Decoder(list[tuple[State, Job]])


def start_line(
    store: Store, request: ClaimRequest, queue: str, room: int, newest: int
) -> tuple[list[Job], list[State]]:
    """Starts up to `room` jobs of a line; the jobs as they are now, and the states they had."""
    now, worker, lease_until = request.now, request.worker, request.now + request.lease
    alike = (
        f',"version":0,"state":"{State.ACTIVE}","event":"{EventType.STARTED}","updated_at":{now}'
        f',"worker":{encode(worker).decode()},"lease_until":{lease_until},"started_at":{now},"spec":'
    )
    values = (request.service, queue, min(room, LARGEST), alike)
    row = store.fetch(statement("line"), values)
    if row is None or row[0] is None:
        return [], []
    line = _LINE.decode(cast(str, row[0]))
    states = [state for state, _ in line]
    jobs = with_results([job for _, job in line], row[1])
    for version, job in enumerate(jobs, newest + 1):
        force_setattr(job, "version", version)  # nobody else has it yet
        force_setattr(job, "token", version)
    numbers = seqs(job.seq for job in jobs)
    store.execute(statement("journal_line"), (newest, now, worker, numbers))
    store.execute(statement("start_line"), (newest, worker, lease_until, now, numbers))
    return jobs, states


def only_completes(change: Change) -> bool:
    """Whether the change can do no more than complete a job whose end concerns no other."""
    if len(change.cases) != 1:
        return False
    write, job = change.cases[0].write, change.job
    return (
        write.event is EventType.COMPLETED
        and not write.discards
        and write.reason is None
        and job.spec.key is None
        and job.spec.dedup is None
        and job.deadline is None
    )


class Finishing:
    """Gathers completions, and writes them."""

    def __init__(self) -> None:
        self._rows: list[Value] = []
        self._entries: list[Value] = []

    def add(self, change: Change, stored: Job, version: int) -> Applied | None:
        """The answer; None where the guard or the table does not allow the change."""
        write = choose(change, stored)
        new = None if write is None else written(stored, write, version)
        if new is None:
            return None
        result = None if new.result is None else bytes(new.result)
        self._entries += (new.seq, version, new.updated_at)
        self._rows += (new.seq, stored.version, version, new.updated_at, result)
        return Applied(new)

    def write(self, store: Store) -> bool:
        """Whether all jobs were as they were taken to be; if not, all of it must be taken back."""
        if not self._rows:
            return True
        store.write_rows("journal_finished", self._entries)
        return store.write_rows("update_finished", self._rows) == len(self._entries) // 3
