"""Claiming: from the tickets of the lines to jobs that have started."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Protocol

from headrace.core.claims import Claimed, ClaimRequest
from headrace.core.model import Job, Stage
from headrace.engine.ledger import Ledger
from headrace.engine.nats import message, plain
from headrace.engine.nats.commit import Committer, punctual
from headrace.engine.nats.errors import translated
from headrace.engine.nats.layout import WATCH, Layout
from headrace.engine.nats.lines import DUE, Line, Place, Ticket, line_named
from headrace.engine.nats.patience import PatientJetStream
from headrace.engine.nats.transaction import (
    Domain,
    Transaction,
    job_part,
    replace,
)

PASSES = 20
"""How often a claim looks for more where tickets turned out to be out of date."""

MOST = 1000
"""The most tickets of a line that a claim looks at."""

SOON = 16
"""The most tickets that may come by themselves to a worker that found nothing."""

AGAIN = 2.0
"""Seconds after which a ticket of a paused queue is looked at again."""


class Home(plain.Home, Protocol):
    """What claiming needs of its session."""

    js: PatientJetStream
    layout: Layout
    committer: Committer
    watch: Watch

    @property
    def repeats(self) -> int: ...

    def line(self, place: Place) -> Line: ...
    async def paused(self, place: Place) -> bool: ...


class Watch:
    """Jobs that timers say should be looked at: a lease may have run out, or a time to start."""

    def __init__(self) -> None:
        self.leases: dict[bytes, tuple[Line, Ticket, tuple[str, ...]]] = {}
        self.expiries: dict[bytes, tuple[Line, Ticket, str]] = {}
        self.rests: list[tuple[Line, Ticket]] = []


async def claim(home: Home, request: ClaimRequest) -> Claimed:
    """Starts jobs until there are enough or no more."""
    jobs: list[Job] = []
    claimed = Claimed(())
    for attempt in range(PASSES):
        taken = Counter(job.queue for job in jobs)
        left = replace(
            request,
            limit=request.limit - len(jobs),
            shares=tuple(
                replace(share, at_most=max(0, share.at_most - taken[share.queue]))
                for share in request.shares
            ),
        )
        await _finish(home)
        claimed, more = await _pass(home, left, min(left.limit << attempt, MOST))
        jobs += claimed.jobs
        if not more or len(jobs) >= request.limit or not request.limit:
            break
    else:
        claimed = replace(claimed, next_due=request.now)
    if not jobs and request.limit and punctual(request.now):
        for share in request.shares:
            home.line(Place(request.service, share.queue)).linger(min(share.at_most, SOON))
    return replace(claimed, jobs=tuple(jobs))


async def _finish(home: Home) -> None:
    """Goes on with what others have left unfinished."""
    rests, home.watch.rests = home.watch.rests, []
    try:
        await home.committer.finish()
    except BaseException:
        home.watch.rests += rests
        raise
    for line, ticket in rests:
        line.give_up([ticket])


class _Narrow(Exception):
    """Some of the first jobs cannot start, and what is behind them may come before others."""

    def __init__(self, stale: Iterable[Ticket]) -> None:
        super().__init__()
        self.stale = {ticket.reply for ticket in stale}


async def _pass(home: Home, request: ClaimRequest, want: int) -> tuple[Claimed, bool]:
    """Claims from the first `want` of each line; the more passes, the more are looked at."""
    places = {Place(request.service, share.queue): None for share in request.shares}
    lines: dict[Line, list[Ticket]] = {}
    delayed: list[str] = []
    more: dict[Line, set[str]] = {}
    for place in places:
        line = home.line(place)
        paused = await home.paused(place)
        if request.limit:
            tickets, more[line] = await line.gather(want, paused)
            lines[line] = _sorted_out(home, line, tickets, paused, request.now)
        if not punctual(request.now):
            delayed += await _delayed(home, place)
    started = await _start_plain(home, request, lines) if not delayed else None
    if started is not None:
        return started[0], started[1] > 0
    all_tickets = [ticket for tickets in lines.values() for ticket in tickets]
    home.forget(*(ticket.what[1] for ticket in all_tickets))  # tickets may know better
    about = Counter(job_part(ticket.what[1]) for ticket in all_tickets)
    about.update(map(job_part, delayed))  # a timer may know better than the ticket
    known = {
        part: domain
        for ticket in all_tickets
        if about[part := job_part(ticket.what[1])] == 1 and (domain := _told_by(ticket))
    }
    wanted = about.keys() - known.keys()
    seen: list[Transaction] = []
    tried: dict[str, Job] = {}
    repeats = home.repeats

    def know(transaction: Transaction) -> None:
        for part, domain in known.items():
            if not transaction.believe(part):
                transaction.know(part, domain, domain.last)

    def work(ledger: Ledger, transaction: Transaction) -> Claimed:
        seen[:] = [transaction]
        needed = known.keys() - transaction.known.keys()
        if needed:
            transaction.missing |= needed
            return Claimed(())
        if home.repeats > repeats and (own := _own(transaction, tried)):
            return Claimed(own)
        for line, names in more.items():
            if want < MOST and not transaction.missing:
                _look_behind(transaction, request, lines[line], names)
        claimed = ledger.claim(request)
        tried.update((job.id, job) for job in claimed.jobs)
        _watch_leases(transaction, request, claimed.jobs)
        return claimed

    try:
        claimed = await home.committer.ask(work, wanted, request.now, know)
    except _Narrow as narrow:
        for line, tickets in lines.items():
            line.give_up(ticket for ticket in tickets if ticket.reply in narrow.stale)
            line.hand_on(ticket for ticket in tickets if ticket.reply not in narrow.stale)
        return Claimed(()), True
    except BaseException:
        for line, tickets in lines.items():
            line.give_back(tickets)
        raise
    useless = sum(
        _settle(line, tickets, seen[0], claimed.jobs, request.now)
        for line, tickets in lines.items()
    )
    return claimed, any(more.values()) and useless > 0


async def _start_plain(
    home: Home, request: ClaimRequest, lines: dict[Line, list[Ticket]]
) -> tuple[Claimed, int] | None:
    """Starts jobs each on its own, where all that there is are plain ones in plain queues; with
    how many tickets were of no use."""
    if not home.has_line(Place(request.service, WATCH), DUE):
        return None
    found: dict[str, list[tuple[Ticket, Job]]] = {}
    for line, tickets in lines.items():
        settings = home.known_settings(*line.place)
        if not plain.simple(settings) or (settings and settings.paused):
            return None
        jobs = [(ticket, plain.startable(home, ticket, request.now)) for ticket in tickets]
        some = [(ticket, job) for ticket, job in jobs if job]
        if len(some) < len(tickets):
            return None
        some.sort(key=lambda one: (one[1].priority, one[1].position))
        found[line.place.queue] = some
    chosen: list[tuple[Ticket, Job]] = []
    for share in request.shares:
        room = min(share.at_most, request.limit - len(chosen))
        line_up = found.get(share.queue, [])
        chosen += line_up[:room]
        found[share.queue] = line_up[room:]
    try:
        jobs = await plain.start(home, request, chosen)
    except BaseException:
        for line, tickets in lines.items():
            line.give_back(tickets)
        raise
    by_queue = {line.place.queue: line for line in lines}
    refused = 0
    for (ticket, before), job in zip(chosen, jobs, strict=True):
        if job is None:
            refused += 1
            known = ticket._replace(delivered=ticket.delivered + 1)  # needs a closer look
            by_queue[before.queue].hand_on([known])
        else:
            by_queue[before.queue].give_up([ticket])
    for line in lines:
        line.hand_on(ticket for ticket, _ in found[line.place.queue])
    return Claimed(tuple(job for job in jobs if job)), refused


def _own(transaction: Transaction, tried: dict[str, Job]) -> tuple[Job, ...]:
    """The jobs that this claim has started already: it was stored, and the answer lost."""
    found = [(transaction.job(started.id), started) for started in tried.values()]
    return tuple(job for job, started in found if job and plain.same_start(job, started))


def _look_behind(
    transaction: Transaction, request: ClaimRequest, tickets: Sequence[Ticket], full: set[str]
) -> None:
    """Raises where a line may have jobs that come before those of others, behind some that cannot
    start."""
    for name in full:
        own = [ticket for ticket in tickets if line_named(ticket) == name]
        able = sum(_can_start(ticket, transaction, request.now) for ticket in own)
        if able < request.limit:
            raise _Narrow(ticket for ticket in own if _is_stale(ticket, transaction))


def _can_start(ticket: Ticket, transaction: Transaction, now: int) -> bool:
    job = _job(ticket, transaction)
    if job is None or _is_stale(ticket, transaction):
        return False
    if job.expires_at is not None and job.expires_at <= now:
        return False
    return job.key is None or (
        transaction.key(job.service, job.key.hash).active < job.key.max_active
    )


def _is_stale(ticket: Ticket, transaction: Transaction) -> bool:
    """Whether a job's ticket tells nothing of how it stands now."""
    kind, job_id = ticket.what
    if kind != "job":
        return False
    domain: Domain = transaction.known[job_part(job_id)].value
    job = domain.job
    return job is None or job.stage is not Stage.READY or domain.newest != ticket.seq


