"""Query-plan guards: every statement seeks in the index that is meant for it."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

from headrace.engine.sqlite import SqliteEngine
from headrace.engine.sqlite.sql import STATEMENTS
from headrace.engine.statements import for_rows

FRAGMENTS = {
    "job_json",
    "jobs_json",
    "results_json",
    "edges_json",
    "journal_rows",
    "find_jobs",
}
"""Parts of statements, no statements."""

INDEXES = {
    "existing": "sqlite_autoindex_jobs_1 (id=?)",
    "jobs_by_id": "sqlite_autoindex_jobs_1 (id=?)",
    "jobs_by_seq": "INTEGER PRIMARY KEY (rowid=?)",
    "heads": "INTEGER PRIMARY KEY (rowid=?)",
    "ready": "jobs_ready (service=? AND queue=?)",
    "line": "jobs_ready (service=? AND queue=?)",
    "due": "COVERING INDEX jobs_delayed (service=? AND queue=? AND run_at<?)",
    "next_due": "COVERING INDEX jobs_delayed (service=? AND queue=?)",
    "oldest_waiting": "jobs_waiting (service=? AND queue=?)",
    "ready_of_keys": "jobs_keyed (service=? AND key=? AND stage=?)",
    "parked_of_keys": "jobs_keyed (service=? AND key=? AND stage=?)",
    "last_parked_queues": "jobs_keyed (service=? AND key=? AND stage=?)",
    "queue_of_key": "jobs_keyed (service=? AND key=? AND stage=? AND queue>?)",
    "line_of_key": "jobs_keyed (service=? AND key=? AND stage=? AND queue=?)",
    "first_active": "jobs_keyed_oldest (service=? AND key=? AND state=?)",
    "first_queued": "jobs_keyed_oldest (service=? AND key=? AND state=?)",
    "holders": "holders USING PRIMARY KEY (service=? AND key=?)",
    "delete_lapsed_holders": "holders_held (held_until>? AND held_until<?)",
    "ended": "COVERING INDEX jobs_ended (service=? AND queue=? AND state=?",
    "find_key": "COVERING INDEX jobs_key (key=? AND seq<?)",
    "find_key_name": "COVERING INDEX jobs_key_name (key_name=? AND seq<?)",
    "find_state": "COVERING INDEX jobs_state (state=? AND seq<?)",
    "find_waiting": "jobs_waiting (service=? AND queue=? AND seq<?)",
    "find_active": "COVERING INDEX jobs_active (lease_until<?)",
    "find_expiring": "jobs_expiring (expires_at>? AND expires_at<?)",
}

WHOLE_TABLES = {"count": "SCAN counts", "oldest_due": "SCAN counts"}
"""A line for each queue and state: small whatever the history."""

SORTS = {"journal_of"}
"""Sorts one job's own entries."""


@pytest.fixture
async def store(path: Path) -> apsw.Connection:
    engine = SqliteEngine(path)
    await engine.open()
    await engine.close()
    return apsw.Connection(str(path))


def plan(store: apsw.Connection, name: str) -> list[str]:
    sql = for_rows(STATEMENTS[name], 2)
    for bindings in range(100):
        try:
            rows = store.execute(f"EXPLAIN QUERY PLAN {sql}", [None] * bindings).fetchall()
        except apsw.BindingsError:
            continue
        return [str(row[3]) for row in rows]
    raise AssertionError(f"{name} has too many bindings")


@pytest.mark.parametrize("name", sorted(STATEMENTS.keys() - FRAGMENTS))
def test_statement_walks_no_table_and_sorts_nothing(store: apsw.Connection, name: str) -> None:
    tables = {row[0] for row in store.execute("SELECT name FROM sqlite_schema").fetchall()}
    for step in plan(store, name):
        walked = step.removeprefix("SCAN ").split(" ")[0] if step.startswith("SCAN ") else ""
        assert walked not in tables or step == WHOLE_TABLES.get(name), step
        assert "TEMP B-TREE" not in step or name in SORTS, step


@pytest.mark.parametrize("name", sorted(INDEXES))
def test_statement_uses_the_index_meant_for_it(store: apsw.Connection, name: str) -> None:
    assert any(INDEXES[name] in step for step in plan(store, name)), plan(store, name)


@pytest.mark.parametrize("name", ["update_placed", "update_started", "update_ended", "update_jobs"])
def test_update_of_many_jobs_seeks_each_once(store: apsw.Connection, name: str) -> None:
    assert plan(store, name)[-1] == "SEARCH jobs USING INTEGER PRIMARY KEY (rowid=?)"
