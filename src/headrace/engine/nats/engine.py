"""The NATS engine: one JetStream stream is truth and journal at once."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Sequence

import msgspec

from headrace.core.admission import Verdict
from headrace.core.change import Answer, Applied, Change
from headrace.core.claims import Claimed, ClaimRequest, Lease, Renewal
from headrace.core.errors import AppClosed, EngineUnavailable, PayloadTooLarge
from headrace.core.model import Counted, Document, Filter, Job, KeyStatus, NewJob, Page
from headrace.core.search import parse_cursor
from headrace.core.states import State
from headrace.engine.ledger import Ledger
from headrace.engine.nats import claiming, documents, plain, upkeep
from headrace.engine.nats.bells import RopeBell, Ropes
from headrace.engine.nats.checkup import checkup
from headrace.engine.nats.claiming import Settling
from headrace.engine.nats.commit import Fault, punctual
from headrace.engine.nats.errors import translated
from headrace.engine.nats.location import Location, locate
from headrace.engine.nats.parts import Part, job_part, key_part
from headrace.engine.nats.server import EmbeddedServer
from headrace.engine.nats.session import Session
from headrace.engine.nats.transaction import Transaction, replace
from headrace.engine.nats.wire.options import Options
from headrace.engine.protocol import WORKER_KIND, Checkup, Details, Entry, Prune, Put

log = logging.getLogger("headrace.nats")

ENVELOPE = 256 * 1024
"""Bytes of a message that something else than the payload may need; a payload that leaves them is
not looked at more closely."""

LEASES = 200
"""So many leases are renewed in one step."""

SHOWN = 10
"""So many waiting jobs of a key are shown."""


_abandoned: list[object] = []
"""What a child process inherited through a fork. Never closed, not even by the garbage collector:
the connections are the parent's."""


class _Home:
    """What all handles of an engine share: the bells, and a session for each event loop."""

    def __init__(self, location: Location) -> None:
        self.location = location
        self.fault: Fault | None = None
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self.server: EmbeddedServer | None = None
        self.sessions: dict[asyncio.AbstractEventLoop, Session] = {}
        self.ropes = Ropes(self.location.layout)
        self.opening: dict[asyncio.AbstractEventLoop, asyncio.Lock] = {}
        self.tasks: set[asyncio.Task[None]] = set()
        self.closed = True

    def here(self) -> _Home:
        """As it is in this process: a forked child begins anew, closed."""
        if self._pid != os.getpid():
            _abandoned.append((self.server, self.sessions, self.ropes, self.opening, self.tasks))
            self._begin()
        return self

    def saw(self, seq: int) -> None:
        """The stream is known to have come so far."""
        for session in list(self.sessions.values()):
            session.js.saw(seq)

    async def options(self) -> Options:
        location = self.location
        if location.options is not None:
            return location.options
        assert location.folder is not None
        if self.server is None:
            self.server = EmbeddedServer(location.folder, location.sync)
        return Options.parse(await self.server.start())


