"""The writer: one thread, one connection, and one commit for everything that was asked meanwhile.

A batch runs at first as if nothing could fail: no savepoints, writes held back to the end. If an
operation raises, the whole batch is taken back and done again carefully, each operation under a
savepoint of its own, so that only the one to blame fails.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import apsw

from headrace.core.errors import EngineError
from headrace.engine.ledger import Ledger
from headrace.engine.sqlite.errors import breaks_connection, translate
from headrace.engine.sqlite.lane import Answered, Ask, Lane, send
from headrace.engine.sqlite.location import Location
from headrace.engine.sqlite.pace import Pace
from headrace.engine.sqlite.records import Again, SqlRecords
from headrace.engine.sqlite.schema import connect
from headrace.engine.sqlite.span import Span
from headrace.engine.sqlite.standing import Head, Standing
from headrace.engine.sqlite.store import Store
from headrace.engine.sqlite.turn import Turn
from headrace.engine.sqlite.wanted import Wanted

Announce = Callable[[set[str], Span], None]
"""Told of every commit, with the topics to ring."""

Reach = Callable[[str], None]
"""Told when a commit reaches `begin`, `before_commit` and `after_commit`."""

Begin = Callable[[Store], None]
"""Begins a transaction."""

_SMALL = 128
"""An event loop itself commits what is about so many jobs at most; more would hold it up."""

_LONG_LOG = 1000
"""Pages of the write-ahead log that the writer's thread moves into the file."""


class Occupied(Exception):
    """Somebody else writes just now, and there is no time to wait."""


class Work:
    """What operations work on, within one transaction. `topics` gathers whom to wake."""

    __slots__ = ("ledger", "records", "topics")

    def __init__(self, records: SqlRecords) -> None:
        self.records, self.ledger = records, Ledger(records)
        self.topics = self.ledger.topics


@dataclass(slots=True)
class _Done:
    """What a transaction came to, before it is committed."""

    answers: list[Answered[Work]] = field(default_factory=list[Answered[Work]])
    topics: set[str] = field(default_factory=set[str])
    span: Span = field(default_factory=Span)
    head: Head | None = None
    """Where the store stands then, where that is known."""


