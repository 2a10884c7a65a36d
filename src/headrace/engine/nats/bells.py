"""Wake-ups over NATS: the topics that somebody listens to are subscriptions.

Jobs, the journal, documents and timers ring through the stream itself, which publishes the
subject of all that it has stored once more under `…bell.`. Who has work, and whose job was taken
away, no subject tells: those are rung by whoever made the change.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import Counter
from collections.abc import Iterable

from headrace.engine.bells import EVERYTHING, BellHub, HubBell
from headrace.engine.nats.layout import Layout
from headrace.engine.nats.wire.connection import Connection, Subscription
from headrace.engine.protocol import DOCUMENTS_TOPIC, JOURNAL_TOPIC


class RopeBell(HubBell):
    """A bell that lets go of its subscriptions."""

    ropes: Ropes | None = None

    def close(self) -> None:
        super().close()
        if self.ropes is not None:
            self.ropes.release(self.topics)
            self.ropes = None


class Ropes:
    """The bells of an engine, in any thread, and the subscriptions of one connection that ring
    them."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._hub = BellHub()
        self._connection: Connection | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._held: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._subscriptions: dict[str, list[Subscription]] = {}

    def listen(self, topics: frozenset[str]) -> RopeBell:
        """Called from any thread."""
        bell = RopeBell(self._hub, topics)
        self._hub.add(bell)
        bell.ropes = self
        with self._lock:
            self._held.update(topics)
        self._pull()
        return bell

    def release(self, topics: Iterable[str]) -> None:
        """One bell less for these; called from any thread."""
        with self._lock:
            self._held.subtract(topics)
            self._held = +self._held
        self._pull()

    def attach(self, connection: Connection) -> None:
        """Rings from this connection on, which is of this event loop."""
        self._connection, self._loop = connection, asyncio.get_running_loop()
        self._subscriptions.clear()
        self._subscribe()

    def detach(self, connection: Connection) -> bool:
        """Whether it was this connection that rang."""
        if self._connection is not connection:
            return False
        self._connection = self._loop = None
        return True

    def ring_all(self) -> None:
        """Something may have happened that nobody told."""
        self._hub.ring({EVERYTHING})

    def ring(self, topics: Iterable[str], connection: Connection) -> None:
        """Rings everywhere what the stream does not ring by itself."""
        if connection.connected:
            for topic in topics:
                if topic.startswith(("work:", "worker:")):
                    connection.publish(self._layout.bell(topic))

    def _pull(self) -> None:
        """Has the connection's own loop see to the subscriptions."""
        loop = self._loop
        if loop is None:
            return
        if loop is _running():
            self._subscribe()
        else:
            with contextlib.suppress(RuntimeError):  # it is closed
                loop.call_soon_threadsafe(self._subscribe)

    def _subscribe(self) -> None:
        with self._lock:
            wanted = set(self._held)
        for topic in self._subscriptions.keys() - wanted:
            for subscription in self._subscriptions.pop(topic):
                subscription.close()
        for topic in wanted - self._subscriptions.keys():
            self._hold(topic)

    def _hold(self, topic: str) -> None:
        if self._connection is None:
            return

        def ring(*_: object) -> None:
            self._hub.ring({topic})

        self._subscriptions[topic] = [
            self._connection.subscribe(subject, ring) for subject in self._subjects(topic)
        ]

    def _subjects(self, topic: str) -> list[bytes]:
        bell = f"{self._layout.namespace}.bell"
        kind, _, name = topic.partition(":")
        if topic == JOURNAL_TOPIC:
            return [f"{bell}.jobs.>".encode()]
        if topic == DOCUMENTS_TOPIC:
            return [f"{bell}.rec.doc.>".encode()]
        if kind == "job":
            return [f"{bell}.jobs.*.*.{name}.>".encode()]
        if kind == "work":
            service, _, queue = name.partition("/")
            return [self._layout.bell(topic), f"{bell}.due.{service}.{queue}.>".encode()]
        return [self._layout.bell(topic)]


def _running() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