def _job(ticket: Ticket, transaction: Transaction) -> Job | None:
    domain: Domain = transaction.known[job_part(ticket.what[1])].value
    return domain.job


def _watch_leases(transaction: Transaction, request: ClaimRequest, jobs: Iterable[Job]) -> None:
    """Has someone look when the leases of this claim would have run out."""
    if ids := [job.id for job in jobs]:
        transaction.watch(plain.lease_timer(request, ids))


def _told_by(ticket: Ticket) -> Domain | None:
    """A new job's ticket is the job itself, as far as anybody knows."""
    kind, _ = ticket.what
    if kind != "job" or ticket.event != "created" or ticket.delivered > 1:
        return None
    letter = message.read(ticket.seq, ticket.payload)
    return Domain(last=ticket.seq, newest=ticket.seq, job=letter.job(letter.spec()))


def _sorted_out(
    home: Home, line: Line, tickets: Sequence[Ticket], paused: bool, now: int
) -> list[Ticket]:
    """Keeps those that are about starting a job; puts the others aside."""
    found: list[Ticket] = []
    later: list[Ticket] = []
    for ticket in tickets:
        kind, whose = ticket.what
        if kind == "rest":
            home.committer.unfinished.setdefault(whose, now)
            home.watch.rests.append((line, ticket))
        elif paused:
            later.append(ticket)
        else:
            found.append(ticket)
    line.give_back(later, AGAIN)
    return found


