"""SQLite's errors in the words of Headrace: what is wrong with which file, and the remedy."""

from __future__ import annotations

import apsw

from headrace.core.errors import (
    EngineError,
    EngineUnavailable,
    StoreBusy,
    StoreCorrupt,
    StoreFull,
    StoreReadOnly,
)

_BROKEN = (apsw.IOError, apsw.CorruptError, apsw.NotADBError, apsw.CantOpenError)
"""After these the connection is opened anew."""


def breaks_connection(error: BaseException) -> bool:
    """Whether the connection should not be used again."""
    return isinstance(error, _BROKEN)


def translate(error: apsw.Error, path: str) -> EngineError | None:
    """The error of the store as a whole; None where one operation alone is to blame."""
    match error:
        case apsw.BusyError() | apsw.LockedError():
            return StoreBusy(
                f"{path}: another program holds the write lock; find it with `fuser {path}` and"
                " let it commit or end, or raise busy_timeout"
            )
        case apsw.FullError():
            return StoreFull(f"{path}: the disk is full; free some space, then try again")
        case apsw.ReadOnlyError() | apsw.PermissionsError() | apsw.AuthError():
            return StoreReadOnly(
                f"{path}: may not be written; give this user write permission on the file and"
                " its directory"
            )
        case apsw.CantOpenError():
            return StoreReadOnly(
                f"{path}: cannot be opened; the directory must exist, and this user must be"
                " allowed to read and write the file and to write in the directory"
            )
        case apsw.NotADBError():
            return StoreCorrupt(f"{path}: is not a SQLite database; give another path")
        case apsw.CorruptError():
            return StoreCorrupt(
                f"{path}: is damaged ({error}); restore a backup, or save what can be read with"
                " `sqlite3 FILE .recover`"
            )
        case apsw.IOError() | apsw.NoMemError() | apsw.ProtocolError() | apsw.NoLFSError():
            return EngineUnavailable(
                f"{path}: cannot be read or written ({error}); check the disk, then try again"
            )
        case _:
            return None
