"""Bells: wake-ups within one process, from any thread to any event loop."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable

EVERYTHING = "*"
"""Rings every bell: used when what happened is not known in detail."""


class HubBell:
    """A bell of one event loop. Rings are remembered until the next wait."""

    def __init__(self, hub: BellHub, topics: frozenset[str]) -> None:
        self._hub, self.topics = hub, topics
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()
        self._rung = False
        self._hook: Callable[[], None] | None = None

    def ring(self) -> None:
        """Called from any thread."""
        if self._rung:
            return
        self._rung = True
        if running() is self._loop:
            self._sound()
            return
        try:
            self._loop.call_soon_threadsafe(self._sound)
        except RuntimeError:
            self._hub.remove(self)  # its event loop is closed: nobody can be waiting

    def _sound(self) -> None:
        if self._hook is None:
            self._event.set()
        else:
            self._rung = False
            self._hook()

    def tell(self, hook: Callable[[], None]) -> None:
        self._hook = hook
        if self._event.is_set():
            self._event.clear()
            self._sound()

    async def wait(self, timeout: float | None) -> bool:
        if not self._event.is_set():
            try:
                async with asyncio.timeout(timeout):
                    await self._event.wait()
            except TimeoutError:
                return False
        self._rung = False
        # A ring between these two lines sets the event in a later round of the loop, so it is not
        # lost; in the other order it would find `_rung` set and do nothing.
        self._event.clear()
        return True

    def close(self) -> None:
        self._hub.remove(self)


class BellHub:
    """All bells of a process by topic. `on_change` is told when the first bell comes or the last
    one goes."""

    def __init__(self, on_change: Callable[[bool], None] | None = None) -> None:
        self._bells: defaultdict[str, set[HubBell]] = defaultdict(set)
        self._lock = threading.Lock()
        self._on_change = on_change
        self._count = 0

    def listen(self, topics: frozenset[str]) -> HubBell:
        bell = HubBell(self, topics)
        self.add(bell)
        return bell

    def add(self, bell: HubBell) -> None:
        """Hangs up a bell."""
        with self._lock:
            for topic in bell.topics:
                self._bells[topic].add(bell)
            self._count += 1
            first = self._count == 1
        if first and self._on_change:
            self._on_change(True)

    def remove(self, bell: HubBell) -> None:
        with self._lock:
            known = False
            for topic in bell.topics:
                bells = self._bells.get(topic)
                if bells and bell in bells:
                    known = True
                    bells.discard(bell)
                    if not bells:
                        del self._bells[topic]
            self._count -= known
            last = known and self._count == 0
        if last and self._on_change:
            self._on_change(False)

    def ring(self, topics: Iterable[str]) -> None:
        """Rings the bells of these topics; called from any thread."""
        if not self._bells:
            return
        with self._lock:
            if EVERYTHING in (topics := set(topics)):
                bells = {bell for group in self._bells.values() for bell in group}
            elif len(topics) < len(self._bells):
                bells = {bell for t in topics for bell in self._bells.get(t, ())}
            else:
                bells = {bell for t, group in self._bells.items() if t in topics for bell in group}
        for bell in bells:
            bell.ring()

    def ring_one(self, topic: str) -> None:
        """The same for one topic; called from any thread."""
        with self._lock:
            bells = tuple(self._bells.get(topic, ()))
        for bell in bells:
            bell.ring()


def running() -> asyncio.AbstractEventLoop | None:
    """The event loop of this thread, if one runs."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
