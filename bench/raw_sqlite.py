"""The raw limit on SQLite: a bare apsw loop that does the same rows, in the same batches, with the
same durability, and nothing else."""

from __future__ import annotations

import time
from pathlib import Path

import apsw
import msgspec

from headrace.core.event import Event
from headrace.core.model import Context, NewJob
from headrace.core.states import EventType, State

SCHEMA = """
CREATE TABLE jobs(seq INTEGER PRIMARY KEY, id TEXT UNIQUE, queue TEXT, type TEXT, state TEXT,
    priority INT, tries INT, token INT, worker TEXT, lease_until INT, updated_at INT, spec BLOB);
CREATE INDEX ready ON jobs(queue, priority, seq) WHERE state = 'pending';
CREATE TABLE journal(seq INTEGER PRIMARY KEY, job INT, body BLOB);
"""
INSERT = "INSERT INTO jobs VALUES (?,?,'default','noop','pending',5,0,0,NULL,NULL,?,?)"
JOURNAL = "INSERT INTO journal(job, body) VALUES (?,?)"
CLAIM = """UPDATE jobs SET state = 'active', tries = tries + 1, token = token + 1, worker = 'w',
    lease_until = ? WHERE seq IN (SELECT seq FROM jobs WHERE state = 'pending' AND queue = 'default'
    ORDER BY priority, seq LIMIT ?) RETURNING seq, id, spec"""
FINISH = "UPDATE jobs SET state = 'completed', lease_until = NULL, updated_at = ? WHERE seq = ? AND state = 'active'"


class RawStore:
    """One file, one connection."""

    def __init__(self, path: Path) -> None:
        self.db = apsw.Connection(str(path))
        self.db.execute("PRAGMA journal_mode = wal; PRAGMA synchronous = full")
        self.db.execute(SCHEMA)
        self.seq = 0
        context = Context("0" * 26, f"00-{'0' * 32}-{'1' * 16}-01")
        now = 1_800_000_000_000
        self._spec = msgspec.json.encode(
            NewJob(
                id="0" * 26,
                service="default",
                type="noop",
                queue="default",
                payload=msgspec.Raw(b'{"n":12345}'),
                created_at=now,
                run_at=now,
                context=context,
            )
        )
        self._event = msgspec.json.encode(
            Event(
                seq=1_000_000,
                at=now,
                job_id="0" * 26,
                service="default",
                queue="default",
                type="noop",
                event=EventType.COMPLETED,
                state=State.COMPLETED,
                previous=State.ACTIVE,
                tries=1,
                max_tries=10,
                context=context,
            )
        )

    def insert(self, count: int) -> None:
        """One commit of `count` jobs, each with its journal row."""
        first = self.seq + 1
        self.seq += count
        with self.db:
            self.db.executemany(
                INSERT,
                [(seq, f"{seq:026d}", seq, self._spec) for seq in range(first, self.seq + 1)],
            )
            self.db.executemany(
                JOURNAL, [(seq, self._event) for seq in range(first, self.seq + 1)]
            )

    def drain(self, batch: int) -> int:
        """Claims and finishes everything."""
        done = 0
        while True:
            with self.db:
                rows = self.db.execute(CLAIM, (self.seq, batch)).fetchall()
            if not rows:
                return done
            with self.db:
                self.db.executemany(FINISH, [(self.seq, row[0]) for row in rows])
                self.db.executemany(JOURNAL, [(row[0], self._event) for row in rows])
            done += len(rows)


def enqueue_rate(store: RawStore, count: int, batch: int) -> float:
    """Jobs per second."""
    start = time.perf_counter()
    for _ in range(count // batch):
        store.insert(batch)
    return count / (time.perf_counter() - start)


def drain_rate(store: RawStore, batch: int) -> float:
    start = time.perf_counter()
    done = store.drain(batch)
    return done / (time.perf_counter() - start)
