"""The committer: runs operations in groups and stores what they write.

Operations that wait for it are run together on one transaction. Where each writes one message,
they are stored side by side; else all of them in one atomic batch. Where something was stored
meanwhile by somebody else, those that it concerns are read and decided again.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from headrace.core.errors import EngineUnavailable
from headrace.core.queue import QueueSettings
from headrace.engine.ledger import Ledger
from headrace.engine.nats.batch import Batch, Component, components, settled, union
from headrace.engine.nats.errors import Conflict, translated
from headrace.engine.nats.layout import Layout
from headrace.engine.nats.loading import Loader
from headrace.engine.nats.patience import PatientJetStream
from headrace.engine.nats.transaction import Known, Part, Transaction, job_part
from headrace.engine.nats.wire.jetstream import Pending

T = TypeVar("T")

GROUP = 256
"""So many operations are run together."""

MOST = 1000
"""The server takes no more messages in one batch."""

RECENT = 5000
"""So many parts that were written here are believed to be as they were left."""

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
    def known_settings(self, service: str, queue: str) -> QueueSettings | None: ...
    async def learn(self, transaction: Transaction, parts: Sequence[Part]) -> None: ...
    async def ensure_lines(self, messages: Iterable[Pending]) -> None: ...
    def server_time(self) -> int: ...
    def note_lines(self, messages: Sequence[Pending], last: int) -> None: ...
    def ring(self, topics: Iterable[str]) -> None: ...


class Ask(Generic[T]):
    """An operation that waits for its answer."""

    def __init__(
        self,
        work: Work[T],
        wanted: Iterable[Part],
        now: int,
        know: Callable[[Transaction], None] | None,
    ) -> None:
        self.work, self.wanted, self.now, self.know = work, list(wanted), now, know
        self.answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self.attempts = 0


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
        self._recent: dict[Part, Known] = {}
        self.unfinished: dict[str, int] = {}
        """Jobs whose dependents are not all told yet, and when they ended."""

    async def finish(self) -> None:
        """Goes on with what was too much for one step."""
        while self.unfinished:
            job_id, at = self.unfinished.popitem()
            await self.ask(_resuming(job_id, at), [job_part(job_id)], at)

    def ask(
        self,
        work: Work[T],
        wanted: Iterable[Part],
        now: int,
        know: Callable[[Transaction], None] | None = None,
    ) -> asyncio.Future[T]:
        """Runs an operation, together with all others that are asked for in the same round of the
        event loop and in their order; the answer comes once it is stored. `know` tells the
        transaction what the caller has read already; it counts for the first attempt only."""
        ask = Ask(work, wanted, now, know)
        self._asks.append(ask)
        if self._runner is None:
            self._runner = asyncio.get_running_loop().create_task(self._run())
        return ask.answer

    async def idle(self) -> None:
        """Waits until nothing is under way."""
        while self._runner is not None:
            await asyncio.wait({self._runner})

    async def _run(self) -> None:
        try:
            while self._asks:
                group = [self._asks.popleft() for _ in range(min(GROUP, len(self._asks)))]
                group = [ask for ask in group if not ask.answer.done()]
                try:
                    await self._commit(group)
                except Exception as error:
                    _fail(group, error)
        finally:
            self._runner = None

    async def _commit(self, group: Sequence[Ask[Any]]) -> None:
        home = self._home
        recent = {} if any(ask.attempts for ask in group) else self._recent
        transaction = Transaction(home.js.highest, home.known_settings, recent)
        for ask in group:
            if ask.know is not None and not ask.attempts:
                ask.know(transaction)
        await self._load(transaction, [part for ask in group for part in ask.wanted])
        run = self._run_all(group, transaction)
        while transaction.missing:
            await self._load(transaction, list(transaction.missing))
            transaction.restart()
            run = self._run_all(group, transaction)
        for ask, error in run.failed:
            _fail([ask], error)
        await self._store_all(transaction, run.done)

    def _batch(self, transaction: Transaction, component: Component, ran: Sequence[Ran]) -> Batch:
        now = max(ran[n][0].now for n in component.operations)
        home = self._home
        shift = home.server_time() - now
        real = punctual(now)
        return Batch(transaction, home.layout, component, home.loader.subject, real, shift)

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

    async def _store_all(self, transaction: Transaction, ran: Sequence[Ran]) -> None:
        parts = components(transaction)
        if self._home.fault and transaction.drafts:
            self._home.fault("before_commit")
        side_by_side = transaction.independent and len(parts) == len(ran)
        if len(parts) > 1 and not side_by_side:
            whole = self._batch(transaction, union(parts), ran)
            await self._home.ensure_lines(whole.messages)
            alone = bool(transaction.believed)  # then all of it is decided again, on what is read
            if len(whole.messages) <= MOST and (await self._store(whole, ran, alone) or alone):
                return
            for component in parts:
                await self._store(self._batch(transaction, component, ran), ran)
            return
        batches = [self._batch(transaction, component, ran) for component in parts]
        await self._home.ensure_lines(m for batch in batches for m in batch.messages)
        await asyncio.gather(*(self._store(batch, ran) for batch in batches))

    async def _store(self, batch: Batch, ran: Sequence[Ran], alone: bool = True) -> bool:
        """Stores a batch and answers those who wait for it. One that is not `alone` may be stored
        in parts where a guard did not hold: then the answer is False."""
        asks = [ran[n][0] for n in batch.operations]
        if not batch.messages and batch.believes:
            await self._again(asks, Conflict("nothing to do, as far as was believed"))
            return True
        try:
            last = await self._publish(batch)
        except Conflict as conflict:
            self._recent.clear()
            if alone:
                await self._again(asks, conflict)
            return False
        except Exception as error:
            _fail(asks, error)
            return True
        topics: set[str] = set()
        number = batch.numbered(last)
        self._remember(batch, last)
        at = max((ask.now for ask in asks), default=0)
        self.unfinished.update(dict.fromkeys(batch.unfinished, at))
        for n in batch.operations:
            ask, answer, rings = ran[n]
            topics |= rings
            if not ask.answer.done():
                ask.answer.set_result(settled(answer, number))
        self._home.ring(topics)
        return True

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
        home.note_lines(messages, last)
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
        worst = max(ask.attempts for ask in asks)
        if worst > 2:
            await asyncio.sleep(random.uniform(0, 0.002 * min(worst, 20)))


def _resuming(job_id: str, at: int) -> Work[None]:
    return lambda ledger, _: ledger.resume(job_id, at)


def _fail(asks: Iterable[Ask[Any]], error: Exception) -> None:
    for ask in asks:
        if not ask.answer.done():
            ask.answer.set_exception(error)
