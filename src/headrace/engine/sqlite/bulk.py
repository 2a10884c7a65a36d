"""Starting and finishing by the batch: jobs that need no closer look are written by statements
that take a whole batch, without going through the ledger one by one.

What is written is what `core.claims.started` and `core.change.written` say; the conformance suite
and the state machine hold both ways to the same behaviour.
"""

from __future__ import annotations

import msgspec

from headrace.core.change import Applied, Change, choose, written
from headrace.core.claims import ClaimRequest
from headrace.core.model import Job
from headrace.core.states import EventType, State
from headrace.engine.sqlite.rows import fetch_jobs
from headrace.engine.sqlite.sql import statement
from headrace.engine.sqlite.store import Store, Value, seqs
from headrace.engine.statements import LARGEST

_LINE = msgspec.json.Decoder(list[tuple[int, State]])


def start_line(
    store: Store, request: ClaimRequest, queue: str, room: int, newest: int
) -> tuple[list[Job], list[State]]:
    """Starts up to `room` jobs of a line; the jobs as they are now, and the states they had."""
    at_most = min(room, LARGEST)
    text = store.text(statement("line"), (request.service, queue, at_most))
    line = _LINE.decode(text)
    if not line:
        return [], []
    numbers = seqs(seq for seq, _ in line)
    lease_until = request.now + request.lease
    values = (newest, request.now, request.worker, numbers)
    store.execute(statement("journal_line"), values)
    store.execute(
        statement("start_line"), (newest, request.worker, lease_until, request.now, numbers)
    )
    jobs = fetch_jobs(store, statement("jobs_by_seq"), (numbers,))
    jobs.sort(key=_by_token)
    return jobs, [state for _, state in line]


def _by_token(job: Job) -> int:
    return job.token


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
        self._rows += (new.seq, version, new.updated_at, result)
        return Applied(new)

    def write(self, store: Store) -> None:
        if self._rows:
            store.write_rows("journal_finished", self._entries)
            store.write_rows("update_finished", self._rows)