class NatsEngine:
    """An engine on NATS JetStream. Any thread and event loop may use it; each loop has a
    connection of its own.

    `url` is `nats://host:4222,host2:4222?namespace=prod`, `tls://…`, or `nats+embedded:PATH` for
    a server of one's own in a folder.
    """

    overlap = 2

    def __init__(self, url: str) -> None:
        self._home = _Home(locate(url))
        self._owns = True

    @property
    def url(self) -> str:
        return self._home.location.url

    @property
    def namespace(self) -> str:
        return self._home.location.layout.namespace

    @property
    def fault(self) -> Fault | None:
        """A test's hook into the commit, called at `before_commit` and `after_commit`."""
        return self._home.fault

    @fault.setter
    def fault(self, hook: Fault | None) -> None:
        self._home.fault = hook
        for session in self._home.sessions.values():
            session.fault = hook

    async def open(self) -> None:
        home = self._home.here()
        home.closed = False
        session = await self._session()
        home.ropes.attach(session.connection, home.saw)

    async def close(self) -> None:
        """Commits what was accepted and hangs up. A twin hangs up its own loop's connection."""
        home, here = self._home.here(), asyncio.get_running_loop()
        if self._owns:
            home.closed = True
            for loop, session in list(home.sessions.items()):
                if loop is not here and loop.is_running():
                    closing = asyncio.run_coroutine_threadsafe(session.close(), loop)
                    await asyncio.wrap_future(closing)
                    home.sessions.pop(loop, None)
        session = home.sessions.pop(here, None)
        if session is not None:
            await session.close()
        if self._owns and home.server is not None:
            await home.server.stop()
            home.server = None

    def twin(self) -> NatsEngine:
        handle = object.__new__(NatsEngine)
        handle._home, handle._owns = self._home, False
        return handle

    def listen(self, topics: frozenset[str]) -> RopeBell:
        return self._home.here().ropes.listen(topics)

    async def _session(self) -> Session:
        home, loop = self._home.here(), asyncio.get_running_loop()
        session = home.sessions.get(loop)
        if session is not None:
            return session
        if home.closed:
            raise AppClosed("the engine is closed; open it first")
        async with home.opening.setdefault(loop, asyncio.Lock()):
            if loop not in home.sessions:
                location = home.location
                session = Session(location.layout, home.ropes, location.projection)
                session.fault = home.fault
                options = await home.options()
                locate = home.server.locate if home.server else None
                await session.open(options, location.replicas, locate)
                home.sessions[loop] = session
                task = loop.create_task(self._hang_up_with(loop, session))
                home.tasks.add(task)
                task.add_done_callback(home.tasks.discard)
            return home.sessions[loop]

    async def _hang_up_with(self, loop: asyncio.AbstractEventLoop, session: Session) -> None:
        """A loop that ends cancels its tasks; this one takes the connection with it."""
        try:
            await session.closed.wait()
        except asyncio.CancelledError:
            self._home.opening.pop(loop, None)
            if self._home.sessions.pop(loop, None) is session:
                await session.close()
            raise

    # Writing

    async def insert(
        self, groups: Sequence[Sequence[NewJob]], now: int
    ) -> list[tuple[Verdict, ...]]:
        session = await self._session()
        _check_sizes(groups, session.connection.max_payload)

        def ask(group: Sequence[NewJob]) -> asyncio.Future[tuple[Verdict, ...]]:
            return session.committer.ask(_inserting(group, now), _wanted(group), now)

        if (settings := plain.addable(session, groups, now)) is not None:
            return await plain.insert(session, groups, settings, ask)
        return await asyncio.gather(*map(ask, groups))

    async def claim(self, request: ClaimRequest, changes: Sequence[Change] = ()) -> Claimed:
        session = await self._session()
        if session.owed.get(request.worker):
            answers = await self.apply(changes)
            return _handed_out(session, _owed(session, request), answers)
        settling = _settling(session, changes)
        try:
            claimed = await claiming.claim(session, request, settling)
        except EngineUnavailable as error:
            if not changes:
                raise
            # What has ended must not wait until something can start again.
            log.warning("nothing could be claimed: %s", error)
            return _handed_out(session, Claimed((), request.now), await self.apply(changes))
        try:
            answers = await _settled(session, settling)
        except BaseException:
            session.owed.setdefault(request.worker, []).extend(claimed.jobs)
            raise
        return _handed_out(session, claimed, answers)

    async def apply(self, changes: Sequence[Change]) -> list[Answer]:
        session = await self._session()
        return list(await _settled(session, _settling(session, changes)))

    async def extend(self, leases: Sequence[Lease], until: int) -> list[Renewal]:
        session = await self._session()
        if not leases:
            return []

        for lease in leases:
            session.held.pop(lease.job_id, None)
        asked = [
            _renew(session, leases[start : start + LEASES], until)
            for start in range(0, len(leases), LEASES)
        ]
        return [renewal for renewals in await asyncio.gather(*asked) for renewal in renewals]

    async def prune(self, order: Prune) -> int:
        return await upkeep.prune(await self._session(), order)

    async def put(self, puts: Sequence[Put], now: int) -> list[Document | None]:
        session = await self._session()
        written = await documents.put(session, puts, now)
        session.tell_documents({put.kind for put in puts})
        for put in puts:
            if put.kind == WORKER_KIND and put.body is not None:
                session.tell_presence(put.name, put.body)
        return written

    # Reading

    async def get(self, ids: Sequence[str]) -> list[Details | None]:
        session = await self._session()
        with translated("reading jobs"):
            return await session.loader.details(ids)

    async def find(self, filter: Filter, cursor: str | None = None, limit: int = 100) -> Page:
        before = parse_cursor(cursor)
        session = await self._session()
        asked = upkeep.asked_by_upkeep(filter)
        if asked is not None and punctual(asked):
            return await upkeep.lapsed(session, filter, limit)
        await session.catch_up()
        return session.projection.find(filter, before, limit)

    async def count(self, service: str | None = None) -> list[Counted]:
        return await (await self._session()).count(service)

    async def journal(
        self, after: int, limit: int = 1000, job_id: str | None = None
    ) -> list[Entry]:
        session = await self._session()
        await session.catch_up()
        return session.projection.journal(after, limit, job_id)

    async def scan(self, kind: str, now: int) -> list[Document]:
        return await documents.scan(await self._session(), kind, now)

    async def key(self, service: str, hash: str) -> KeyStatus | None:
        session = await self._session()
        transaction = Transaction(0, session.rules)
        with translated("reading a key"):
            record = transaction.key_record(service, hash)
            while transaction.missing:
                await session.loader.load(transaction, transaction.missing)
                transaction.missing.clear()
                record = transaction.key_record(service, hash)
            members = sorted(record.members.items(), key=lambda item: item[1].place)
            shown = [id for id, member in members if member.active]
            waiting = [id for id, member in members if not member.active][:SHOWN]
            domains = await session.loader.domains([*shown, *waiting])
        active = [job for id in shown if (job := domains[id].job)]
        queued = [job for id in waiting if (job := domains[id].job)]
        some: list[Job] = [*active, *queued]
        if not some:
            return None
        assert some[0].key
        return KeyStatus(
            service,
            some[0].key.name,
            hash,
            tuple(active),
            record.row.queued,
            tuple(queued),
            record.row.takeovers,
        )

    async def checkup(self, now: int) -> Checkup:
        """Looks at the server and the stream, for `headrace doctor`."""
        return await checkup(await self._session(), self._home.location, now)


