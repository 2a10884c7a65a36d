"""What workers do on their rounds: leases that ran out, and retention."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence

import msgspec

from headrace.core.actions import lapses
from headrace.core.admission import Holder
from headrace.core.model import Filter, Job, Page, Stage
from headrace.core.search import parse_cursor
from headrace.core.states import CLAIMABLE, FINAL, WAITING, State
from headrace.engine.ledger import Ledger
from headrace.engine.nats import documents
from headrace.engine.nats.errors import translated
from headrace.engine.nats.layout import WATCH
from headrace.engine.nats.lines import WINDOW
from headrace.engine.nats.parts import Known, Part, Timer, job_part
from headrace.engine.nats.session import Session
from headrace.engine.nats.tickets import DUE, LEASE, RUN, Place
from headrace.engine.nats.transaction import Transaction
from headrace.engine.nats.wire.stored import Stored
from headrace.engine.protocol import Prune

log = logging.getLogger("headrace.nats")

MOST = 400
"""So many jobs are deleted in one step."""

MISSED = 30_000
"""Milliseconds after which a timer should have told of a lease."""

_ACTIVE = frozenset({State.ACTIVE})
_HOLDER = msgspec.json.Decoder(Holder | None)


# Timers that fired


def asked_by_upkeep(filter: Filter) -> int | None:
    """The time at which upkeep asks for leases that ran out or jobs that came too late."""
    service = filter.service
    if filter == Filter(service=service, states=_ACTIVE, lease_until=filter.lease_until):
        return filter.lease_until
    if filter == Filter(service=service, states=WAITING, expires_until=filter.expires_until):
        return filter.expires_until
    return None


async def lapsed(session: Session, filter: Filter, limit: int) -> Page:
    """The jobs that timers told this session to look at, and that are overdue indeed. Workers
    learn of leases and times to start this way, not from the projection."""
    leases = filter.lease_until is not None
    if filter.service is not None:
        await _take_tickets(session, filter.service)
    found = await (_lapsed_leases if leases else _expired)(session, filter)
    return Page(tuple(found[:limit]))


async def _take_tickets(session: Session, service: str) -> None:
    """What the timers have left for whoever comes first."""
    line = session.line(Place(service, WATCH))
    more = True
    while more:
        tickets, full = await line.gather(WINDOW, paused=False)
        more = bool(full and tickets)
        for ticket in tickets:
            if ticket.kind == LEASE:
                ids = msgspec.json.decode(ticket.payload, type=tuple[str, ...])
                session.watch.leases[ticket.seq] = line, ticket, ids
            else:
                session.watch.expiries[ticket.seq] = line, ticket, ticket.whose


async def _lapsed_leases(session: Session, filter: Filter) -> list[Job]:
    now = filter.lease_until or 0
    watched = session.watch.leases
    missed = {id for id, of in session.watch.missed.items() if filter.service in (None, of)}
    for id in missed:
        del session.watch.missed[id]
    ids = {job_id for _, _, ids in watched.values() for job_id in ids}
    jobs = await _jobs(session, ids | missed)
    found = {id: job for id in missed if (job := jobs[id]) and _overdue(job, now)}
    for seq, (line, ticket, members) in list(watched.items()):
        if not all(id in jobs for id in members):
            continue  # it came while the others were read
        active = [job for id in members if (job := jobs[id]) and job.lease_until and lapses(job)]
        overdue = [job for job in active if _overdue(job, now)]
        found.update((job.id, job) for job in overdue)
        if not active:
            del watched[seq]
            line.give_up([ticket])
        elif not overdue:
            del watched[seq]
            soonest = min(job.lease_until or 0 for job in active)
            line.give_back([ticket], max(0.05, (soonest - now) / 1000))
    return [job for job in found.values() if filter.service in (None, job.service)]


def _overdue(job: Job, now: int) -> bool:
    return job.lease_until is not None and job.lease_until <= now


async def _expired(session: Session, filter: Filter) -> list[Job]:
    now = filter.expires_until or 0
    watched = session.watch.expiries
    jobs = await _jobs(session, {job_id for _, _, job_id in watched.values()})
    found: list[Job] = []
    for seq, (line, ticket, job_id) in list(watched.items()):
        if job_id not in jobs:
            continue  # it came while the others were read
        job = jobs[job_id]
        if job is None or job.state not in WAITING or job.expires_at is None:
            del watched[seq]
            line.give_up([ticket])
        elif job.expires_at > now:
            del watched[seq]
            line.give_back([ticket], (job.expires_at - now) / 1000)
        else:
            found.append(job)
    return [job for job in found if filter.service in (None, job.service)]


async def _jobs(session: Session, ids: set[str]) -> dict[str, Job | None]:
    if not ids:
        return {}
    with translated("reading jobs"):
        try:
            domains = await session.loader.domains(sorted(ids))
        except msgspec.DecodeError:
            return {id: await _readable(session, id) for id in ids}
    return {id: domain.job for id, domain in domains.items()}


async def _readable(session: Session, id: str) -> Job | None:
    """One that cannot be read must not hide the others."""
    try:
        return (await session.loader.domains([id]))[id].job
    except msgspec.DecodeError as error:
        log.error("job %s cannot be read and is left out: %s", id, error)
        return None


def _note_missed(session: Session, now: int) -> None:
    """Notes leases that ran out long ago and that no timer told of: it may be that the timer of a
    claim could not be stored, though its jobs were started. As many of each service: those of one
    without workers, or that only an operator may take from their owners, must not hide others."""
    wanted, cursor = Filter(states=_ACTIVE, lease_until=now - MISSED), None
    missed, noted = session.watch.missed, Counter[str]()
    missed.clear()
    while True:
        page = session.projection.find(wanted, parse_cursor(cursor), MOST)
        for job in page.jobs:
            if lapses(job) and noted[job.service] < MOST:
                noted[job.service] += 1
                missed[job.id] = job.service
        cursor = page.cursor
        if cursor is None:
            return


async def _line_up_again(session: Session, now: int) -> None:
    """Puts jobs back into line that can start and have no ticket: where the consumers of a queue
    have nothing left, and nobody has anything of theirs in hand, and yet jobs have waited for long.
    Nothing should lose a ticket; a consumer that lost its state would."""
    counted = session.projection.count()
    for place in {Place(c.service, c.queue) for c in counted if c.state in CLAIMABLE and c.jobs}:
        if await session.paused(place):
            continue
        waiting = Filter(service=place.service, queue=place.queue, states=CLAIMABLE)
        found = session.projection.find(waiting, None, MOST).jobs
        lost = [job.id for job in found if _should_have_started(job, now)]
        if lost and await session.line(place).idle():
            log.warning("%d jobs of queue %s had no ticket; lined up again", len(lost), place.queue)
            await session.committer.ask(_lining_up(lost, now), map(job_part, lost), now)


def _should_have_started(job: Job, now: int) -> bool:
    if job.stage is Stage.DELAYED:
        return job.run_at <= now - MISSED
    return job.stage is Stage.READY and job.updated_at <= now - MISSED


def _lining_up(ids: Sequence[str], now: int) -> Callable[[Ledger, Transaction], None]:
    def work(_: Ledger, transaction: Transaction) -> None:
        for job_id in ids:
            job = transaction.job(job_id)
            if job is not None and _should_have_started(job, now):
                if job.stage is Stage.DELAYED:
                    transaction.watch(Timer(job.service, job.queue, f"{RUN}.{job.id}", now))
                else:
                    transaction.save(job, job)

    return work


# Retention


async def prune(session: Session, order: Prune) -> int:
    """Deletes what the cut-offs allow, in one step."""
    await session.catch_up()
    projection = session.projection
    _note_missed(session, order.now)
    await _line_up_again(session, order.now)
    chosen = [projection.ended(cutoff, min(order.limit, MOST)) for cutoff in order.cutoffs]
    entries, floor = projection.old_entries(order.journal_before, order.limit)
    gone = 0
    if entries or any(chosen):
        gone = await _discard(session, order, chosen, floor if entries else 0)
    await _count_again(session, order.now)
    await _forget_holders(session, order.now)
    await _forget_documents(session, order.now)
    await _forget_timers(session)
    await _reclaim(session)
    return gone + entries


async def _discard(
    session: Session, order: Prune, chosen: Sequence[Sequence[Job]], floor: int
) -> int:
    def work(ledger: Ledger, transaction: Transaction) -> int:
        gone = 0
        if floor:
            transaction.raise_floor(floor)
        for jobs in chosen:
            for job in jobs:
                stored = transaction.job(job.id)
                if stored is not None and stored.version == job.version:
                    ledger.discard(stored, order.now)
                    gone += 1
                if len(transaction.drafts) > MOST:
                    return gone
        return gone

    parts = [job_part(job.id) for jobs in chosen for job in jobs]
    session.committer.forget()  # what keys have of ended jobs is looked up without a guard
    return await session.committer.ask(work, parts, order.now)


async def _count_again(session: Session, now: int) -> None:
    """Puts right what is counted of queues with limits: while a limit is set, somebody who has not
    heard of it yet may start or end a job uncounted."""
    for service, queue in {(one.service, one.queue) for one in session.projection.count()}:
        settings = await session.settings_of(Place(service, queue))
        if settings.max_active is None and settings.max_entries is None:
            continue
        with translated("reading counts"):
            found = await session.loader.tally(service, queue)
        counted = {c.state: c.jobs for c in await session.count(service) if c.queue == queue}
        wrong = found.value.counting and counted != {
            s: n for s, n in found.value.counts.items() if n
        }
        if wrong:
            await session.committer.ask(_correcting(found, service, queue, counted), [], now)


def _correcting(
    found: Known, service: str, queue: str, counts: dict[State, int]
) -> Callable[[Ledger, Transaction], None]:
    part = Part("tally", queue, service)

    def work(_: Ledger, transaction: Transaction) -> None:
        transaction.correct(part, found, counts)

    return work


async def _forget_holders(session: Session, now: int) -> None:
    """Dedup keys whose window is over and whose job has ended hold nothing any more."""
    held: list[tuple[Stored, Holder]] = []
    for one in await _everything(session, session.layout.dedups()):
        holder = _HOLDER.decode(one.payload)
        if holder and holder.held_until is not None and holder.held_until <= now:
            held.append((one, holder))
    jobs = await _jobs(session, {holder.job_id for _, holder in held})
    for one, holder in held:
        job = jobs[holder.job_id]
        if job is None or job.state in FINAL:
            await _purge(session, one)


async def _forget_documents(session: Session, now: int) -> None:
    filter = f"{session.layout.namespace}.rec.doc.>".encode()
    for one in await _everything(session, filter):
        sheet = msgspec.json.decode(one.payload, type=documents.Sheet)
        if sheet.deleted or (sheet.expires_at is not None and sheet.expires_at <= now):
            await _purge(session, one)


async def _forget_timers(session: Session) -> None:
    """What timers have left, and everybody has seen to, would stay for ever."""
    queues = {Place(one.service, one.queue) for one in session.projection.count()}
    for place in queues | {Place(service, WATCH) for service, _ in queues}:
        line = session.line(place)
        floor = await line.floor(DUE)
        if floor > line.cleared:
            with translated("pruning"):
                filter = session.layout.due(*place).encode()
                await session.js.purge(session.layout.stream, filter, upto_seq=floor + 1)
            line.cleared = floor


async def _purge(session: Session, stored: Stored) -> None:
    """Deletes a record, unless it was written again meanwhile."""
    with translated("pruning"):
        await session.js.purge(session.layout.stream, stored.subject, upto_seq=stored.seq + 1)


async def _everything(session: Session, filter: bytes) -> list[Stored]:
    with translated("pruning"):
        return await session.js.read_all(session.layout.stream, filter)


async def _reclaim(session: Session) -> None:
    """Deletes the messages of jobs that are gone and that the journal no longer tells of."""
    gone = session.projection.gone(200)
    for job in gone:
        domain = session.layout.domain(job.id)
        with translated("pruning"):
            await session.js.purge(session.layout.stream, domain, upto_seq=job.last + 1)
    session.projection.forget([job.id for job in gone])
