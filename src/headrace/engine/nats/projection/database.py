"""The projection's database: a file that may be thrown away at any time, or memory.

Processes open, create and replace the file one at a time, under a lock of its own. Whoever has
the old one open when it is replaced or deleted sees that the path names another file now, and
opens that; what it wrote to the old one meanwhile is of no account.

The one module that touches apsw's calls, whose stubs do not name their types on Python 3.11.
"""
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false, reportUnknownParameterType=false

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from array import array
from collections.abc import Generator, Iterable, Sequence
from typing import TypeVar, cast

import apsw
import msgspec

from headrace.core.errors import EngineUnavailable, StoreBusy, StoreFull, StoreReadOnly
from headrace.engine.nats.projection.sql import SCHEMA, STATEMENTS
from headrace.engine.statements import runs

VERSION = 1
"""The data layout. A file with another one is thrown away."""

APPLICATION_ID = 0x48445250
"""`HDRP`: marks a SQLite file as a projection."""

PATIENCE = 10.0
"""Seconds to wait for another process's lock."""

_PAUSE = 0.005
_CACHE_KIB = 32_768

DAMAGE = (apsw.CorruptError, apsw.NotADBError, apsw.FormatError, apsw.IOError, apsw.SQLError)
"""What SQLite says of a file that is not, or no longer, what it should be."""

Value = int | float | str | bytes | None
Row = tuple[Value, ...]
T = TypeVar("T")


class Bound:
    """A bound array, for `carray(?)`."""


class Damaged(EngineUnavailable):
    """The projection is of no use any more; it is built anew when it is next asked for."""


def seqs(numbers: Iterable[int]) -> Bound:
    """Sequences as one bound array."""
    # An empty array has no address to bind; there is no message 0.
    return cast(Bound, apsw.carray(array("q", numbers) or array("q", [0])))


def texts(values: Iterable[str]) -> Bound:
    """Texts as one bound array. One with a NUL cannot be bound and is left out: no id has one."""
    return cast(Bound, apsw.carray(tuple(text for text in values if "\0" not in text) or ("",)))


