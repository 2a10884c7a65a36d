"""Wake-ups over NATS: the topics that somebody listens to are subscriptions.

Whoever made a change rings for it once it is stored: one message for each queue that has work,
each worker that lost a job, and one for all jobs that changed, which names them. What timers leave
is rung by the stream itself, which publishes their subject once more.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterable

from headrace.engine.bells import EVERYTHING, BellHub, HubBell, running
from headrace.engine.nats.layout import Layout
from headrace.engine.nats.wire.connection import Connection, Subscription
from headrace.engine.nats.wire.errors import WireError
from headrace.engine.protocol import JOURNAL_TOPIC


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
        self._saw: Callable[[int], None] | None = None
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

    def attach(self, connection: Connection, saw: Callable[[int], None]) -> None:
        """Rings from this connection on, which is of this event loop; `saw` is told how far the
        stream is known to have come."""
        self._connection, self._loop = connection, asyncio.get_running_loop()
        self._saw = saw
        self._subscriptions.clear()
        self._subscribe()

    def detach(self, connection: Connection) -> bool:
        """Whether it was this connection that rang."""
        if self._connection is not connection:
            return False
        self._connection = self._loop = None
        return True

    def ring_here(self, topic: str) -> None:
        """Rings in this process only."""
        self._hub.ring_one(topic)

    def ring_all(self) -> None:
        """Something may have happened that nobody told."""
        self._hub.ring({EVERYTHING})

    def ring(self, topics: Iterable[str], connection: Connection, highest: int) -> None:
        """Rings everywhere, once what was done is stored, up to the sequence `highest`. Whoever
        cannot be told looks by himself after a while; what was done is done."""
        if not connection.connected:
            return
        layout, names = self._layout, list[str]()
        with contextlib.suppress(WireError):
            for topic in topics:
                kind, name = _read(topic)
                if kind == JOB:
                    names.append(name)
                elif topic != JOURNAL_TOPIC:
                    connection.publish(layout.bell(kind, name), b"%d" % highest)
            for start in range(0, len(names) or 1, NAMED):
                words = " ".join([str(highest), *names[start : start + NAMED]])
                connection.publish(layout.bell(_JOBS), words.encode())

    def _pull(self) -> None:
        """Has the connection's own loop see to the subscriptions."""
        loop = self._loop
        if loop is None:
            return
        if loop is running():
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

        def ring(_: bytes, __: object, ___: object, payload: bytes) -> None:
            self._heard(payload)
            self._hub.ring_one(topic)

        def ring_if_named(_: bytes, __: object, ___: object, payload: bytes) -> None:
            words = payload.split(b" ")
            if wanted in words:
                self._heard(words[0])
                self._hub.ring_one(topic)

        kind, name = _read(topic)
        wanted = name.encode()
        callback = ring_if_named if kind == JOB else ring
        self._subscriptions[topic] = [
            self._connection.subscribe(subject, callback)
            for subject in self._subjects(topic, kind, name)
        ]

    def _heard(self, highest: bytes) -> None:
        """What was rung for is stored: whoever wakes up reads nothing older."""
        if self._saw is not None and highest.isdigit():
            self._saw(int(highest))

    def _subjects(self, topic: str, kind: str, name: str) -> list[bytes]:
        layout = self._layout
        if kind == JOB or topic == JOURNAL_TOPIC:
            return [layout.bell(_JOBS)]
        if kind == "work":
            service, _, queue = name.partition("/")
            return [layout.bell(kind, name), layout.due_bell(service, queue)]
        return [layout.bell(kind, name)]


NAMED = 1000
"""So many jobs are named in one message."""

_JOBS = "jobs"
JOB = "job"


def _read(topic: str) -> tuple[str, str]:
    """The kind of a topic, and its name."""
    if topic[0] != "/":
        return JOB, topic
    kind, _, name = topic[1:].partition("/")
    return kind, name
