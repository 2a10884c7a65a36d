"""What an open engine holds: its writer and reader, its ear and post."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable

from headrace.core.errors import EngineUnavailable
from headrace.engine.bells import BellHub
from headrace.engine.sqlite.location import Location
from headrace.engine.sqlite.reader import Reader
from headrace.engine.sqlite.schema import connect
from headrace.engine.sqlite.span import Span
from headrace.engine.sqlite.standing import read_head
from headrace.engine.sqlite.turn import Turn
from headrace.engine.sqlite.wake import Ear, Post, directory
from headrace.engine.sqlite.writer import Reach, Writer

log = logging.getLogger("headrace.sqlite")

Fault = Callable[[str], None]


class Session:
    """The threads and connections of one process, from `open` to `close`."""

    def __init__(self, location: Location, hub: BellHub, reach: Reach) -> None:
        self._hub = hub
        store = connect(location)  # creates the file, which the rest relies on
        head = read_head(store)
        folder = directory(location.path)
        self.writer = Writer(location, store, Turn(folder), self.announce, reach)
        self._post = Post(folder)
        self._mute = False
        self.ear = Ear(location, folder, hub, head)
        self.reader = Reader(location)

    def announce(self, topics: set[str], span: Span) -> None:
        """Wakes whom a commit concerns, here and in the other processes."""
        self.ear.saw(span)
        if topics:
            self._hub.ring(topics)
            self._tell_others(topics, span)

    def _tell_others(self, topics: set[str], span: Span) -> None:
        """They look by themselves too, so that a word lost costs them a quarter of a second."""
        try:
            self._post.send(topics, span, self.ear.path)
        except OSError as error:
            if not self._mute:
                log.warning("other processes are not told of commits: %s", error)
            self._mute = True
        else:
            self._mute = False

    def stop(self) -> None:
        """Commits what was asked, answers what was read, and ends the threads."""
        self.reader.stop()
        self.ear.close()
        self.writer.stop()
        self._post.close()


_abandoned: list[object] = []
"""What a child process inherited through a fork. Never closed, not even by the garbage collector:
the connections and sockets are the parent's."""


class Home:
    """An engine and its twins: where the file is, and the session while it is open."""

    def __init__(self, location: Location) -> None:
        self.location = location
        self.fault: Fault | None = None
        self.hub = BellHub(self._bells)
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._session: Session | None = None
        self._listening = False

    def session(self) -> Session:
        if self._session is None or self._pid != os.getpid():
            raise EngineUnavailable(
                f"{self.location.path}: the engine is not open in this process; call open() first"
            )
        return self._session

    def open(self) -> None:
        """Opens the file; may wait for a lock, so not for an event loop's thread."""
        if self._pid != os.getpid():
            _abandoned.append((self._session, self.hub))
            self._pid = os.getpid()
            self._lock = threading.Lock()
            self._session, self._listening = None, False
            self.hub = BellHub(self._bells)
        with self._lock:
            if self._session is None:
                self._session = Session(self.location, self.hub, self._reach)
                self._session.ear.want(self._listening)

    def close(self) -> None:
        with self._lock:
            session, self._session = self._session, None
        if session is not None and self._pid == os.getpid():
            session.stop()

    def _bells(self, wanted: bool) -> None:
        self._listening = wanted
        session = self._session
        if session is not None:
            session.ear.want(wanted)

    def _reach(self, point: str) -> None:
        if self.fault is not None:
            self.fault(point)