class Database:
    """A connection to the file as it is now, or to memory of its own where `path` is None."""

    def __init__(self, path: str | None) -> None:
        self.path = path
        self._connection: apsw.Connection | None = None
        self._file: tuple[int, int] | None = None

    # Its life

    @property
    def is_open(self) -> bool:
        return self._connection is not None

    def open(self, stream: str) -> None:
        """Opens the database of this stream, in place of one that is not."""
        self.close()
        try:
            with self._alone():
                self._open(f"{stream} {_BOOT}")
        except apsw.Error as error:
            self.close()
            raise _translated(error, self.path) or error from error
        except OSError as error:
            self.close()
            raise StoreReadOnly(
                f"{self.path}: the projection cannot be opened ({error}); its directory must be"
                " writable for this user"
            ) from error

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close(True)
        self._connection = self._file = None

    def discard(self) -> None:
        """Closes the database and deletes its file, unless somebody else has replaced it."""
        file = self._file
        self.close()
        if self.path is not None:
            with self._alone():
                if file is None or file == _identity(self.path):
                    self._unlink()

    @property
    def lost(self) -> bool:
        """Whether the path no longer names the file that is open."""
        return self.path is not None and self._file != _identity(self.path)

    def _open(self, stream: str) -> None:
        if self.path is None:
            self._connect(":memory:")
            self._create(stream)
            return
        if _identity(self.path) is None:
            self._unlink()  # of a file that was deleted, what is beside it may be left
        try:
            self._connect(self.path)
            fits = self._fits(stream)
        except DAMAGE:
            fits = False
        if not fits:
            self.close()
            self._unlink()
            self._connect(self.path)
            self._create(stream)
        self._file = _identity(self.path)

    def _connect(self, path: str) -> None:
        self._connection = connection = apsw.Connection(path, statementcachesize=200)
        self.wait_for_locks(PATIENCE)
        connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
        connection.execute(f"PRAGMA synchronous = {'off' if _BOOT else 'normal'}")
        connection.execute("PRAGMA temp_store = memory")

    def _fits(self, stream: str) -> bool:
        if self.fetch("PRAGMA application_id") != (APPLICATION_ID,):
            return False
        if self.fetch("PRAGMA user_version") != (VERSION,):
            return False
        row = self.fetch(STATEMENTS["mirror"])
        return row is not None and row[0] == stream

    def _create(self, stream: str) -> None:
        connection = self._live
        connection.execute("PRAGMA journal_mode = wal").fetchall()
        with self.transaction():
            connection.execute(SCHEMA)
            connection.execute(STATEMENTS["insert_mirror"], (stream,))
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {VERSION}")

    def _unlink(self) -> None:
        assert self.path is not None
        for suffix in ("-wal", "-shm", "-journal", ""):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.path + suffix)

    @contextlib.contextmanager
    def _alone(self) -> Generator[None]:
        """While no other process opens or replaces the file."""
        if self.path is None:
            yield
            return
        os.makedirs(os.path.dirname(os.path.abspath(self.path)), exist_ok=True)
        lock = os.open(f"{self.path}-lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            self._lock(lock)
            yield
        finally:
            os.close(lock)

    def _lock(self, lock: int) -> None:
        """Others have it for some milliseconds; one that was stopped then may have it for ever, and
        the event loop stands still meanwhile."""
        end = time.monotonic() + PATIENCE
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > end:
                    raise StoreBusy(
                        f"{self.path}: another process holds the projection's lock; find it with"
                        f" `fuser {self.path}-lock`"
                    ) from None
                time.sleep(_PAUSE)
            else:
                return

    # Statements

    @property
    def _live(self) -> apsw.Connection:
        if self._connection is None:
            raise Damaged("the projection is not open")
        return self._connection

    def wait_for_locks(self, seconds: float) -> None:
        """How long to wait while another process writes."""
        self._live.set_busy_timeout(round(seconds * 1000))

    @contextlib.contextmanager
    def guarded(self) -> Generator[None]:
        """Turns what SQLite says of a damaged file into `Damaged`, all else into our words."""
        try:
            yield
        except DAMAGE as error:
            raise Damaged(
                f"{self.path or 'memory'}: the projection is damaged ({error}); try again: it is"
                " built anew"
            ) from error
        except apsw.Error as error:
            raise _translated(error, self.path) or error from error

    def begin(self, patience: float = PATIENCE) -> bool:
        """Begins to write; False where another process still does after `patience` seconds."""
        self.wait_for_locks(patience)
        try:
            self._live.execute("BEGIN IMMEDIATE")
        except apsw.BusyError:
            return False
        finally:
            self.wait_for_locks(PATIENCE)
        return True

    def commit(self) -> None:
        self._live.execute("COMMIT")

    def rollback(self) -> None:
        """Takes back what was written since `begin`; harmless where that has happened."""
        if self._connection is not None and self._connection.in_transaction:
            with contextlib.suppress(apsw.Error):
                self._connection.execute("ROLLBACK")

    @contextlib.contextmanager
    def transaction(self) -> Generator[None]:
        """A transaction that writes."""
        if not self.begin():
            raise StoreBusy(
                f"{self.path}: another process holds the projection's lock; find it with"
                f" `fuser {self.path}`"
            )
        try:
            yield
            self.commit()
        finally:
            self.rollback()

    @contextlib.contextmanager
    def snapshot(self) -> Generator[None]:
        """All that is read within is of one moment."""
        with self.guarded():
            self._live.execute("BEGIN")
            try:
                yield
            finally:
                self.rollback()

    def execute(self, sql: str, values: Sequence[Value | Bound] = ()) -> None:
        """Runs a statement that answers nothing."""
        self._live.execute(sql, cast("Sequence[Value]", values))

    def fetch(self, sql: str, values: Sequence[Value | Bound] = ()) -> Row | None:
        """The first row of a query."""
        cursor = self._live.execute(sql, cast("Sequence[Value]", values))
        row = cast("Row | None", cursor.fetchone())
        cursor.close(True)
        return row

    def fetch_all(self, sql: str, values: Sequence[Value | Bound] = ()) -> list[Row]:
        """All rows of a query."""
        return cast(
            "list[Row]", self._live.execute(sql, cast("Sequence[Value]", values)).fetchall()
        )

    def decoded(
        self, decoder: msgspec.json.Decoder[T], sql: str, values: Sequence[Value | Bound] = ()
    ) -> T:
        """The JSON that a query answers with, decoded."""
        row = self.fetch(sql, values)
        return decoder.decode(cast(str, row[0]) if row and row[0] is not None else "[]")

    def write_rows(self, name: str, values: Sequence[Value]) -> None:
        """Runs a statement for all rows of the flat `values`, in as few steps as possible."""
        for sql, some in runs(STATEMENTS[name], values):
            self._live.execute(sql, some)


def _boot() -> str:
    """Since when the system runs, where it tells. Nothing is synced, so a file that has seen a
    loss of power may be wrong in ways that nobody notices: none is trusted after a boot."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


_BOOT = _boot()


def _identity(path: str) -> tuple[int, int] | None:
    """Which file a path names."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _translated(error: apsw.Error, path: str | None) -> EngineUnavailable | None:
    match error:
        case apsw.BusyError() | apsw.LockedError():
            return StoreBusy(f"{path}: another process holds the projection's lock")
        case apsw.FullError():
            return StoreFull(f"{path}: the disk is full; free some space, then try again")
        case apsw.ReadOnlyError() | apsw.PermissionsError() | apsw.CantOpenError():
            return StoreReadOnly(
                f"{path}: the projection cannot be written; its directory must be writable for"
                " this user"
            )
        case _:
            return None
