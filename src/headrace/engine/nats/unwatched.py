"""Jobs that run and that no timer watches: their tickets do.

Most jobs end before anybody could miss them. So the start of a plain job stores no timer, and its
ticket is not given up: if whoever started it is killed, the ticket comes to another worker, who
finds that the job runs and keeps the ticket in the same way. What still runs after a moment gets a
timer, one for all that started with it, and then its ticket is given up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import groupby
from typing import NamedTuple, Protocol

from headrace.core.errors import HeadraceError
from headrace.core.model import Job
from headrace.engine.nats.batch import block, schedule
from headrace.engine.nats.errors import translated
from headrace.engine.nats.layout import Layout
from headrace.engine.nats.lines import ACK_WAIT, Line
from headrace.engine.nats.parts import lease_timer
from headrace.engine.nats.patience import PatientJetStream
from headrace.engine.nats.tickets import Ticket
from headrace.engine.nats.wire.jetstream import Pending

MOMENT = 0.25
"""Seconds for which a job needs no timer; it gets one at the latest after twice that."""

TOGETHER = 1000
"""So many jobs are named by one timer."""


class Home(Protocol):
    """What this needs of its session."""

    js: PatientJetStream
    layout: Layout


def outlasts_tickets(lease: int) -> bool:
    """Whether a ticket comes to another worker before a lease of so many milliseconds is over."""
    return lease * 1_000_000 >= ACK_WAIT


def lease_watch(home: Home, service: str, ids: Sequence[str], at: int) -> Pending:
    """The message that has somebody look at some jobs at a time of the server's clock."""
    service, queue, what, at, body = lease_timer(service, ids, at)
    headers = block(schedule(at, home.layout.fired(service, queue, what)))
    return Pending(home.layout.timer(service, queue, what), body, headers)


class _Kept(NamedTuple):
    """The ticket of a job that runs."""

    job_id: str
    service: str
    line: Line
    ticket: Ticket
    ends: int
    """When the job's lease does, by the server's clock."""
    since: float


class Unwatched:
    """The tickets that watch jobs."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._kept: dict[str, _Kept] = {}
        self._rounds: asyncio.Task[None] | None = None
        self._closed = False

    def add(self, job: Job, line: Line, ticket: Ticket, ahead: int) -> None:
        """Keeps the ticket of a job that runs. The server's clock is so many milliseconds `ahead`
        of the one that its lease goes by."""
        if self._closed:
            line.give_back([ticket])
            return
        loop = asyncio.get_running_loop()
        spec, ends = job.spec, (job.lease_until or 0) + ahead
        self._kept.pop(spec.id, None)
        self._kept[spec.id] = _Kept(spec.id, spec.service, line, ticket, ends, loop.time())
        if self._rounds is None:
            self._rounds = loop.create_task(self._go_round())

    def ended(self, job: Job) -> None:
        """Nobody needs to watch it any more, but another one that has got its id since."""
        kept = self._kept.get(job.spec.id)
        if kept is not None and kept.ticket.seq < job.version:
            self._give_up(kept)

    def _give_up(self, kept: _Kept) -> None:
        del self._kept[kept.job_id]
        kept.line.give_up([kept.ticket])

    async def _go_round(self) -> None:
        try:
            while self._kept:
                await asyncio.sleep(MOMENT)
                for some in self._lasting():
                    with suppress(HeadraceError):  # the next time, then; or the tickets come again
                        await self._watch(some)
        finally:
            self._rounds = None

    async def _watch(self, some: Sequence[_Kept]) -> None:
        """Sets a timer for some jobs of one service."""
        ids, ends = [kept.job_id for kept in some], min(kept.ends for kept in some)
        with translated("watching jobs"):
            timer = lease_watch(self._home, some[0].service, ids, ends)
            await self._home.js.store_batch([timer])
        for kept in some:
            if self._kept.get(kept.job_id) is kept:
                self._give_up(kept)

    def _lasting(self) -> Iterator[Sequence[_Kept]]:
        """Those that have been running for a moment."""
        before = asyncio.get_running_loop().time() - MOMENT
        lasting = [kept for kept in self._kept.values() if kept.since <= before]
        lasting.sort(key=lambda kept: kept.service)
        for _, group in groupby(lasting, key=lambda kept: kept.service):
            some = list(group)
            for start in range(0, len(some), TOGETHER):
                yield some[start : start + TOGETHER]

    def drop(self) -> None:
        """Their stream is gone."""
        self._kept.clear()

    def close(self) -> None:
        """Whoever comes next is to watch them."""
        self._closed = True
        if self._rounds is not None:
            self._rounds.cancel()
        for kept in self._kept.values():
            kept.line.give_back([kept.ticket])
        self._kept.clear()
