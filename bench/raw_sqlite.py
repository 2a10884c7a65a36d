"""The raw limit on SQLite: a bare apsw loop that writes the same rows into the same tables, in the
same batches, with the same durability, and nothing else.

The tables and their indexes are the engine's own, because a row costs what its indexes cost. The
loop does less than the engine all the same: it decides nothing, keeps no counts, and a claim
leaves no entry in its journal.
"""

from __future__ import annotations

import time
from pathlib import Path

import apsw
import msgspec

from headrace.core.model import Context, NewJob
from headrace.engine.sqlite.schema import MIGRATIONS

INSERT = """INSERT INTO jobs (seq, id, version, service, queue, type, state, stage, priority,
    position, run_at, max_tries, waiting_on, created_at, updated_at)
    VALUES (?1, ?2, ?1, 'default', 'default', 'noop', 'pending', 'ready', 5, ?1, ?3, 10, 0, ?3,
    ?3)"""
SPEC = "INSERT INTO specs (job, body) VALUES (?, ?)"
JOURNAL = """INSERT INTO journal (job, before, at, event, state, previous, queue, type, tries,
    worker) VALUES (?, ?, ?, ?, ?, ?, 'default', 'noop', ?, ?)"""
CLAIM = """UPDATE jobs SET state = 'active', event = 'started', stage = '', tries = tries + 1,
    token = token + 1, worker = ?1, lease_until = ?2, started_at = ?2, updated_at = ?2
    WHERE seq IN (SELECT seq FROM jobs WHERE service = 'default' AND queue = 'default'
    AND stage = 'ready' ORDER BY priority, position LIMIT ?3)
    RETURNING seq, id, (SELECT body FROM specs WHERE job = seq)"""
FINISH = """UPDATE jobs SET state = 'completed', event = 'completed', worker = NULL,
    lease_until = NULL, finished_at = ?1, updated_at = ?1 WHERE seq = ?2 AND state = 'active'"""
NOW = 1_800_000_000_000
WORKER = "w-" + "0" * 26


class RawStore:
    """One file, one connection."""

    def __init__(self, path: Path) -> None:
        self.db = apsw.Connection(str(path))
        self.db.execute("PRAGMA journal_mode = wal").fetchall()
        self.db.execute("PRAGMA synchronous = full; PRAGMA cache_size = -65536")
        for migration in MIGRATIONS:
            self.db.execute(migration)
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
        """One commit of `count` jobs, each with its spec and its journal row."""
        first = self.seq + 1
        self.seq += count
        numbers = range(first, self.seq + 1)
        created = ("created", "pending", None, 0, None)
        with self.db:
            self.db.executemany(INSERT, [(seq, f"{seq:026d}", NOW) for seq in numbers])
            self.db.executemany(SPEC, [(seq, self._spec) for seq in numbers])
            self.db.executemany(JOURNAL, [(seq, None, NOW, *created) for seq in numbers])

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
                self.db.executemany(JOURNAL, [(row[0], row[0], NOW, *completed) for row in rows])
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
