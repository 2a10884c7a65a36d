"""The committer: runs operations in groups and stores what they write.

Operations that wait for it are run together on one transaction. Where each writes one message,
they are stored side by side; else all of them in one atomic batch. Where something was stored
meanwhile by somebody else, those that it concerns are read and decided again.

While one group is on its way to the stream, the next one is run: it is sent after it if they have
nothing in common, and else run again when the first is stored.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from headrace.core.errors import EngineUnavailable, InvalidValue
from headrace.engine.ledger import Ledger
from headrace.engine.nats.batch import Batch, Clocks, Component, components, settled, whole
from headrace.engine.nats.errors import Conflict, translated
from headrace.engine.nats.layout import Layout
from headrace.engine.nats.loading import Loader
from headrace.engine.nats.parts import Known, Part, Rules, job_part
from headrace.engine.nats.patience import PatientJetStream
from headrace.engine.nats.tickets import Place
from headrace.engine.nats.transaction import Transaction
from headrace.engine.nats.wire.jetstream import Pending

T = TypeVar("T")

log = logging.getLogger("headrace.nats")

GROUP = 128
"""So many operations are run together."""

MOST = 1000
"""The server takes no more messages in one batch."""

HEAVY = 8 << 20
"""Bytes from which on operations do not share a batch that need not: one that takes long to be sent
is never stored where the connection is slow."""

RECENT = 5000
"""So many parts that were written here are believed to be as they were left."""

AT_ONCE = 2
"""So many groups are on their way at once: while the server stores one, the next is decided."""

ATTEMPTS = 60
"""How often an operation is decided again before it gives up."""

PUNCTUAL = 5_000
"""A caller whose clock is further from ours than this (in milliseconds) moves it by hand."""

Work = Callable[[Ledger, Transaction], T]
Fault = Callable[[str], None]


def punctual(now: int) -> bool:
    """Whether the server's own timers can be trusted with this caller's time."""
    return abs(now - time.time() * 1000) < PUNCTUAL


class Home(Protocol):
    """What the committer needs of its session."""

    js: PatientJetStream
    layout: Layout
    loader: Loader
    fault: Fault | None

    @property
    def replicated(self) -> bool: ...
    def rules(self, service: str, queue: str) -> Rules | None: ...
    def doubt_settings(self) -> None: ...
    async def learn(self, transaction: Transaction, parts: Sequence[Part]) -> None: ...
    async def ensure_lines(self, lines: Iterable[tuple[Place, str]]) -> None: ...
    def server_time(self) -> int: ...
    def note_line(self, place: Place, name: str, seq: int) -> None: ...
    def ring(self, topics: Iterable[str]) -> None: ...


class Ask(Generic[T]):
    """An operation that waits for its answer."""

    def __init__(
        self,
        work: Work[T],
        wanted: Iterable[Part],
        now: int,
        know: Callable[[Transaction], None] | None,
        after: Sequence[asyncio.Future[Any]],
    ) -> None:
        self.work, self.wanted, self.now, self.know = work, list(wanted), now, know
        self._after = after
        self.answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self.attempts = 0
        self.alone = False
        """Whether it is run without others: with them it did not fit, or was refused."""

    def waits(self) -> set[asyncio.Future[Any]]:
        """What it comes after and that is not stored yet."""
        return {answer for answer in self._after if not answer.done()}

    def trouble(self) -> BaseException | None:
        """Why something that it comes after will not be stored."""
        for answer in self._after:
            if answer.done() and not answer.cancelled() and (error := answer.exception()):
                return error
        return None


Ran = tuple[Ask[Any], Any, set[str]]
"""An operation that was run: its answer, and whom to wake once it is stored."""


class Run(NamedTuple):
    """What became of the operations of a group."""

    done: list[Ran]
    failed: list[tuple[Ask[Any], Exception]]


class Committer:
    """Runs the operations of one session, a group at a time."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._asks: deque[Ask[Any]] = deque()
        self._runner: asyncio.Task[None] | None = None
        self._storing: dict[asyncio.Task[None], Mapping[Part, Known]] = {}
        """Groups on their way, and the parts that each was decided on."""
        self._stirred = asyncio.Event()
        """Set when there is something to run, or something was stored."""
        self._recent: dict[Part, Known] = {}
        self.unfinished: dict[str, int] = {}
        """Jobs whose dependents are not all told yet, and when they ended."""

    async def finish(self) -> bool:
        """Goes on with what was too much for one step; False where that is not possible now."""
        while self.unfinished:
            job_id, at = self.unfinished.popitem()
            try:
                await self.ask(_resuming(job_id, at), [job_part(job_id)], at)
            except EngineUnavailable as error:
                self.unfinished.setdefault(job_id, at)
                log.warning("the dependents of job %s wait to be told: %s", job_id, error)
                return False
        return True

    def ask(
        self,
        work: Work[T],
        wanted: Iterable[Part],
        now: int,
        know: Callable[[Transaction], None] | None = None,
        after: Sequence[asyncio.Future[Any]] = (),
    ) -> asyncio.Future[T]:
        """Runs an operation, together with all others that are asked for in the same round of the
        event loop and in their order; the answer comes once it is stored. `know` tells the
        transaction what the caller has read already; it counts for the first attempt only. It is
        stored not before the operations whose answers it comes `after`, and not without them."""
        ask = Ask(work, wanted, now, know, after)
        self._asks.append(ask)
        self._stirred.set()
        if self._runner is None:
            self._runner = asyncio.get_running_loop().create_task(self._run())
        return ask.answer

    async def idle(self) -> None:
        """Waits until nothing is under way."""
        while self._runner is not None:
            await asyncio.wait({self._runner})

    async def _run(self) -> None:
        try:
            while self._asks or self._storing:
                if self._asks and len(self._storing) < AT_ONCE:
                    await self._next()
                else:
                    await self._stir()
        finally:
            self._runner = None
            left, self._asks = self._asks, deque()
            _fail(left, EngineUnavailable("the commit was interrupted"))

    async def _stir(self) -> None:
        """Waits until something else can be done."""
        self._stirred.clear()
        if self._asks or self._storing:
            await self._stirred.wait()

    def _taken(self) -> list[Ask[Any]]:
        """The next operations that can be run: what they come after is stored, or among them."""
        group: list[Ask[Any]] = []
        later: list[Ask[Any]] = []
        while self._asks and len(group) < GROUP:
            ask = self._asks.popleft()
            if ask.answer.done():
                continue
            if trouble := ask.trouble():
                _fail([ask], trouble)
                continue
            waits = ask.waits()
            able = not waits or waits <= {other.answer for other in group}
            if ask.alone:
                able = not waits and not group
            (group if able else later).append(ask)
            if ask.alone and able:
                break
        self._asks.extendleft(reversed(later))
        return group

    async def _next(self) -> None:
        """Runs the next group and sends it on its way."""
        group = self._taken()
        if not group:
            await self._stir()
            return
        before = list(self._storing.values())
        try:
            transaction, run = await self._decide(group)
        except Exception as error:
            _fail(group, error)
            return
        if any(not parts.keys().isdisjoint(transaction.known) for parts in before):
            self._asks.extendleft(reversed(group))  # what it was decided on has changed since
            if self._storing:
                await asyncio.wait(self._storing)
            return
        for ask, error in run.failed:
            _fail([ask], error)
        if not run.done:
            return
        try:
            batches = await self._prepare(transaction, run.done)
        except Exception as error:
            _fail([ask for ask, _, _ in run.done], error)
            return
        storing = self._store_all(transaction, batches, run.done)
        task = asyncio.get_running_loop().create_task(storing)
        self._storing[task] = transaction.known
        task.add_done_callback(self._stored)
        for _ in range(2):  # what is sent next must come after it
            await asyncio.sleep(0)

    def _stored(self, task: asyncio.Task[None]) -> None:
        del self._storing[task]
        self._stirred.set()

    async def _decide(self, group: Sequence[Ask[Any]]) -> tuple[Transaction, Run]:
        """Runs operations on all that they need to know."""
        home = self._home
        recent = {} if any(ask.attempts for ask in group) else self._recent
        transaction = Transaction(home.js.highest, home.rules, recent)
        await self._load(transaction, [part for ask in group for part in ask.wanted])
        for ask in group:  # what one wants to be read, no other tells
            if ask.know is not None and not ask.attempts:
                ask.know(transaction)
        run = self._run_all(group, transaction)
        while transaction.missing:
            await self._load(transaction, list(transaction.missing))
            transaction.restart()
            run = self._run_all(group, transaction)
        return transaction, run

    def _batch(self, transaction: Transaction, component: Component, ran: Sequence[Ran]) -> Batch:
        now = max(ran[n][0].now for n in component.operations)
        home = self._home
        clocks = Clocks(now, home.server_time(), punctual(now))
        return Batch(transaction, home.layout, component, home.loader.subject, clocks)

    async def _load(self, transaction: Transaction, parts: Sequence[Part]) -> None:
        unknown = [part for part in parts if not transaction.believe(part)]
        if unknown:
            with translated("reading jobs"):
                await self._home.learn(transaction, unknown)

    @staticmethod
    def _run_all(group: Sequence[Ask[Any]], transaction: Transaction) -> Run:
        """Runs operations in order; those that fail leave nothing."""
        run = Run([], [])
        for ask in group:
            undo = transaction.begin()
            ledger = Ledger(transaction)
            try:
                answer = ask.work(ledger, transaction)
            except Exception as error:  # it may have worked on what is not known yet
                undo()
                run.failed.append((ask, error))
            else:
                run.done.append((ask, answer, ledger.topics))
        return run

    async def _prepare(self, transaction: Transaction, ran: Sequence[Ran]) -> list[Batch]:
        """The batches that say it all: one, or one for each operation."""
        home = self._home
        if home.fault and transaction.drafts:
            home.fault("before_commit")
        if not (transaction.independent and len(parts := components(transaction)) == len(ran)):
            parts = [whole(transaction)]
        batches = [self._batch(transaction, component, ran) for component in parts]
        await home.ensure_lines(line for batch in batches for line in batch.lines.values())
        return batches

    async def _store_all(
        self, transaction: Transaction, batches: Sequence[Batch], ran: Sequence[Ran]
    ) -> None:
        try:
            await self._store_whole(transaction, batches, ran)
        except Exception as error:
            _fail([ask for ask, _, _ in ran], error)
        except BaseException:
            _fail([ask for ask, _, _ in ran], EngineUnavailable("the commit was interrupted"))
            raise

    async def _store_whole(
        self, transaction: Transaction, batches: Sequence[Batch], ran: Sequence[Ran]
    ) -> None:
        """Stores all in one step; where a guard does not hold or something is too large, what is
        independent of it alone."""
        if len(batches) != 1 or len(ran) == 1:
            await asyncio.gather(*(self._store(batch, ran) for batch in batches))
            return
        if not _too_much(batches[0]):
            trouble = await self._try(batches[0], ran)
            if trouble is None:
                return
            if transaction.believed and isinstance(trouble, Conflict):
                await self._again(_asks(batches[0], ran), trouble)  # all of it, on what is read
                return
        for component in components(transaction):
            batch = self._batch(transaction, component, ran)
            asks = _asks(batch, ran)
            together = {ask.answer for ask in asks}
            if any(ask.trouble() or ask.waits() - together for ask in asks):
                self._asks.extend(asks)  # what some of them come after was not stored
            elif len(asks) > 1 and _too_much(batch):
                self._one_by_one(asks)
            else:
                await self._store(batch, ran)

    async def _store(self, batch: Batch, ran: Sequence[Ran]) -> None:
        match await self._try(batch, ran):
            case Conflict() as conflict:
                await self._again(_asks(batch, ran), conflict)
            case InvalidValue() as refusal:
                asks = _asks(batch, ran)
                if len(asks) > 1:
                    self._one_by_one(asks)  # whose it is must be known
                else:
                    _fail(asks, refusal)
            case None:
                pass

    def _one_by_one(self, asks: Sequence[Ask[Any]]) -> None:
        for ask in asks:
            ask.alone = True
        self._asks.extend(asks)

    async def _try(self, batch: Batch, ran: Sequence[Ran]) -> Conflict | InvalidValue | None:
        """Stores a batch and answers those who wait for it, unless a guard does not hold or the
        server would not take it."""
        asks = _asks(batch, ran)
        if not batch.messages and batch.believes:
            return Conflict("nothing to do, as far as was believed")
        try:
            last = await self._publish(batch)
        except Conflict as conflict:
            self._recent.clear()
            if batch.abides:
                self._home.doubt_settings()
            return conflict
        except InvalidValue as refusal:
            return refusal
        except Exception as error:
            _fail(asks, error)
            return None
        topics: set[str] = set()
        number = batch.numbered(last)
        self._remember(batch, last)
        batch.confirm()
        at = max((ask.now for ask in asks), default=0)
        self.unfinished.update(dict.fromkeys(batch.unfinished, at))
        for n in batch.operations:
            ask, answer, rings = ran[n]
            topics |= rings
            if not ask.answer.done():
                ask.answer.set_result(settled(answer, number))
        self._home.ring(topics)
        return None

    def _remember(self, batch: Batch, last: int) -> None:
        """What was just written is known, until somebody else writes it."""
        for part, known in batch.left(last):
            if known is None:
                self._recent.pop(part, None)
            else:
                self._recent[part] = known
        while len(self._recent) > RECENT:
            del self._recent[next(iter(self._recent))]

    def forget(self, *ids: str) -> None:
        """What was written here of these jobs, or of anything, is out of date."""
        for job_id in ids:
            self._recent.pop(job_part(job_id), None)
        if not ids:
            self._recent.clear()

    async def _publish(self, batch: Batch) -> int:
        home, messages = self._home, batch.messages
        if not messages:
            if home.replicated:
                await self._validate(batch.only_guards())
            return 0
        if len(messages) > MOST:
            raise EngineUnavailable(
                f"one step would take {len(messages)} messages, and a JetStream batch holds"
                f" {MOST}; submit fewer jobs that depend on each other at a time"
            )
        with translated("storing jobs"):
            last = await home.js.store_batch(messages)
        home.js.saw(last)
        for number, (place, name) in batch.lines.items():
            home.note_line(place, name, last - len(messages) + 1 + number)
        if home.fault:
            home.fault("after_commit")
        return last

    async def _validate(self, guards: Sequence[Pending]) -> None:
        """Nothing is to be written, but a replica that lags behind may have answered."""
        if guards:
            with translated("checking jobs"):
                await self._home.js.store_batch(guards)

    async def _again(self, asks: Sequence[Ask[Any]], conflict: Conflict) -> None:
        for ask in asks:
            ask.attempts += 1
            if ask.attempts >= ATTEMPTS:
                _fail([ask], EngineUnavailable(f"others were always quicker: {conflict}"))
            else:
                self._asks.append(ask)
        self._stirred.set()
        worst = max(ask.attempts for ask in asks)
        if worst > 2:
            await asyncio.sleep(random.uniform(0, 0.002 * min(worst, 20)))


def _too_much(batch: Batch) -> bool:
    """Whether it is more than should be sent in one step."""
    return len(batch.messages) > MOST or batch.size > HEAVY


def _asks(batch: Batch, ran: Sequence[Ran]) -> list[Ask[Any]]:
    return [ran[n][0] for n in batch.operations]


def _resuming(job_id: str, at: int) -> Work[None]:
    return lambda ledger, _: ledger.resume(job_id, at)


def _fail(asks: Iterable[Ask[Any]], error: BaseException) -> None:
    for ask in asks:
        if not ask.answer.done():
            ask.answer.set_exception(error)
