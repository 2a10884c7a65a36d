"""Wake-ups between processes.

A process that listens binds a datagram socket in a directory that belongs to the database file;
whoever commits sends the topics to every other socket there. Beside that, the listener looks
every quarter of a second whether somebody committed without a word: a process of another user, in
a container, or a connection that is not ours.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import stat
import tempfile
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import cast

import apsw
import msgspec
from msgspec import Struct

from headrace.core.errors import EngineError
from headrace.engine.bells import EVERYTHING, BellHub
from headrace.engine.sqlite.location import Location
from headrace.engine.sqlite.span import Coverage, Span
from headrace.engine.sqlite.standing import Head, read_head
from headrace.engine.sqlite.store import Store, open_store

POLL = 0.25
SUFFIX = ".ear"
_LINGER = 5.0
"""So long a socket stays bound after the last bell has gone."""
_FRESH = 0.1
"""A directory that changed less than this ago may change again with the same time stamp."""
_LONGEST = 32_768
_PER_MESSAGE = 500
_MOST = 2_000
"""Topics; with more, everything rings."""
_PATH_LIMIT = 100
_number = itertools.count(1)


class News(Struct, frozen=True, array_like=True):
    """One datagram: what a commit did, and what to ring."""

    span: Span
    topics: list[str]


_DECODER = msgspec.json.Decoder(News)


def directory(path: str) -> Path | None:
    """The directory for the sockets of a database file; None where there can be none."""
    if not hasattr(socket, "AF_UNIX"):
        return None
    try:
        info = os.stat(path)
        base = Path(tempfile.gettempdir()) / f"headrace-{os.getuid()}"
        folder = base / f"{info.st_dev:x}-{info.st_ino:x}"
        for each in (base, folder):
            each.mkdir(mode=0o700, exist_ok=True)
            found = each.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
                return None  # somebody else's: they could read our topics
    except OSError:
        return None
    return folder if len(str(folder)) < _PATH_LIMIT - 20 else None


class Post:
    """Sends news to the other processes. Used by one thread at a time."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = None if folder is None else str(folder)
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._listed: tuple[int, list[str]] | None = None
        self._behind: set[str] = set()
        """Who missed news because its socket was full: the next ring everything."""

    def send(self, topics: Iterable[str], span: Span, own: str | None) -> None:
        if self._folder is None:
            return
        with self._lock:
            found = self._others(self._folder)
            others = [path for path in found if path != own] if found else found
            if not others:
                return
            if self._socket is None:
                self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
                self._socket.setblocking(False)
            news = _messages(list(topics), span)
            for path in others:
                everything = path in self._behind
                self._deliver(path, _messages([EVERYTHING], span) if everything else news)

    def _deliver(self, path: str, news: list[bytes]) -> None:
        assert self._socket
        self._behind.discard(path)
        try:
            for message in news:
                self._socket.sendto(message, path)
        except (BlockingIOError, InterruptedError):
            self._behind.add(path)
        except (ConnectionRefusedError, FileNotFoundError):
            with contextlib.suppress(OSError):  # its process is gone
                os.unlink(path)
        except OSError:
            self._behind.add(path)

    def _others(self, folder: str) -> list[str]:
        try:
            changed = os.stat(folder).st_mtime_ns
            if self._listed and self._listed[0] == changed:
                return self._listed[1]
            found = [entry.path for entry in os.scandir(folder) if entry.name.endswith(SUFFIX)]
        except OSError:
            return []
        settled = time.time_ns() - changed > _FRESH * 1e9
        self._listed = (changed, found) if settled else None
        return found

    def close(self) -> None:
        with self._lock:
            if self._socket is not None:
                self._socket.close()
                self._socket = None


def _messages(topics: list[str], span: Span) -> list[bytes]:
    if len(topics) > _MOST:
        topics = [EVERYTHING]
    parts = [topics[n : n + _PER_MESSAGE] for n in range(0, len(topics), _PER_MESSAGE)]
    messages = [msgspec.json.encode(News(span, part)) for part in parts]
    if any(len(message) > _LONGEST for message in messages):
        return [msgspec.json.encode(News(span, [EVERYTHING]))]
    return messages