def _owed(session: Session, request: ClaimRequest) -> Claimed:
    """Jobs that were started for a worker which could not be told, as far as their leases go."""
    owed = session.owed.pop(request.worker, [])
    owed = [job for job in owed if (job.lease_until or 0) > request.now]
    if owed[request.limit :]:
        session.owed[request.worker] = owed[request.limit :]
    return Claimed(tuple(owed[: request.limit]), request.now)


def _handed_out(session: Session, claimed: Claimed, answers: Sequence[Answer]) -> Claimed:
    jobs = tuple(job for job in claimed.jobs if session.hand_out(job))
    return replace(claimed, jobs=jobs, answers=tuple(answers))


def _check_sizes(groups: Sequence[Sequence[NewJob]], most: int) -> None:
    """Refuses all of them where one would not fit into a message."""
    for new in (new for group in groups for new in group):
        size = len(bytes(new.payload))
        if size > most - ENVELOPE:
            room = max(0, most - _envelope(new))
            if size > room:
                raise PayloadTooLarge(size, room)


def _envelope(new: NewJob) -> int:
    """What its message needs beside the payload, at most: much of it is told twice."""
    return 2 * len(msgspec.json.encode(replace(new, payload=msgspec.Raw(b"0")))) + 4096


def _inserting(
    group: Sequence[NewJob], now: int
) -> Callable[[Ledger, Transaction], tuple[Verdict, ...]]:
    def work(ledger: Ledger, transaction: Transaction) -> tuple[Verdict, ...]:
        transaction.expect(group)
        return ledger.insert(group, now)

    return work


def _settling(session: Session, changes: Sequence[Change]) -> Settling:
    """Has changes made: each on its own where they concern nobody else, or by the committer."""

    def ask(some: Sequence[Change]) -> asyncio.Future[list[Answer]]:
        for change in some:
            session.held.pop(change.job.id, None)
        parts = [part for change in some for part in _parts_of(change.job)]
        now = max(change.cases[0].write.at for change in some)
        return session.committer.ask(lambda ledger, _: ledger.apply_all(some), parts, now)

    async def otherwise(change: Change) -> Answer:
        return (await ask([change]))[0]

    ends = plain.endable(session, changes)
    if ends is None:
        return claiming.Asked(ask, changes)
    return plain.Ending(session, ends, otherwise)


async def _settled(session: Session, settling: Settling) -> Sequence[Answer]:
    """The answers to changes, with all that follows from them done."""
    answers = await settling.answers()
    for answer in answers:
        if isinstance(answer, Applied) and answer.job.state is not State.ACTIVE:
            session.unwatched.ended(answer.job)
    await session.committer.finish()
    return answers


def _wanted(group: Sequence[NewJob]) -> list[Part]:
    parts: dict[Part, None] = {}
    for new in group:
        parts[job_part(new.id)] = None
        for parent in new.depends_on:
            parts[job_part(parent)] = None
        if new.dedup:
            parts[Part("dedup", new.dedup.key, new.service)] = None
        if new.key:
            parts[key_part(new.service, new.key.hash)] = None
    return list(parts)


def _parts_of(job: Job) -> list[Part]:
    parts = [job_part(job.id)]
    if job.key:
        parts.append(key_part(job.service, job.key.hash))
    if job.spec.dedup:
        parts.append(Part("dedup", job.spec.dedup.key, job.service))
    return parts


def _renew(session: Session, leases: Sequence[Lease], until: int) -> asyncio.Future[list[Renewal]]:
    """Has leases renewed by the committer."""

    def work(_: Ledger, transaction: Transaction) -> list[Renewal]:
        return [_renewed(transaction, lease, until) for lease in leases]

    return session.committer.ask(work, [job_part(lease.job_id) for lease in leases], until)


def _renewed(transaction: Transaction, lease: Lease, until: int) -> Renewal:
    job = transaction.job(lease.job_id)
    if job is None or job.token != lease.token or job.state is not State.ACTIVE:
        return Renewal(False)
    if not job.detached:
        transaction.renew(job, until)
    return Renewal(True, job.cancelling)
