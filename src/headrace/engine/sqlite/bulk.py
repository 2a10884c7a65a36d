"""Starting and finishing by the batch: jobs that need no closer look are written by statements
that take a whole batch, without going through the ledger one by one.

What is written is what `core.claims.started` and `core.change.completed` say; the conformance suite
and the state machine hold both ways to the same behaviour.
"""

from __future__ import annotations

from typing import cast

import msgspec
from msgspec.structs import force_setattr

from headrace.core.change import Change, choose, completed
from headrace.core.claims import ClaimRequest
from headrace.core.model import Job
from headrace.core.states import EventType, State
from headrace.engine.sqlite.rows import encode, with_results
from headrace.engine.sqlite.sql import statement
from headrace.engine.sqlite.store import Store, Value, seqs
from headrace.engine.statements import LARGEST

_ACTIVE = State.ACTIVE  # asked for by every job, and Python 3.11 takes 0.1 µs to find a member
_LINE = msgspec.json.Decoder(list[Job])


def start_line(
    store: Store, request: ClaimRequest, queue: str, room: int, newest: int
) -> tuple[list[Job], int]:
    """Starts up to `room` jobs of a line; the jobs as they are now, and how many of them waited for
    another try (`retry`) instead of their first (`pending`)."""
    now, worker, lease_until = request.now, request.worker, request.now + request.lease
    alike = (
        f',"version":0,"state":"{State.ACTIVE}","event":"{EventType.STARTED}"'
        f',"queue":{encode(queue).decode()},"type":',
        f',"updated_at":{now},"tries":',
        f',"worker":{encode(worker).decode()},"lease_until":{lease_until},"started_at":{now}',
    )
    values = (request.service, queue, min(room, LARGEST), *alike)
    row = store.fetch(statement("line"), values)
    if row is None or row[0] is None:
        return [], 0
    jobs = with_results(_LINE.decode(cast(str, row[0])), row[1])
    for version, job in enumerate(jobs, newest + 1):
        force_setattr(job, "version", version)  # nobody else has it yet
        force_setattr(job, "token", version)
    numbers = seqs([job.seq for job in jobs])
    store.execute(statement("journal_line"), (newest, now, worker, numbers))
    store.execute(statement("start_line"), (newest, worker, lease_until, now, numbers))
    return jobs, cast(int, row[2])


class Finishing:
    """Gathers completions, and writes them."""

    def __init__(self) -> None:
        self._rows: list[Value] = []
        self._entries: list[Value] = []

    def add(self, change: Change, stored: Job, version: int) -> Job | None:
        """The job as it is then; None where the guard or the table does not allow the change."""
        write = choose(change, stored)
        if write is None or stored.state is not _ACTIVE:
            return None
        new = completed(stored, write, version)
        result = None if new.result is None else bytes(new.result)
        self._entries += (new.seq, version, write.at)
        self._rows += (new.seq, stored.version, version, write.at, result)
        return new

    def write(self, store: Store) -> bool:
        """Whether all jobs were as they were taken to be; if not, all of it must be taken back."""
        if not self._rows:
            return True
        store.write_rows("journal_finished", self._entries)
        return store.change_rows("update_finished", self._rows) == len(self._entries) // 3
