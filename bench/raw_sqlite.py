"""The raw limit on SQLite: a bare apsw loop that does the same rows, in the same batches, with the
same durability, and nothing else."""

from __future__ import annotations

import time
from pathlib import Path

import apsw
import msgspec

from headrace.core.model import Context, NewJob

SCHEMA = """
CREATE TABLE jobs(seq INTEGER PRIMARY KEY, id TEXT UNIQUE, queue TEXT, type TEXT, state TEXT,
    priority INT, tries INT, token INT, worker TEXT, lease_until INT, updated_at INT, spec BLOB);
CREATE INDEX ready ON jobs(queue, priority, seq) WHERE state = 'pending';
CREATE TABLE journal(seq INTEGER PRIMARY KEY, job INT, at INT, event TEXT, state TEXT,
    previous TEXT, queue TEXT, type TEXT, tries INT, worker TEXT);
"""
INSERT = "INSERT INTO jobs VALUES (?,?,'default','noop','pending',5,0,0,NULL,NULL,?,?)"
JOURNAL = "INSERT INTO journal VALUES (NULL,?,?,?,?,?,'default','noop',?,?)"
CLAIM = """UPDATE jobs SET state = 'active', tries = tries + 1, token = token + 1, worker = ?,
    lease_until = ? WHERE seq IN (SELECT seq FROM jobs WHERE state = 'pending' AND queue = 'default'
    ORDER BY priority, seq LIMIT ?) RETURNING seq, id, spec"""
FINISH = """UPDATE jobs SET state = 'completed', worker = NULL, lease_until = NULL, updated_at = ?
    WHERE seq = ? AND state = 'active'"""
NOW = 1_800_000_000_000
WORKER = "w-" + "0" * 26


class RawStore:
    """One file, one connection."""

    def __init__(self, path: Path) -> None:
        self.db = apsw.Connection(str(path))
        self.db.execute("PRAGMA journal_mode = wal; PRAGMA synchronous = full")
        self.db.execute(SCHEMA)
        self.seq = 0
        new = NewJob(
            id="0" * 26,
            service="default",
            type="noop",
            queue="default",
            payload=msgspec.Raw(b'{"n":12345}'),
            created_at=NOW,
            run_at=NOW,
            context=Context("0" * 26, f"00-{'0' * 32}-{'1' * 16}-01"),
        )
        self._spec = msgspec.json.encode(new)

    def insert(self, count: int) -> None:
        """One commit of `count` jobs, each with its journal row."""
        first = self.seq + 1
        self.seq += count
        numbers = range(first, self.seq + 1)
        created = ("created", "pending", None, 0, None)
        with self.db:
            self.db.executemany(INSERT, [(seq, f"{seq:026d}", NOW, self._spec) for seq in numbers])
            self.db.executemany(JOURNAL, [(seq, NOW, *created) for seq in numbers])

    def drain(self, batch: int) -> int:
        """Claims and finishes everything, two commits a batch."""
        done = 0
        completed = ("completed", "completed", "active", 1, WORKER)
        while True:
            with self.db:
                rows = self.db.execute(CLAIM, (WORKER, NOW, batch)).fetchall()
            if not rows:
                return done
            with self.db:
                self.db.executemany(FINISH, [(NOW, row[0]) for row in rows])
                self.db.executemany(JOURNAL, [(row[0], NOW, *completed) for row in rows])
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
