"""Plain jobs: those that concern nobody else are stored with one guarded message each.

No transaction, no reading: a new job is refused if anything is stored under its id; a start, if
anything happened since its ticket was written; an end, if anything happened since this session
wrote to the job. Whatever is refused, or is not plain, takes the way of all others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

import msgspec

from headrace.core import admission
from headrace.core.admission import Outcome, Verdict
from headrace.core.change import (
    Answer,
    Applied,
    Change,
    choose,
    completed,
    completes_plainly,
)
from headrace.core.claims import ClaimRequest, begun
from headrace.core.errors import EngineUnavailable, HeadraceError
from headrace.core.model import DEFAULT_PRIORITY, Job, NewJob, Stage
from headrace.core.queue import QueueSettings
from headrace.core.states import State
from headrace.engine.nats import message
from headrace.engine.nats.commit import Fault
from headrace.engine.nats.errors import CONFLICTS, Conflict, passing, translated
from headrace.engine.nats.layout import Layout
from headrace.engine.nats.loading import Loader
from headrace.engine.nats.message import PROVISIONAL
from headrace.engine.nats.patience import PatientJetStream
from headrace.engine.nats.tickets import DUE, EARLY, Place, Ticket
from headrace.engine.nats.unwatched import lease_watch
from headrace.engine.nats.wire.errors import ApiError, TimedOut, WireError
from headrace.engine.nats.wire.jetstream import Pending
from headrace.engine.protocol import job_topic, work_topic

replace = msgspec.structs.replace


class Held(NamedTuple):
    """A job that this session started: how it stands, and the sequence that guards it."""

    job: Job
    last: int


class Home(Protocol):
    """What this needs of its session."""

    js: PatientJetStream
    loader: Loader
    layout: Layout
    fault: Fault | None
    held: dict[str, Held]

    @property
    def replicated(self) -> bool: ...
    def known_settings(self, service: str, queue: str) -> QueueSettings | None: ...
    def has_line(self, place: Place, name: str) -> bool: ...
    def server_time(self) -> int: ...
    def note_line(self, place: Place, name: str, seq: int) -> None: ...
    def forget(self, *ids: str) -> None: ...
    def ring(self, topics: Iterable[str], later: bool = False) -> None: ...


def simple(settings: QueueSettings | None) -> bool:
    """Whether the jobs of a queue need not be counted."""
    return (
        settings is not None
        and settings.max_active is None
        and settings.max_entries is None
        and settings.rate is None
    )


# Adding


def addable(home: Home, groups: Sequence[Sequence[NewJob]], now: int) -> list[QueueSettings] | None:
    """The settings of their queues where all jobs can be stored on their own."""
    places: dict[tuple[str, str, int | None], QueueSettings | None] = {}
    found: list[QueueSettings] = []
    for group in groups:
        if len(group) != 1:
            return None
        new = group[0]
        place = (new.service, new.queue, new.priority)
        if place not in places:
            places[place] = _open_to_all(home, *place)
        settings = places[place]
        if (
            settings is None
            or new.key is not None
            or new.dedup is not None
            or new.depends_on
            or not new.created_at <= new.run_at <= now
            or new.deadline is not None
            or new.ttl is not None
            or new.lifo
        ):
            return None
        found.append(settings)
    return found


def _open_to_all(
    home: Home, service: str, queue: str, priority: int | None
) -> QueueSettings | None:
    """The settings of a queue that takes every job, where they are known."""
    settings = home.known_settings(service, queue)
    if settings is None or not simple(settings) or settings.draining or settings.max_age:
        return None
    line = str(DEFAULT_PRIORITY if priority is None else priority)
    return settings if home.has_line(Place(service, queue), line) else None


def add(home: Home, new: NewJob, settings: QueueSettings) -> tuple[Job, Sent]:
    """Sends a new job; it is stored if its id is free."""
    job = admission.created(new, settings, PROVISIONAL, stage=Stage.READY)
    body = message.created(job)
    layout = home.layout
    headers = _headers(new, layout.domain(new.id), 0)
    return job, send(home, Pending(layout.happening(job, "created"), body, headers))


_GUARD = b"Nats-Expected-Last-Subject-Sequence: "
_SUBJECT = b"\r\nNats-Expected-Last-Subject-Sequence-Subject: "


def guarded(home: Home, spec: NewJob, event: str, body: bytes, last: int) -> Pending:
    """A message about a job that is there, and to which nothing happened since `last`.

    A literal filter is cheaper than one with wildcards. But a replicated stream sees what others
    have on its way only if they name the very same filter, and not all of them can name this.
    """
    layout, prefix = home.layout, home.layout.prefix(spec)
    filter = layout.domain(spec.id) if home.replicated else prefix + b">"
    return Pending(prefix + event.encode(), body, _headers(spec, filter, last))


def _headers(spec: NewJob, filter: bytes, last: int) -> bytes:
    traced = message.trace(spec.context)
    return b"NATS/1.0\r\n%b%b%d%b%b\r\n\r\n" % (traced, _GUARD, last, _SUBJECT, filter)


def reach(home: Home, point: str) -> None:
    """Lets a test crash here."""
    if home.fault:
        home.fault(point)


# Sending


PROMPT = 2.0
"""Seconds after which an answer is taken for lost: nobody answers what a dead leader was told."""


class Sent(NamedTuple):
    """A message on its way."""

    message: Pending
    answer: asyncio.Future[int]


def send(home: Home, message: Pending) -> Sent:
    return Sent(message, home.js.store(*message))


class Stored(NamedTuple):
    """What became of a message."""

    seq: int | None
    """None where its guard did not hold."""
    again: bool = False
    """Whether it was sent again, or is to be: then what was in its way may be itself."""


async def stored(
    home: Home, sent: Sequence[Sent], repeat: bool = True
) -> tuple[list[Stored], Exception | None]:
    """What became of the messages, up to the first of which that cannot be said, and why not. One
    whose answer is lost is sent again, with the same guard, if it is to be repeated."""
    timer: asyncio.TimerHandle | None = None
    if not all(one.answer.done() for one in sent):
        timer = asyncio.get_running_loop().call_later(PROMPT, _give_up, sent)
    found: list[Stored] = []
    highest = 0
    try:
        for one in sent:
            try:
                seq = await one.answer
            except WireError as error:
                found.append(await _sent_again(home, one, error, repeat))
            else:
                found.append(Stored(seq))
                highest = max(highest, seq)
    except HeadraceError as error:
        return found, error
    finally:
        home.js.saw(highest)
        if timer is not None:
            timer.cancel()
        for _, answer in sent[len(found) :]:
            answer.add_done_callback(_seen)
    return found, None


def _give_up(sent: Sequence[Sent]) -> None:
    for pending, answer in sent:
        if not answer.done():
            answer.set_exception(TimedOut(f"{pending.subject!r}: no answer in {PROMPT:g} s"))


def _seen(answer: asyncio.Future[int]) -> None:
    """Nobody waits for it any more."""
    if not answer.cancelled():
        answer.exception()


async def _sent_again(home: Home, sent: Sent, error: WireError, repeat: bool) -> Stored:
    """What became of a message that was refused, or whose answer is lost."""
    if isinstance(error, ApiError) and error.err_code in CONFLICTS:
        return Stored(None)
    try:
        with translated("storing jobs"):
            if not passing(error):
                raise error
            if not repeat:
                return Stored(None, again=True)
            seq = await home.js.store_batch([sent.message])
    except Conflict:
        return Stored(None, again=True)
    home.js.saw(seq)
    return Stored(seq, again=True)


async def insert(
    home: Home,
    groups: Sequence[Sequence[NewJob]],
    settings: Sequence[QueueSettings],
    otherwise: Callable[[Sequence[NewJob]], Awaitable[tuple[Verdict, ...]]],
) -> list[tuple[Verdict, ...]]:
    """Adds jobs, each on its own; `otherwise` sees to one whose id is taken."""
    reach(home, "before_commit")
    jobs: list[Job] = []
    sent: list[Sent] = []
    for (new,), chosen in zip(groups, settings, strict=True):
        job, one = add(home, new, chosen)
        jobs.append(job)
        sent.append(one)
    verdicts: list[tuple[Verdict, ...]] = []
    topics: set[str] = set()
    newest: dict[tuple[Place, str], int] = {}
    answers, trouble = await stored(home, sent)
    if trouble:
        raise trouble
    reach(home, "after_commit")
    for group, job, (seq, _) in zip(groups, jobs, answers, strict=True):
        if seq is None:
            verdicts.append(await otherwise(group))
            continue
        newest[Place(job.spec.service, job.queue), str(job.priority)] = seq
        topics.add(work_topic(job.spec.service, job.queue))
        topics.add(job_topic(job.spec.id))
        job = replace(job, seq=seq, version=seq)
        verdicts.append((Verdict(Outcome.ACCEPTED, job.spec.id, job=job),))
    for (place, line), seq in newest.items():
        home.note_line(place, line, seq)
    home.ring(topics, later=True)
    return verdicts


# Starting


def startable(ticket: Ticket, now: int) -> Job | None:
    """The job of a ticket, if it is a new one that can be started on its own."""
    if ticket.delivered > 1 or ticket.line in (EARLY, DUE):
        return None
    letter = message.read(ticket.seq, ticket.payload)
    job = letter.job(letter.spec())
    spec = job.spec
    if spec.key and not letter.private.sure:
        return None
    if spec.dedup or job.expires_at is not None or job.run_at > now:
        return None
    return job


async def start(
    home: Home,
    request: ClaimRequest,
    chosen: Sequence[tuple[Ticket, Job]],
    lost: dict[str, Job],
    by_tickets: bool,
) -> list[Job | None]:
    """Starts jobs, each on its own; None for each that something happened to. Those of which
    nobody knows are added to the `lost`: they may still start, but are not to be started again as
    if no time had passed, for their queue may be paused by now. They get a timer, unless the caller
    has them watched `by_tickets`."""
    if not chosen:
        return []
    reach(home, "before_commit")
    timer = None if by_tickets else _watch(home, request, chosen)
    jobs: list[Job] = []
    sent: list[Sent] = []
    for ticket, job in chosen:
        started = begun(job, request, PROVISIONAL)
        body = message.started(started, job.state)
        jobs.append(started)
        sent.append(send(home, guarded(home, job.spec, started.event, body, ticket.seq)))
    found = await _started(home, timer, jobs, sent, lost)
    reach(home, "after_commit")
    home.forget(*(job.id for job in jobs))
    home.ring(job_topic(job.id) for job in found if job)
    return found


async def _started(
    home: Home, timer: Sent | None, jobs: Sequence[Job], sent: Sequence[Sent], lost: dict[str, Job]
) -> list[Job | None]:
    """The jobs that were started. Where the stream cannot be reached for long, those that are
    known to be: the others are found when their lease is over."""
    answers, trouble = await stored(home, sent, repeat=False)
    unwatched = (await stored(home, [timer]))[1] if timer else None  # it was sent before them
    found: list[Job | None] = []
    for job, (seq, again) in zip(jobs, answers, strict=False):
        if seq is not None:
            job = replace(job, version=seq, token=seq)
            home.held[job.id] = Held(job, seq)
            found.append(job)
            continue
        try:
            found.append(await _own(home, job) if again else None)
        except EngineUnavailable as error:
            trouble = error
            break
        if again and found[-1] is None:
            lost[job.id] = job
    trouble = unwatched or trouble
    if trouble and not any(found):
        raise trouble
    return found + [None] * (len(jobs) - len(found))


async def _own(home: Home, started: Job) -> Job | None:
    """The job, if what was in the way of starting it is that it was started, right here."""
    with translated("reading jobs"):
        domain = (await home.loader.domains([started.id]))[started.id]
    job = domain.job
    if job is None or not same_start(job, started):
        return None
    home.held[job.id] = Held(job, domain.last)
    return job


def same_start(job: Job, started: Job) -> bool:
    """Whether a job runs since this very start, whose answer was lost."""
    return (job.state, job.worker, job.started_at, job.tries) == (
        State.ACTIVE,
        started.worker,
        started.started_at,
        started.tries,
    )


def _watch(home: Home, request: ClaimRequest, chosen: Sequence[tuple[Ticket, Job]]) -> Sent:
    """Sets the timer of a claim, before its jobs start."""
    ids, at = [job.id for _, job in chosen], request.lease + home.server_time()
    return send(home, lease_watch(home, request.service, ids, at))


# Ending


def holdable(job: Job) -> bool:
    """Whether a job that was started can be ended on its own, as far as it can tell itself."""
    return job.spec.key is None and job.spec.dedup is None and message.tells_all(job)


class End(NamedTuple):
    """A job of this session before and after a change that ends it and concerns no other."""

    change: Change
    held: Held
    job: Job


def endable(home: Home, changes: Sequence[Change]) -> list[End] | None:
    """The ends of different jobs, where all of the changes are such."""
    ends: dict[str, End] = {}
    for change in changes:
        held = home.held.get(change.job.spec.id)
        write = choose(change, held.job) if held else None
        if held is None or write is None or not completes_plainly(write):
            return None
        ends[held.job.spec.id] = End(change, held, completed(held.job, write, PROVISIONAL))
    queues = {(end.job.spec.service, end.job.queue) for end in ends.values()}
    if len(ends) < len(changes) or not all(simple(home.known_settings(*q)) for q in queues):
        return None
    return list(ends.values())


class Ending:
    """Ends on their way, each on its own."""

    def __init__(
        self, home: Home, ends: Sequence[End], otherwise: Callable[[Change], Awaitable[Answer]]
    ) -> None:
        """`otherwise` sees to those that something happened to."""
        self._home, self._ends, self._otherwise = home, ends, otherwise
        self._answers: list[Answer] | None = None
        if ends:
            reach(home, "before_commit")
        self._sent = [self._send(held, job) for _, held, job in ends]
        for end in ends:
            home.held.pop(end.job.spec.id, None)

    def __len__(self) -> int:
        return len(self._ends)

    def _send(self, held: Held, job: Job) -> Sent:
        body = message.completed(job, held.job.worker)
        return send(self._home, guarded(self._home, job.spec, job.event, body, held.last))

    @property
    def asked(self) -> bool:
        return True

    async def begin(self) -> Sequence[asyncio.Future[list[Answer]]]:
        """Returns when they are stored: what is sent after them may be so before, if the connection
        breaks in between."""
        await self.answers()
        return ()

    async def answers(self) -> list[Answer]:
        """What became of them."""
        if self._answers is None:
            self._answers = await self._read() if self._ends else []
        return self._answers

    async def _read(self) -> list[Answer]:
        home = self._home
        found, trouble = await stored(home, self._sent)
        if trouble:
            raise trouble
        reach(home, "after_commit")
        answers: list[Answer] = []
        for (change, _, job), (seq, _) in zip(self._ends, found, strict=True):
            if seq is None:
                answers.append(await self._otherwise(change))
            else:
                answers.append(Applied(replace(job, version=seq)))
        home.ring([job_topic(end.job.spec.id) for end in self._ends])
        return answers
