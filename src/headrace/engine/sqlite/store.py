"""One connection to the store: opened, set up, and with the few calls the engine makes.

The one module that touches apsw's calls, whose stubs do not name their types on Python 3.11.
"""
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false, reportUnknownParameterType=false

from __future__ import annotations

import os
from array import array
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol, cast

import apsw

from headrace.core.errors import EngineUnavailable, StoreReadOnly
from headrace.engine.sqlite.errors import translate
from headrace.engine.sqlite.location import Location
from headrace.engine.sqlite.sql import statement
from headrace.engine.statements import runs

Value = int | float | str | bytes | None


class Bound:
    """A bound array, for `carray(?)`."""


Row = tuple[Value, ...]


class _Execute(Protocol):
    def __call__(self, sql: str, values: Sequence[Value | Bound] = (), /) -> apsw.Cursor: ...


def seqs(numbers: Iterable[int]) -> Bound:
    """Sequences as one bound array."""
    # An empty array has no address to bind; there is no job 0.
    return cast(Bound, apsw.carray(array("q", numbers) or array("q", [0])))


def texts(values: Iterable[str]) -> Bound:
    """Texts as one bound array. One with a NUL cannot be bound and is left out: no id has one."""
    return cast(Bound, apsw.carray(tuple(text for text in values if "\0" not in text) or ("",)))


def without_nul(text: str) -> str:
    """A text of the user's choice in a form that can be bound; the same for all but odd ones."""
    return text.replace("\\", "\\\\").replace("\0", "\\0")


class Store:
    """A connection, used by one thread at a time."""

    def __init__(self, connection: apsw.Connection) -> None:
        self.connection = connection
        self._query = cast(_Execute, connection.execute)
        # One cursor for all of them: making one takes longer than many a statement.
        self.execute = cast(_Execute, connection.cursor().execute)
        """Runs a statement that answers nothing."""
        self.log_pages = 0
        """How long the write-ahead log is, where `watch_log` was called."""
        self._patience: float | None = None
        self._file = _file_at(connection.filename)

    def wait_for_locks(self, seconds: float) -> None:
        """How long to wait while another program holds a lock."""
        if seconds != self._patience:
            self._patience = seconds
            self.connection.set_busy_timeout(round(seconds * 1000))
            self.connection.setlk_timeout(round(seconds * 1000), 0)

    def watch_log(self) -> None:
        """From now on, commits leave the log as it is and only say how long it is."""

        def committed(_connection: object, _name: str, pages: int) -> int:
            self.log_pages = pages
            return apsw.SQLITE_OK

        self.connection.set_wal_hook(committed)

    @property
    def path(self) -> str:
        return self.connection.filename

    @property
    def displaced(self) -> bool:
        """Whether the path leads to another file by now, or to none: SQLite goes on writing to the
        one that it has open, and what it confirms is lost."""
        return _file_at(self.path) not in (self._file, _UNKNOWN)

    @property
    def version(self) -> int:
        """Another number after each commit, here or elsewhere; of the newest commit that this
        connection has seen."""
        return self.connection.data_version()

    @property
    def in_transaction(self) -> bool:
        return self.connection.in_transaction

    def close(self) -> None:
        self.connection.close(True)

    def fetch(self, sql: str, values: Sequence[Value | Bound] = ()) -> Row | None:
        """The first row of a query, without a step to see whether there is a second."""
        cursor = self._query(sql, values)
        row: Row | None = cursor.fetchone()
        cursor.close(True)
        return row

    def text(self, sql: str, values: Sequence[Value | Bound] = ()) -> str:
        """The JSON array that a query answers with."""
        row = self.fetch(sql, values)
        return cast(str, row[0]) if row and row[0] is not None else "[]"

    def write_rows(self, name: str, values: Sequence[Value]) -> None:
        """Runs a statement for all rows of the flat `values`, in as few steps as possible.

        Each step of SQLite gives up the interpreter lock, and beside a busy event loop getting
        it back costs up to 5 ms: rows are written by the hundred, never one by one.
        """
        for sql, some in runs(statement(name), values):
            self.execute(sql, some)

    def change_rows(self, name: str, values: Sequence[Value]) -> int:
        """Like `write_rows`; how many rows were changed."""
        before = self.connection.total_changes()
        self.write_rows(name, values)
        return self.connection.total_changes() - before


_UNKNOWN = (-1, -1)


def _file_at(path: str) -> tuple[int, int] | None:
    """Which file a path leads to."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    except OSError:
        return _UNKNOWN
    return found.st_dev, found.st_ino


_CACHED_STATEMENTS = 300
_CACHE_KIB = 65_536


def open_store(location: Location) -> Store:
    """A connection with its waiting times set, and nothing else changed yet."""
    folder = Path(location.path).parent
    if not folder.is_dir():
        raise StoreReadOnly(f"{location.path}: the directory {folder} does not exist; create it")
    try:
        connection = apsw.Connection(location.path, statementcachesize=_CACHED_STATEMENTS)
        # Plans do not depend on what is bound. Without this a statement is compiled again whenever
        # it is given another value for an indexed column, which takes longer than running it.
        connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
        store = Store(connection)
        store.wait_for_locks(location.busy_timeout)
        if connection.readonly("main"):
            connection.close()
            raise StoreReadOnly(
                f"{location.path}: may only be read; give this user write permission on the file"
                " and its directory"
            )
    except apsw.Error as error:
        raise translate(error, location.path) or error from error
    return store


def set_up(store: Store, location: Location) -> None:
    """The settings of a connection to a store that was found to be ours."""
    mode = store.fetch("PRAGMA journal_mode = wal")
    if mode != ("wal",):
        raise EngineUnavailable(
            f"{location.path}: this file system cannot hold a write-ahead log; use a local disk"
        )
    store.execute(f"PRAGMA synchronous = {location.synchronous}")
    store.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
    store.execute("PRAGMA temp_store = memory")
