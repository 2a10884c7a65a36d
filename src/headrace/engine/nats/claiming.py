"""Claiming: from the tickets of the lines to jobs that have started."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import Protocol

from headrace.core.change import Answer, Change
from headrace.core.claims import Claimed, ClaimRequest
from headrace.core.errors import EngineUnavailable
from headrace.core.model import Job, Stage
from headrace.core.states import State
from headrace.engine.ledger import Ledger
from headrace.engine.nats import message, plain
from headrace.engine.nats.commit import Committer, punctual
from headrace.engine.nats.errors import translated
from headrace.engine.nats.layout import WATCH, Layout
from headrace.engine.nats.lines import SOON, Line
from headrace.engine.nats.parts import Domain, Part, job_part, key_part, lease_timer
from headrace.engine.nats.patience import PatientJetStream
from headrace.engine.nats.tickets import DUE, JOB, REST, RUN, Place, Ticket
from headrace.engine.nats.transaction import Transaction, replace
from headrace.engine.nats.unwatched import Unwatched, outlasts_tickets

PASSES = 20
"""How often a claim looks for more where tickets turned out to be out of date."""

MOST = 1000
"""The most tickets of a line that a claim looks at."""

BUSY = 8
"""A worker that hands in so many outcomes at a time will ask again at once: the tickets for that
are on their way meanwhile."""

TOGETHER = 16
"""So many changes of jobs with keys are one operation."""

LIGHT = 64 << 10
"""Bytes of a result that is not large."""

AGAIN = 2.0
"""Seconds after which the timers of a paused queue are looked at again."""


class Home(plain.Home, Protocol):
    """What claiming needs of its session."""

    js: PatientJetStream
    layout: Layout
    committer: Committer
    watch: Watch
    unwatched: Unwatched

    @property
    def repeats(self) -> int: ...

    def line(self, place: Place) -> Line: ...
    async def paused(self, place: Place) -> bool: ...


class Watch:
    """Jobs that timers say should be looked at: a lease may have run out, or a time to start."""

    def __init__(self) -> None:
        self.leases: dict[int, tuple[Line, Ticket, tuple[str, ...]]] = {}
        self.expiries: dict[int, tuple[Line, Ticket, str]] = {}
        """By the sequence of the ticket: one that was handed out again is the same."""
        self.missed: dict[str, str] = {}
        """Jobs whose lease may have run out, though no timer said so, and their services."""
        self.rests: list[tuple[Line, Ticket]] = []


class Settling(Protocol):
    """Changes that are made with a claim: no slot is taken before it was left, whatever breaks."""

    def __len__(self) -> int: ...

    @property
    def asked(self) -> bool:
        """Whether they are on their way."""
        ...

    async def begin(self) -> Sequence[asyncio.Future[list[Answer]]]:
        """Sees to it that they are made; what is started must come after what is returned, or in
        one step with it."""
        ...

    async def answers(self) -> Sequence[Answer]: ...


class Asked:
    """Changes that the committer makes: in one step with the start of jobs where that takes it."""

    def __init__(
        self,
        ask: Callable[[Sequence[Change]], asyncio.Future[list[Answer]]],
        changes: Sequence[Change],
    ) -> None:
        self._ask, self._changes = ask, changes
        self._asked: list[asyncio.Future[list[Answer]]] | None = None if changes else []

    def __len__(self) -> int:
        return len(self._changes)

    @property
    def asked(self) -> bool:
        return self._asked is not None

    async def begin(self) -> Sequence[asyncio.Future[list[Answer]]]:
        if self._asked is None:
            self._asked = [self._ask(some) for some in self._operations()]
        return self._asked

    async def answers(self) -> Sequence[Answer]:
        found = await asyncio.gather(*await self.begin())
        return [answer for answers in found for answer in answers]

    def _operations(self) -> Iterable[Sequence[Change]]:
        """Changes of jobs with keys need a batch anyway: some of them together cost less. Others
        may be stored each on its own, and large ones should."""
        for together, run in groupby(self._changes, _goes_together):
            changes, step = list(run), TOGETHER if together else 1
            for start in range(0, len(changes), step):
                yield changes[start : start + step]


def _goes_together(change: Change) -> bool:
    result = change.cases[0].write.result
    return change.job.key is not None and (not result or len(bytes(result)) < LIGHT)


async def claim(home: Home, request: ClaimRequest, settling: Settling) -> Claimed:
    """Starts jobs until there are enough or no more."""
    jobs: list[Job] = []
    lost: dict[str, Job] = {}
    claimed, by_hand = Claimed(()), not punctual(request.now)
    ahead = home.server_time() - request.now
    for attempt in range(PASSES):
        left = _left(request, jobs) if jobs else request
        if home.watch.rests or home.committer.unfinished:
            await _finish(home)
        look = _Look(home, left, min(left.limit << attempt, MOST), lost, by_hand, ahead)
        try:
            claimed, more = await look.start(settling)
        except EngineUnavailable:
            if not jobs:
                raise
            claimed, more = Claimed((), request.now), False  # those that started must be told of
        jobs += claimed.jobs
        for job in claimed.jobs:
            lost.pop(job.id, None)
        if not more or len(jobs) >= request.limit:
            break
    else:
        claimed = replace(claimed, next_due=request.now)
    if not by_hand:
        room = request.limit - len(jobs)
        soon = min(room, SOON) if room else request.limit if len(settling) >= BUSY else 0
        for share in request.shares if soon else ():
            home.line(Place(request.service, share.queue)).linger(min(share.at_most, soon))
    return replace(claimed, jobs=tuple(jobs))


def _left(request: ClaimRequest, jobs: Sequence[Job]) -> ClaimRequest:
    """What is still asked for where these jobs have started."""
    taken = Counter(job.queue for job in jobs)
    shares = (
        replace(share, at_most=max(0, share.at_most - taken[share.queue]))
        for share in request.shares
    )
    return replace(request, limit=request.limit - len(jobs), shares=tuple(shares))


async def _finish(home: Home) -> None:
    """Goes on with what others have left unfinished."""
    rests, home.watch.rests = home.watch.rests, []
    if not await home.committer.finish():
        return  # the tickets come again
    for line, ticket in rests:
        line.give_up([ticket])


class _Narrow(Exception):
    """Some of the first jobs cannot start, and what is behind them may come before others."""

    def __init__(self, stale: Iterable[Ticket]) -> None:
        super().__init__()
        self.stale = {ticket.reply for ticket in stale}


Choice = dict[str, list[tuple[Ticket, Job]]]
"""By queue, the jobs of tickets in their order."""


class _Look:
    """A look at the first `want` tickets of each line, and the jobs that start from it."""

    def __init__(
        self,
        home: Home,
        request: ClaimRequest,
        want: int,
        lost: dict[str, Job],
        by_hand: bool,
        ahead: int,
    ) -> None:
        """Those that this claim may have started are the `lost`; somebody may move the clock
        `by_hand`, and the server's is so many milliseconds `ahead` of it."""
        self._home, self._request, self._want = home, request, want
        self._lost, self._by_hand, self._ahead = lost, by_hand, ahead
        self._lines: dict[Line, list[Ticket]] = {}
        self._more: dict[Line, set[str]] = {}
        """The lines of which not all tickets were looked at."""
        self._delayed: list[str] = []
        """Jobs that have a timer."""
        self._told: dict[Part, Domain] = {}
        """Jobs as their tickets tell."""
        self._tried = dict(lost)
        self._repeats = home.repeats
        self._seen: Transaction | None = None

    async def start(self, settling: Settling) -> tuple[Claimed, bool]:
        """Starts jobs; whether another look may find more."""
        try:
            await self._gather()
            unsure = self._by_hand and not settling.asked  # a change may set a timer
            choice = None if self._delayed or unsure else self._plain()
            if choice is None:
                return await self._start(settling)
            first = not settling.asked
            await settling.answers()  # what is left must be left before anything is started
            claimed, refused = await self._start_plain(choice)
        except BaseException:
            for line, tickets in self._lines.items():
                line.give_back(tickets)
            raise
        return claimed, refused > 0 or first

    async def _gather(self) -> None:
        home, request = self._home, self._request
        for place in {Place(request.service, share.queue): None for share in request.shares}:
            line = home.line(place)
            settings = home.known_settings(*place)
            paused = await home.paused(place) if settings is None else settings.paused
            if request.limit:
                tickets, self._more[line] = await line.gather(self._want, paused)
                self._lines[line] = _sorted_out(home, line, tickets, paused, request.now)
            if self._by_hand:
                self._delayed += await _delayed(home, place)

    # Each job on its own

    def _plain(self) -> Choice | None:
        """The jobs, where all that there is are plain ones in plain queues."""
        home = self._home
        if not home.has_line(Place(self._request.service, WATCH), DUE):
            return None
        choice: Choice = {}
        for line, tickets in self._lines.items():
            settings = home.known_settings(*line.place)
            if not plain.simple(settings) or (settings and settings.paused):
                return None
            some: list[tuple[Ticket, Job]] = []
            for ticket in tickets:
                job = plain.startable(ticket, self._request.now)
                if job is None:
                    return None
                some.append((ticket, job))
            some.sort(key=lambda one: (one[1].priority, one[1].position))
            choice[line.place.queue] = some
        return choice

    async def _start_plain(self, choice: Choice) -> tuple[Claimed, int]:
        """Starts jobs each on its own; with how many tickets were of no use."""
        request, chosen = self._request, list[tuple[Ticket, Job]]()
        for share in request.shares:
            room = min(share.at_most, request.limit - len(chosen))
            line_up = choice.get(share.queue, [])
            chosen += line_up[:room]
            choice[share.queue] = line_up[room:]
        by_tickets = not self._by_hand and outlasts_tickets(request.lease)
        jobs = await plain.start(self._home, request, chosen, self._lost, by_tickets)
        by_queue = {line.place.queue: line for line in self._lines}
        refused = 0
        for (ticket, before), job in zip(chosen, jobs, strict=True):
            line = by_queue[before.queue]
            if job is None:
                refused += 1
                known = ticket._replace(delivered=ticket.delivered + 1)  # needs a closer look
                line.hand_on([known])
            elif by_tickets:
                self._home.unwatched.add(job, line, ticket, self._ahead)
            else:
                line.give_up([ticket])
        for line in self._lines:
            line.hand_on(ticket for ticket, _ in choice[line.place.queue])
        return Claimed(tuple(job for job in jobs if job)), refused

    # All in one step

    async def _start(self, settling: Settling) -> tuple[Claimed, bool]:
        home, request = self._home, self._request
        tickets = [ticket for tickets in self._lines.values() for ticket in tickets]
        home.forget(*(ticket.whose for ticket in tickets))  # tickets may know better
        about = Counter(job_part(ticket.whose) for ticket in tickets)
        about.update(map(job_part, self._delayed))  # a timer may know better than the ticket
        self._told = {
            part: _told_by(ticket)
            for ticket in tickets
            if _tells(ticket) and about[part := job_part(ticket.whose)] == 1
        }
        after = await settling.begin()
        keyed = (job for domain in self._told.values() if (job := domain.job) and job.key)
        wanted = {key_part(job.service, job.key.hash) for job in keyed if job.key}
        wanted |= about.keys() - self._told.keys()
        try:
            claimed = await home.committer.ask(self._work, wanted, request.now, self._tell, after)
        except _Narrow as narrow:
            await settling.answers()  # the next look is to see them
            for line, tickets in self._lines.items():
                self._give_up(line, [ticket for ticket in tickets if ticket.reply in narrow.stale])
                line.hand_on(ticket for ticket in tickets if ticket.reply not in narrow.stale)
            return Claimed(()), True
        useless = sum(self._settle(line, claimed.jobs) for line in self._lines)
        self._hold(claimed.jobs)
        assert self._seen is not None
        return claimed, self._seen.cut_short or (any(self._more.values()) and useless > 0)

    def _tell(self, transaction: Transaction) -> None:
        """Tells the transaction what the tickets do."""
        for part, domain in self._told.items():
            if not transaction.believe(part):
                transaction.know(part, domain, domain.last)

    def _work(self, ledger: Ledger, transaction: Transaction) -> Claimed:
        self._seen = transaction
        needed = self._told.keys() - transaction.known.keys()
        if needed:
            transaction.missing |= needed
            return Claimed(())
        doubtful = self._lost or self._home.repeats > self._repeats
        if doubtful and (own := self._own(transaction)):
            return Claimed(own)
        for line, names in self._more.items():
            if self._want < MOST and not transaction.missing:
                self._look_behind(transaction, self._lines[line], names)
        claimed = ledger.claim(self._request)
        self._tried.update((job.id, job) for job in claimed.jobs)
        if claimed.jobs:  # somebody looks when their leases would have run out
            ids, request = [job.id for job in claimed.jobs], self._request
            transaction.watch(lease_timer(request.service, ids, request.now + request.lease))
        for queue in {job.queue for job in claimed.jobs}:
            transaction.abide(self._request.service, queue)
        return claimed

    def _own(self, transaction: Transaction) -> tuple[Job, ...]:
        """The jobs that this claim has started already: it was stored, and the answer lost."""
        found = [(transaction.job(started.id), started) for started in self._tried.values()]
        return tuple(job for job, started in found if job and plain.same_start(job, started))

    def _look_behind(
        self, transaction: Transaction, tickets: Sequence[Ticket], full: set[str]
    ) -> None:
        """Raises where a line may have jobs that come before those of others, behind some that
        cannot start."""
        for name in full:
            own = [ticket for ticket in tickets if ticket.line == name]
            able = sum(_can_start(ticket, transaction, self._request.now) for ticket in own)
            if able < self._request.limit:
                raise _Narrow(ticket for ticket in own if _is_stale(ticket, transaction))

    def _hold(self, jobs: Sequence[Job]) -> None:
        """Jobs that concern no other can be ended on their own, as if they were started so."""
        assert self._seen is not None
        for job in jobs:
            if plain.holdable(job) and self._seen.alone(job.id):
                self._home.held[job.id] = plain.Held(job, job.version)

    # What becomes of tickets

    def _settle(self, line: Line, started: Sequence[Job]) -> int:
        """Gives up the tickets of jobs that started or cannot start, and hands on the others;
        returns how many were of no use."""
        assert self._seen is not None
        transaction, now = self._seen, self._request.now
        used: list[Ticket] = []
        others: list[Ticket] = []
        ids = {job.id for job in started}
        for ticket in self._lines[line]:
            part = job_part(ticket.whose)
            known = transaction.known.get(part)
            domain: Domain = known.value if known else Domain()
            job = domain.job
            if ticket.whose in transaction.stored:  # by this claim, or by what is beside it
                domain = transaction.values.get(part, domain)  # or something was noted of it
                waits = domain.job is not None and domain.job.stage is Stage.DELAYED
                (others if ticket.kind == RUN and waits else used).append(ticket)
            elif ticket.whose in ids or job is None:
                used.append(ticket)
            elif ticket.kind == RUN:
                if job.stage is Stage.DELAYED and job.run_at > now:
                    line.hold(ticket, (job.run_at - now) / 1000)
                elif job.stage is Stage.DELAYED:
                    others.append(ticket)
                else:
                    used.append(ticket)
            elif not _is_stale(ticket, transaction):
                others.append(ticket)
            else:
                used.append(ticket)
        self._give_up(line, used)
        line.hand_on(others)
        return sum(ticket.whose not in ids for ticket in used)

    def _give_up(self, line: Line, tickets: Sequence[Ticket]) -> None:
        """They are of no use, but for those by which others watch what runs."""
        assert self._seen is not None
        for ticket in tickets:
            known = self._seen.known.get(job_part(ticket.whose))
            job = known.value.job if known else None
            if ticket.kind == JOB and job and job.state is State.ACTIVE and job.lease_until:
                self._home.unwatched.add(job, line, ticket, self._ahead)
            else:
                line.give_up([ticket])