async def _delayed(home: Home, place: Place) -> list[str]:
    """The jobs that have a timer; only asked for where somebody moves the clock by hand."""
    filter = home.layout.timer(*place, "run.*")
    with translated("reading timers"):
        found = await home.js.read_all(home.layout.stream, filter)
    return [one.subject.rsplit(b".", 1)[1].decode() for one in found]


def _settle(
    line: Line,
    tickets: Sequence[Ticket],
    transaction: Transaction,
    started: Sequence[Job],
    now: int,
) -> int:
    """Gives up the tickets of jobs that started or cannot start, and hands on the others; returns
    how many were of no use."""
    used: list[Ticket] = []
    others: list[Ticket] = []
    ids = {job.id for job in started}
    for ticket in tickets:
        kind, job_id = ticket.what
        part = job_part(job_id)
        known = transaction.known.get(part)
        domain: Domain = known.value if known else Domain()
        job = domain.job
        if job_id in ids or part in transaction.values or job is None:
            used.append(ticket)
        elif kind == "run":
            if job.stage is Stage.DELAYED and job.run_at > now:
                line.give_back([ticket], min((job.run_at - now) / 1000, 3600))
            elif job.stage is Stage.DELAYED:
                others.append(ticket)
            else:
                used.append(ticket)
        elif job.stage is Stage.READY and domain.newest == ticket.seq:
            others.append(ticket)
        else:
            used.append(ticket)
    line.give_up(used)
    line.hand_on(others)
    return sum(ticket.what[1] not in ids for ticket in used)
