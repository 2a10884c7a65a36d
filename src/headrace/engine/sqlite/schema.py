"""Creating and migrating a store.

A migration is a file in `migrations`; the store's `user_version` is how many it has had.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import cast

import apsw

from headrace.core.errors import StoreCorrupt, StoreTooNew
from headrace.engine.sqlite.errors import translate
from headrace.engine.sqlite.location import Location
from headrace.engine.sqlite.store import Store, open_store, set_up

APPLICATION_ID = 0x48445243
"""`HDRC`: marks a SQLite file as ours."""


def _load() -> tuple[str, ...]:
    found = sorted(Path(__file__).with_name("migrations").glob("*.sql"))
    return tuple(file.read_text("utf-8") for file in found)


MIGRATIONS = _load()
VERSION = len(MIGRATIONS)


def _pragma(store: Store, name: str) -> int:
    row = store.fetch(f"PRAGMA {name}")
    assert row
    return cast(int, row[0])


def check(store: Store, path: str) -> int:
    """How many migrations the store has had; raises where it is not for us to touch."""
    version = _pragma(store, "user_version")
    if _pragma(store, "application_id") != APPLICATION_ID:
        if store.fetch("SELECT 1 FROM sqlite_schema LIMIT 1") or version:
            raise StoreCorrupt(
                f"{path}: is a SQLite database of another program; Headrace needs a file of its"
                " own, so give another path"
            )
        return 0
    refuse_newer(version, path)
    return version


def refuse_newer(version: int, path: str) -> None:
    """Raises where the store has a layout that is not known here. Asked in every transaction that
    writes: a newer Headrace may migrate the store while this one has it open."""
    if version > VERSION:
        raise StoreTooNew(
            f"{path}: was written by a newer Headrace (layout {version}, this one knows"
            f" {VERSION}); upgrade Headrace here too"
        )


def migrate(store: Store, path: str) -> None:
    """Brings the store up to date. Several processes may try at once: the lock lets one do it."""
    store.execute("BEGIN")  # one moment for all that is looked at: another may be creating it
    try:
        found = check(store, path)
    finally:
        store.execute("COMMIT")
    if found == VERSION:
        return
    store.execute("BEGIN IMMEDIATE")
    try:
        for number in range(check(store, path), VERSION):
            store.execute(MIGRATIONS[number])
        store.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        store.execute(f"PRAGMA user_version = {VERSION}")
        store.execute("COMMIT")
    except BaseException:
        if store.in_transaction:
            store.execute("ROLLBACK")
        raise


def connect(location: Location) -> Store:
    """A connection to a store that is up to date, created or migrated where needed."""
    store = open_store(location)
    patience = time.monotonic() + location.busy_timeout
    try:
        while True:
            try:
                migrate(store, location.path)
                set_up(store, location)
                break
            except apsw.BusyError:
                # Going over to a write-ahead log needs the file alone, and does not wait for it.
                if time.monotonic() > patience:
                    raise
                time.sleep(0.01)
    except apsw.Error as error:
        store.close()
        raise translate(error, location.path) or error from error
    except BaseException:
        store.close()
        raise
    return store