def _can_start(ticket: Ticket, transaction: Transaction, now: int) -> bool:
    job = _domain(ticket, transaction).job
    if job is None or _is_stale(ticket, transaction):
        return False
    if job.expires_at is not None and job.expires_at <= now:
        return False
    return job.key is None or (
        transaction.peek_key(job.service, job.key.hash).active < job.key.max_active
    )


def _is_stale(ticket: Ticket, transaction: Transaction) -> bool:
    """Whether something was stored of a job since its ticket. One that is newer than what is known
    of the job must be looked at again."""
    if ticket.kind != JOB:
        return False
    domain = _domain(ticket, transaction)
    return domain.job is None or domain.newest > ticket.seq


def _domain(ticket: Ticket, transaction: Transaction) -> Domain:
    return transaction.known[job_part(ticket.whose)].value


def _tells(ticket: Ticket) -> bool:
    """Whether the ticket is the job itself, as far as anybody knows: it was just made."""
    return ticket.created and ticket.delivered == 1


def _told_by(ticket: Ticket) -> Domain:
    letter = message.read(ticket.seq, ticket.payload)
    return Domain(last=ticket.seq, newest=ticket.seq, job=letter.job(letter.spec()))


def _sorted_out(
    home: Home, line: Line, tickets: Sequence[Ticket], paused: bool, now: int
) -> list[Ticket]:
    """Keeps those that are about starting a job; puts the others aside."""
    found: list[Ticket] = []
    later: list[Ticket] = []
    for ticket in tickets:
        if ticket.kind == REST:
            home.committer.unfinished.setdefault(ticket.whose, now)
            home.watch.rests.append((line, ticket))
        elif paused:
            later.append(ticket)
        else:
            found.append(ticket)
    line.give_back(ticket for ticket in later if ticket.line != DUE)  # it is not asked for again
    line.give_back((ticket for ticket in later if ticket.line == DUE), AGAIN)
    return found


async def _delayed(home: Home, place: Place) -> list[str]:
    """The jobs that have a timer; only asked for where somebody moves the clock by hand."""
    filter = home.layout.timer(*place, f"{RUN}.*")
    with translated("reading timers"):
        found = await home.js.read_all(home.layout.stream, filter)
    return [one.subject.rsplit(b".", 1)[1].decode() for one in found]
