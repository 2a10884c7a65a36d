"""Queue settings, decoded once per process."""

from __future__ import annotations

import msgspec

from headrace.core.queue import DEFAULTS, QueueSettings, decode
from headrace.engine.protocol import QUEUE_KIND
from headrace.engine.sqlite.sql import statement
from headrace.engine.sqlite.store import Store

_SETTINGS = msgspec.json.Decoder(list[tuple[str, msgspec.Raw]])


class Settings:
    """The queue settings, decoded once; good as long as nobody puts others."""

    def __init__(self) -> None:
        self._revision = -1
        self._queues: dict[tuple[str, ...], QueueSettings] = {}

    def get(self, service: str, queue: str) -> QueueSettings:
        return self._queues.get((service, queue), DEFAULTS)

    def forget(self) -> None:
        """After a rollback, a revision that was seen may come again with other settings."""
        self._revision = -1

    def refresh(self, store: Store, revision: int) -> None:
        if revision != self._revision:
            found = store.text(statement("queue_settings"), (QUEUE_KIND,))
            named = _SETTINGS.decode(found)
            self._queues = {tuple(name.split("/", 1)): decode(body) for name, body in named}
            self._revision = revision
