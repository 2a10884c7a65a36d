"""Inserting on the caller's connection, in the caller's transaction."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence

import apsw

from headrace.core.admission import Verdict
from headrace.core.errors import InvalidValue, StoreBusy
from headrace.core.model import NewJob
from headrace.engine.ledger import Ledger
from headrace.engine.protocol import JOURNAL_TOPIC, job_topic, work_topic
from headrace.engine.sqlite.errors import translate
from headrace.engine.sqlite.records import SqlRecords
from headrace.engine.sqlite.schema import VERSION, check
from headrace.engine.sqlite.span import Span
from headrace.engine.sqlite.standing import Standing
from headrace.engine.sqlite.store import Store
from headrace.engine.sqlite.wanted import Wanted


def insert(
    connection: apsw.Connection, path: str, groups: Sequence[Sequence[NewJob]], now: int
) -> list[tuple[Verdict, ...]]:
    """All groups, or none where an error is raised: the caller's transaction stays usable."""
    _check(connection, path)
    store = Store(connection)
    try:
        _lock(store)
        if check(store, path) != VERSION:
            raise InvalidValue("connection", f"{path} is no store yet; open the engine once first")
        store.execute("SAVEPOINT headrace_bound")
        try:
            records = SqlRecords(store, Standing(store), careful=True)
            wanted = Wanted()
            wanted.insert(groups)
            records.prepare(wanted)
            verdicts = Ledger(records).insert_all(groups, now)
            records.end()
        except BaseException:
            store.execute("ROLLBACK TO headrace_bound; RELEASE headrace_bound")
            raise
        store.execute("RELEASE headrace_bound")
    except apsw.Error as error:
        raise _told(error, path) from error
    return verdicts


def _lock(store: Store) -> None:
    """Takes the write lock before anything is read: what others write after a first read could
    not be waited out."""
    with contextlib.suppress(apsw.SQLError):  # it is no store
        store.execute("DELETE FROM logs WHERE false")


def _told(error: apsw.Error, path: str) -> Exception:
    if getattr(error, "extendedresult", None) == apsw.SQLITE_BUSY_SNAPSHOT:
        return StoreBusy(
            f"{path}: somebody else wrote since this transaction read for the first time; begin it"
            " with BEGIN IMMEDIATE"
        )
    return translate(error, path) or error


def _check(connection: object, path: str) -> None:
    if not isinstance(connection, apsw.Connection):
        raise InvalidValue(
            "connection",
            f"is a {type(connection).__module__}.{type(connection).__name__}; open the file with"
            " apsw: two SQLite libraries in one process can corrupt it",
        )
    if not connection.in_transaction:
        raise InvalidValue(
            "connection", "has no transaction; begin one, so that it decides over the jobs too"
        )
    main = connection.db_filename("main")
    if not main or not os.path.exists(main) or not os.path.samefile(main, path):
        raise InvalidValue(
            "connection", f"is open on {main or 'no file'}, not on {path}; open it on that file"
        )


def news(verdicts: Sequence[Sequence[Verdict]]) -> tuple[set[str], Span]:
    """Whom the jobs concern, and what the commit did as far as can be told."""
    topics: set[str] = set()
    numbers: list[int] = []
    for verdict in (verdict for group in verdicts for verdict in group):
        topics.update(map(job_topic, verdict.replaced))
        if verdict.job is not None:
            job = verdict.job
            topics |= {work_topic(job.service, job.queue), job_topic(job.id), JOURNAL_TOPIC}
            numbers += (job.seq, job.version)
    span = Span(min(numbers) - 1, max(numbers)) if numbers else Span()
    return topics, span
