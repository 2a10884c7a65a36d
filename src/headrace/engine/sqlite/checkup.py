"""The health of a store, for `headrace doctor`."""

from __future__ import annotations

import os
import shutil
import stat
from typing import cast

import msgspec

from headrace.engine.protocol import Check, Checkup, Health, OldestDue
from headrace.engine.sqlite.location import Location
from headrace.engine.sqlite.schema import VERSION
from headrace.engine.sqlite.sql import statement
from headrace.engine.sqlite.store import Store

OK, WARN, FAIL = Health.OK, Health.WARN, Health.FAIL

LITTLE, VERY_LITTLE = 1 << 30, 100 << 20
"""Bytes of free disk space that are worth a word."""
LONG_LOG = 1 << 30
"""Bytes of a write-ahead log that should have been checkpointed."""
REMOTE = frozenset({"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "fuse.sshfs", "ceph", "afs"})
"""File systems whose locks and shared memory SQLite cannot rely on."""

_OLDEST = msgspec.json.Decoder(list[OldestDue])


def checkup(store: Store, location: Location, now: int) -> Checkup:
    """Looks at the store and at the file; changes nothing."""
    path = location.path
    checks = (
        _schema(store),
        _integrity(store, path),
        _settings(store),
        _permissions(path),
        _file_system(path),
        _log(path),
        _space(path),
    )
    return Checkup(checks, tuple(_OLDEST.decode(store.text(statement("oldest_due"), (now,)))))


def _value(store: Store, sql: str) -> object:
    row = store.fetch(sql)
    return row[0] if row else None


def _schema(store: Store) -> Check:
    version = cast(int, _value(store, "PRAGMA user_version"))
    text = f"layout {version} of {VERSION}, SQLite {_value(store, 'SELECT sqlite_version()')}"
    return Check("schema", OK if version == VERSION else FAIL, text)


def _integrity(store: Store, path: str) -> Check:
    found = str(_value(store, "PRAGMA quick_check(1)"))
    if found == "ok":
        return Check("integrity", OK, "quick_check found nothing")
    remedy = f"stop the workers, then restore a backup or run `sqlite3 {path} .recover`"
    return Check("integrity", FAIL, found, remedy)


def _settings(store: Store) -> Check:
    mode = str(_value(store, "PRAGMA journal_mode"))
    level = cast(int, _value(store, "PRAGMA synchronous"))
    names = {0: "off", 1: "normal", 2: "full", 3: "extra"}
    text = f"journal_mode {mode}, synchronous {names.get(level, level)}"
    if mode != "wal" or level == 0:
        return Check("durability", FAIL, text, "open the store with Headrace only")
    if level == 1:
        text += ": a loss of power may undo the last writes"
    return Check("durability", OK, text)


def _permissions(path: str) -> Check:
    folder = os.path.dirname(path)
    for place in (path, folder):
        if not os.access(place, os.R_OK | os.W_OK):
            remedy = f"give this user write permission on {place}"
            return Check("permissions", FAIL, f"{place} may not be written", remedy)
    if os.stat(path).st_mode & stat.S_IWOTH:
        return Check("permissions", WARN, f"anybody may write {path}", f"chmod o-w {path}")
    return Check("permissions", OK, f"{path} and its directory may be written")


def _file_system(path: str) -> Check:
    kind = _mounted(path)
    if kind in REMOTE:
        remedy = "keep the file on a local disk of the one machine that runs the workers"
        return Check("file system", FAIL, f"{kind} is not local: the store may be damaged", remedy)
    return Check("file system", OK, kind or "not known on this system")


def _mounted(path: str) -> str | None:
    """The kind of file system that holds a path, where the system tells."""
    try:
        with open("/proc/self/mounts", encoding="utf-8", errors="replace") as lines:
            mounts = [line.split() for line in lines]
    except OSError:
        return None
    best, kind = "", None
    real = os.path.realpath(path)
    for _, point, mounted, *_ in mounts:
        place = point.replace("\\040", " ")
        inside = real == place or real.startswith(place.rstrip("/") + "/")
        if inside and len(place) >= len(best):
            best, kind = place, mounted
    return kind


def _log(path: str) -> Check:
    try:
        size = os.path.getsize(f"{path}-wal")
    except OSError:
        size = 0
    text = f"store {_size(os.path.getsize(path))}, write-ahead log {_size(size)}"
    if size > LONG_LOG:
        remedy = f"some program keeps an old view open: find it with `fuser {path}` and end it"
        return Check("size", WARN, text, remedy)
    return Check("size", OK, text)


def _space(path: str) -> Check:
    usage = shutil.disk_usage(os.path.dirname(path))
    text = f"{_size(usage.free)} of {_size(usage.total)} free"
    if usage.free < LITTLE:
        health = FAIL if usage.free < VERY_LITTLE else WARN
        remedy = "free some space, or shorten retention: `headrace queue set NAME retention.…`"
        return Check("disk space", health, text, remedy)
    return Check("disk space", OK, text)


def _size(count: float) -> str:
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"