class Writer:
    """Commits what it is asked, in order."""

    def __init__(
        self,
        location: Location,
        store: Store,
        turn: Turn,
        announce: Announce,
        reach: Reach,
    ) -> None:
        self._location, self._announce, self._reach = location, announce, reach
        self._turn = turn
        self._store: Store | None = None
        self._connect(store)
        self._pace = Pace()
        self._committed_in = 0.0
        here = self._serve_here if location.direct else None
        self._lane = Lane[Work]("headrace-writer", self._serve, here)
        self.ask = self._lane.ask

    def stop(self) -> None:
        """Commits what was asked, then lets go of the store."""
        self._lane.stop()
        self._checkpoint()
        self._disconnect()
        self._turn.close()

    def _connect(self, store: Store) -> Store:
        self._store, self._standing = store, Standing(store)
        store.watch_log()
        return store

    def _disconnect(self) -> None:
        store, self._store = self._store, None
        if store is not None:
            store.close()

    def _checkpoint(self) -> None:
        """Moves what it can from the log into the file, so that the next to open has less to do."""
        if self._store is not None:
            self._store.log_pages = 0
            with suppress(apsw.Error):
                self._store.fetch("PRAGMA wal_checkpoint(PASSIVE)")

    def _serve(self, asks: list[Ask[Work]]) -> None:
        """In the writer's thread, which may wait."""
        self._answer(asks, self._wait_to_begin)
        if self._store is not None and self._store.log_pages >= _LONG_LOG:
            self._checkpoint()

    def _serve_here(self, asks: list[Ask[Work]]) -> bool:
        """In the event loop's own thread, which may not: False leaves it to the writer's."""
        if not self._pace.quick or self._store is None:
            return False
        if self._store.log_pages >= _LONG_LOG or sum(ask.size for ask in asks) > _SMALL:
            return False
        try:
            wrote = self._answer(asks, self._begin_now)
        except Occupied:
            return False
        if wrote:
            self._pace.took(self._committed_in)
        return True

    def _answer(self, asks: list[Ask[Work]], begin: Begin) -> bool:
        """Does and answers what is asked; whether anything happened that somebody may wait for."""
        try:
            done = self._commit(asks, begin)
        except Occupied:
            raise
        except Exception as error:
            explained = self._explained(error)
            send([(ask, None, explained) for ask in asks])
            return False
        send(done.answers)
        self._announce(done.topics, done.span)
        return bool(done.topics)

    def _explained(self, error: Exception) -> Exception:
        if breaks_connection(error):
            self._disconnect()
        if isinstance(error, apsw.Error):
            explained = translate(error, self._location.path)
            if explained is not None:
                explained.__cause__ = error
                return explained
        return error

    def _commit(self, asks: list[Ask[Work]], begin: Begin) -> _Done:
        try:
            return self._transaction(asks, begin, self._all)
        except (Again, apsw.ConstraintError):  # an id that was taken to be unused is not
            return self._transaction(asks, begin, self._each)
        except Exception as error:
            if len(asks) == 1 or _concerns_all(error, self._location.path):
                raise
            return self._transaction(asks, begin, self._each)

    def _transaction(
        self,
        asks: list[Ask[Work]],
        begin: Begin,
        run: Callable[[Store, list[Ask[Work]]], _Done],
    ) -> _Done:
        store = self._store or self._connect(connect(self._location))
        if store.displaced:
            raise EngineError(
                f"{store.path}: the file was deleted or replaced while it was open, and what is"
                " written into it would be lost; start this program again"
            )
        self._reach("begin")
        try:
            begin(store)
            done = run(store, asks)
            self._reach("before_commit")
            start = time.perf_counter()
            store.execute("COMMIT")
            self._committed_in = time.perf_counter() - start
            self._standing.keep(done.head)
        except BaseException:
            self._standing.forget()
            if store.in_transaction:  # SQLite itself rolls back after some errors
                store.execute("ROLLBACK")
            raise
        finally:
            self._turn.give()
        self._reach("after_commit")
        return done

    def _wait_to_begin(self, store: Store) -> None:
        store.wait_for_locks(self._location.busy_timeout)
        self._turn.take()
        store.execute("BEGIN IMMEDIATE")

    def _begin_now(self, store: Store) -> None:
        store.wait_for_locks(0)
        if not self._turn.take_now():
            raise Occupied
        try:
            store.execute("BEGIN IMMEDIATE")
        except apsw.BusyError as error:
            raise Occupied from error

    def _all(self, store: Store, asks: list[Ask[Work]]) -> _Done:
        """All operations on the same records, written at the end."""
        records = SqlRecords(store, self._standing)
        wanted = Wanted()
        for ask in asks:
            if ask.want is not None:
                ask.want(wanted)
        records.prepare(wanted)
        work = Work(records)
        answers: list[Answered[Work]] = [(ask, ask.work(work), None) for ask in asks]
        records.end()
        return _Done(answers, work.topics, records.span, records.head)

    def _each(self, store: Store, asks: list[Ask[Work]]) -> _Done:
        """Each operation on its own, so that one can be taken back."""
        done = _Done()
        for ask in asks:
            store.execute("SAVEPOINT headrace_ask")
            try:
                records = SqlRecords(store, self._standing, careful=True)
                work = Work(records)
                answer: Any = ask.work(work)
                records.end()
            except Exception as error:
                if _concerns_all(error, self._location.path):
                    raise
                store.execute("ROLLBACK TO headrace_ask; RELEASE headrace_ask")
                self._standing.forget()
                done.answers.append((ask, None, error))
            else:
                store.execute("RELEASE headrace_ask")
                done.answers.append((ask, answer, None))
                done.topics |= work.topics
                first = done.span if done.span.seq else records.span
                last = records.span
                done.span = Span(first.seq_before, last.seq, first.revision_before, last.revision)
        return done


def _concerns_all(error: Exception, path: str) -> bool:
    """Whether an error says that the store, not an operation, is in trouble."""
    if isinstance(error, apsw.Error):
        return translate(error, path) is not None
    return isinstance(error, EngineError | Occupied)