class Ear:
    """Listens while somebody in this process has a bell."""

    def __init__(self, location: Location, folder: Path | None, hub: BellHub, head: Head) -> None:
        """`head` is how far the store has got: what came before concerns no bell to come."""
        self._location, self._folder, self._hub = location, folder, hub
        self._lock, self._told = threading.Lock(), threading.Lock()
        self._wanted = False
        self._closed = False
        self._silent_since = 0.0
        self._thread: threading.Thread | None = None
        self._socket: socket.socket | None = None
        self.path: str | None = None
        self._entries = Coverage(head.seq)
        self._documents = Coverage(head.revision)

    def want(self, wanted: bool) -> None:
        """Told when the first bell comes or the last one goes. When this returns, no commit after
        it goes unheard."""
        with self._lock:
            self._wanted = wanted
            self._silent_since = time.monotonic()
            if wanted and self._thread is None and not self._closed:
                self._bind()
                self._thread = threading.Thread(target=self._run, name="headrace-ear", daemon=True)
                self._thread.start()

    def saw(self, span: Span) -> None:
        """This process was told of a commit."""
        with self._told:
            self._entries.add(span.seq_before, span.seq)
            self._documents.add(span.revision_before, span.revision)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            thread, path = self._thread, self.path
        if thread is None:
            return
        if path is not None:
            with contextlib.suppress(OSError), _datagram() as knock:
                knock.sendto(b"", path)
        thread.join()

    def _bind(self) -> None:
        if self._folder is None:
            return
        path = str(self._folder / f"{os.getpid()}-{next(_number)}{SUFFIX}")
        try:
            ear = _datagram()
        except OSError:  # out of file descriptors: there is the look every quarter of a second
            return
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)  # of a process long gone that had our number
            ear.bind(path)
            ear.settimeout(POLL)
        except OSError:
            ear.close()
        else:
            self._socket, self.path = ear, path

    def _run(self) -> None:
        store: Store | None = None
        version, next_look = -1, 0.0
        try:
            while not self._leave():
                if time.monotonic() >= next_look:
                    next_look = time.monotonic() + POLL
                    try:
                        store = store or open_store(self._location)
                        version = self._look(store, version)
                    except (apsw.Error, EngineError):
                        # The engine's own calls will say what is wrong; here only time is lost.
                        store, version = None, -1
                topics = self._receive()
                if topics:
                    self._hub.ring(topics)
        finally:
            if store is not None:
                store.close()

    def _leave(self) -> bool:
        """Whether nobody listens any more; the socket is gone then."""
        with self._lock:
            quiet = time.monotonic() - self._silent_since > _LINGER
            if not self._closed and (self._wanted or not quiet):
                return False
            if self._socket is not None:
                self._socket.close()
            if self.path is not None:
                with contextlib.suppress(OSError):
                    os.unlink(self.path)
            self._socket = self.path = self._thread = None
            return True

    def _receive(self) -> list[str]:
        """The topics of one datagram; nothing after a quarter of a second."""
        if self._socket is None:
            time.sleep(POLL)
            return []
        try:
            news = _DECODER.decode(self._socket.recv(2 * _LONGEST))
        except (OSError, msgspec.DecodeError):
            return []
        self.saw(news.span)
        return news.topics

    def _look(self, store: Store, version: int) -> int:
        """Rings everything where somebody committed what this process was not told."""
        row = store.fetch("PRAGMA data_version")
        assert row
        now = cast(int, row[0])
        if now == version:
            return version
        head = read_head(store)
        with self._told:
            known = self._entries.reach(head.seq)
            known &= self._documents.reach(head.revision)
        if not known:
            self._hub.ring([EVERYTHING])
        return now


def _datagram() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
