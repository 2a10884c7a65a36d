"""Where a store stands, known from one transaction to the next."""

from __future__ import annotations

from typing import NamedTuple, cast

import msgspec

from headrace.core.queue import DEFAULTS, QueueSettings, decode
from headrace.engine.protocol import QUEUE_KIND
from headrace.engine.sqlite.schema import refuse_newer
from headrace.engine.sqlite.sql import statement
from headrace.engine.sqlite.store import Store

_SETTINGS = msgspec.json.Decoder(list[tuple[str, msgspec.Raw]])


class Head(NamedTuple):
    """How far a store has got."""

    seq: int
    """The newest journal entry."""
    settings: int
    """The newest settings of queues."""
    revision: int
    """The newest document."""
    edges: int
    """Whether anything depends on anything."""
    layout: int
    """The version of its tables."""


def read_head(store: Store) -> Head:
    """How far a store has got."""
    row = store.fetch(statement("head"))
    assert row
    return Head(*cast(tuple[int, int, int, int, int], row))


class Standing:
    """What a connection knows of its store. The head is read again when somebody else has written
    since, the settings of queues when others have been put."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._head: Head | None = None
        self._version = 0
        self._settings = -1
        self._queues: dict[tuple[str, ...], QueueSettings] = {}

    def head(self) -> Head:
        """The head at the beginning of a transaction."""
        head = self._head
        if head is None or self._version != self._store.version:
            head = self.read()
        return head

    def read(self) -> Head:
        """The head as it is in the tables, with the settings of queues at hand. Raises where a
        newer Headrace has migrated the store meanwhile."""
        head = read_head(self._store)
        refuse_newer(head.layout, self._store.path)
        if head.settings != self._settings:
            found = _SETTINGS.decode(self._store.text(statement("queue_settings"), (QUEUE_KIND,)))
            self._queues = {tuple(name.split("/", 1)): decode(body) for name, body in found}
            self._settings = head.settings
        return head

    def settings(self, service: str, queue: str) -> QueueSettings:
        return self._queues.get((service, queue), DEFAULTS)

    def keep(self, head: Head | None) -> None:
        """Takes note of what a commit just left. Whether the last edge has gone is not known:
        where there are some, the next transaction looks."""
        self._head = None if head is None or head.edges else head
        self._version = self._store.version

    def forget(self) -> None:
        """After a rollback, a number that was seen may come again for something else."""
        self._head, self._settings = None, -1
