"""The SQLite engine: one file, any number of processes on one machine."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import apsw

from headrace.core.admission import Verdict
from headrace.core.change import Answer, Change
from headrace.core.claims import Claimed, ClaimRequest, Lease, Renewal
from headrace.core.model import Counted, Document, Filter, KeyStatus, NewJob, Page
from headrace.core.search import parse_cursor
from headrace.engine.bells import HubBell
from headrace.engine.protocol import DOCUMENTS_TOPIC, Checkup, Details, Entry, Prune, Put
from headrace.engine.sqlite import bound, checkup, reader, upkeep
from headrace.engine.sqlite.find import find
from headrace.engine.sqlite.location import locate
from headrace.engine.sqlite.session import Fault, Home
from headrace.engine.sqlite.store import Store
from headrace.engine.sqlite.writer import Work

T = TypeVar("T")

MANY = 1000
"""The size of what is asked for where it cannot be told: no event loop should wait for it."""


class SqliteEngine:
    """An engine on a SQLite file. Any thread and event loop may use it.

    `where` is a path or a URL: `sqlite:jobs.db`, `sqlite:///var/lib/jobs.db?synchronous=normal`.
    `synchronous="full"` keeps every answered write through a loss of power; `"normal"` may lose
    the last ones. `busy_timeout` is how many seconds to wait while another program holds the
    write lock. `direct=False` never commits in the caller's event loop, however quick commits are.
    """

    overlap = 1

    def __init__(
        self,
        where: str | os.PathLike[str],
        *,
        synchronous: str | None = None,
        busy_timeout: float | None = None,
        direct: bool | None = None,
    ) -> None:
        self._home = Home(locate(where, synchronous, busy_timeout, direct))
        self._owns = True

    @property
    def url(self) -> str:
        return self._home.location.url

    @property
    def path(self) -> str:
        return self._home.location.path

    @property
    def fault(self) -> Fault | None:
        """A test's hook into the commit, called in the thread that commits at `begin`,
        `before_commit` and `after_commit`. Raising there is a crash at that point; one that waits
        needs an engine with `direct=False`."""
        return self._home.fault

    @fault.setter
    def fault(self, hook: Fault | None) -> None:
        self._home.fault = hook

    async def open(self) -> None:
        await asyncio.to_thread(self._home.open)

    async def close(self) -> None:
        """Commits what was accepted and lets go of the file. A twin lets its owner do that."""
        if self._owns:
            await asyncio.to_thread(self._home.close)

    def twin(self) -> SqliteEngine:
        handle = object.__new__(SqliteEngine)
        handle._home, handle._owns = self._home, False
        return handle

    def listen(self, topics: frozenset[str]) -> HubBell:
        return self._home.hub.listen(topics)

    # Writing

    def insert(
        self, groups: Sequence[Sequence[NewJob]], now: int
    ) -> Awaitable[list[tuple[Verdict, ...]]]:
        return self._home.session().writer.ask(
            lambda work: work.ledger.insert_all(groups, now),
            lambda wanted: wanted.insert(groups),
            len(groups[0]) if len(groups) == 1 else sum(map(len, groups)),
        )

    def claim(self, request: ClaimRequest, changes: Sequence[Change] = ()) -> Awaitable[Claimed]:
        return self._home.session().writer.ask(
            lambda work: work.ledger.exchange(request, changes),
            lambda wanted: wanted.apply(changes),
            max(request.limit, len(changes)),
        )

    def apply(self, changes: Sequence[Change]) -> Awaitable[list[Answer]]:
        return self._home.session().writer.ask(
            lambda work: work.ledger.apply_all(changes),
            lambda wanted: wanted.apply(changes),
            len(changes),
        )

    def extend(self, leases: Sequence[Lease], until: int) -> Awaitable[list[Renewal]]:
        return self._home.session().writer.ask(
            lambda work: work.records.renew(leases, until), size=len(leases)
        )

    def prune(self, order: Prune) -> Awaitable[int]:
        return self._home.session().writer.ask(
            lambda work: upkeep.prune(work.records, work.ledger, order), size=order.limit
        )

    def put(self, puts: Sequence[Put], now: int) -> Awaitable[list[Document | None]]:
        def run(work: Work) -> list[Document | None]:
            with work.records.bypassed() as store:
                documents = upkeep.put(store, puts, now)
            work.topics.add(DOCUMENTS_TOPIC)
            return documents

        return self._home.session().writer.ask(run)

    # Reading

    def _read(self, work: Callable[[Store], T], size: int = MANY) -> Awaitable[T]:
        return self._home.session().reader.ask(work, size=size)

    def get(self, ids: Sequence[str]) -> Awaitable[list[Details | None]]:
        return self._read(lambda store: reader.details(store, ids), len(ids))

    def find(self, filter: Filter, cursor: str | None = None, limit: int = 100) -> Awaitable[Page]:
        before = parse_cursor(cursor)
        return self._read(lambda store: find(store, filter, before, limit))

    def count(self, service: str | None = None) -> Awaitable[list[Counted]]:
        return self._read(lambda store: reader.count(store, service))

    def journal(
        self, after: int, limit: int = 1000, job_id: str | None = None
    ) -> Awaitable[list[Entry]]:
        return self._read(lambda store: reader.journal(store, after, limit, job_id))

    def scan(self, kind: str, now: int) -> Awaitable[list[Document]]:
        return self._read(lambda store: reader.documents(store, kind, now))

    def key(self, service: str, hash: str) -> Awaitable[KeyStatus | None]:
        return self._read(lambda store: reader.key_status(store, service, hash))

    def checkup(self, now: int) -> Awaitable[Checkup]:
        """Looks at the store and at the file, for `headrace doctor`; may take a while."""
        location = self._home.location
        return self._read(lambda store: checkup.checkup(store, location, now))

    # In a transaction of the caller

    def insert_on(
        self, connection: apsw.Connection, groups: Sequence[Sequence[NewJob]], now: int
    ) -> list[tuple[Verdict, ...]]:
        """Adds jobs on the caller's own connection, in the transaction that it has begun: they
        are there exactly if that is committed. Call `announce` with the answer afterwards."""
        return bound.insert(connection, self.path, groups, now)

    def announce(self, verdicts: Sequence[Sequence[Verdict]]) -> None:
        """Wakes whoever waits for the jobs of `insert_on`; without it they are found within a
        quarter of a second."""
        self._home.session().announce(*bound.news(verdicts))
