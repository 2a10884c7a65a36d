"""The committer: runs operations in groups and stores what they write.

Operations that wait for it are run together on one transaction. Where each writes one message,
they are stored side by side; else all of them in one atomic batch. Where something was stored meanwhile by somebody else, those that it concerns are read and
decided again.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, Protocol, TypeVar

from headrace.core.errors import EngineUnavailable
from headrace.core.queue import QueueSettings
from headrace.engine.ledger import Ledger
from headrace.engine.nats.batch import Batch, components, settled
from headrace.engine.nats.errors import Conflict, translated
from headrace.engine.nats.layout import Layout
from headrace.engine.nats.loading import Loader
from headrace.engine.nats.transaction import Missing, Part, Transaction
from headrace.engine.nats.wire.jetstream import JetStream, Pending

T = TypeVar("T")

GROUP = 256
"""So many operations are run together."""

MOST = 1000
"""The server takes no more messages in one batch."""

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

    js: JetStream
    layout: Layout
    loader: Loader
    fault: Fault | None
    highest: int
    replicated: bool

    def settings(self, service: str, queue: str) -> QueueSettings: ...
    async def learn(self, transaction: Transaction, parts: Sequence[Part]) -> None: ...
    async def ensure_lines(self, messages: Iterable[Pending]) -> None: ...
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


class Committer:
    """Runs the operations of one session, a group at a time."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._asks: deque[Ask[Any]] = deque()
        self._runner: asyncio.Task[None] | None = None

    async def ask(
        self,
        work: Work[T],
        wanted: Iterable[Part],
        now: int,
        know: Callable[[Transaction], None] | None = None,
    ) -> T:
        """Runs an operation and returns its answer once it is stored. `know` tells the
        transaction what the caller has read already; it counts for the first attempt only."""
        ask = Ask(work, wanted, now, know)
        self._asks.append(ask)
        if self._runner is None:
            self._runner = asyncio.get_running_loop().create_task(self._run())
        return await ask.answer

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
        transaction = Transaction(home.highest, home.settings)
        for ask in group:
            if ask.know is not None and not ask.attempts:
                ask.know(transaction)
        await self._load(transaction, [part for ask in group for part in ask.wanted])
        ran: list[tuple[Ask[Any], Any, set[str]]] = []
        for ask in group:
            try:
                ran.append((ask, *await self._execute(ask, transaction)))
            except Exception as error:
                _fail([ask], error)
        batches = [
            Batch(
                transaction,
                home.layout,
                component,
                home.loader.subject,
                all(punctual(ran[n][0].now) for n in component.operations),
            )
            for component in components(transaction)
        ]
        await self._store_all(batches, ran)

    async def _load(self, transaction: Transaction, parts: Sequence[Part]) -> None:
        if parts:
            with translated("reading jobs"):
                await self._home.learn(transaction, parts)

    async def _execute(
        self, ask: Ask[T], transaction: Transaction
    ) -> tuple[T, set[str]]:
        while True:
            undo = transaction.begin()
            ledger = Ledger(transaction)
            try:
                return ask.work(ledger, transaction), ledger.topics
            except Missing as missing:
                undo()
                await self._load(transaction, missing.parts)
            except BaseException:
                undo()
                raise

    async def _store_all(
        self, batches: Sequence[Batch], ran: Sequence[tuple[Ask[Any], Any, set[str]]]
    ) -> None:
        await self._home.ensure_lines(m for batch in batches for m in batch.messages)
        stores: list[list[Batch]] = [[batch] for batch in batches]
        if any(len(batch.messages) > 1 for batch in batches):
            stores = _bundled(sorted(batches, key=lambda batch: min(batch.operations)))
        await asyncio.gather(*(self._store(bundle, ran) for bundle in stores))

    async def _store(
        self, bundle: Sequence[Batch], ran: Sequence[tuple[Ask[Any], Any, set[str]]]
    ) -> None:
        asks = [ran[n][0] for batch in bundle for n in batch.operations]
        try:
            last = await self._publish(bundle)
        except Conflict as conflict:
            if len(bundle) > 1:
                for batch in bundle:
                    await self._store([batch], ran)
            else:
                await self._again(asks, conflict)
            return
        except Exception as error:
            _fail(asks, error)
            return
        topics: set[str] = set()
        end = last
        for batch in reversed(bundle):
            number = batch.numbered(end)
            end -= len(batch.messages)
            for n in batch.operations:
                ask, answer, rings = ran[n]
                topics |= rings
                if not ask.answer.done():
                    ask.answer.set_result(settled(answer, number))
        self._home.ring(topics)

    async def _publish(self, bundle: Sequence[Batch]) -> int:
        home = self._home
        messages = [message for batch in bundle for message in batch.messages]
        if not messages:
            if home.replicated:
                await self._validate(bundle[0].only_guards())
            return 0
        if len(messages) > MOST:
            raise EngineUnavailable(
                f"one step would take {len(messages)} messages, and a JetStream batch holds"
                f" {MOST}; submit fewer jobs that depend on each other at a time"
            )
        if home.fault:
            home.fault("before_commit")
        with translated("storing jobs"):
            last = await home.js.store_batch(messages)
        home.highest = max(home.highest, last)
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


def _bundled(batches: Iterable[Batch]) -> list[list[Batch]]:
    """As few atomic batches as hold them all, in order."""
    bundles: list[list[Batch]] = [[]]
    size = 0
    for batch in batches:
        if size + len(batch.messages) > MOST and bundles[-1]:
            bundles.append([])
            size = 0
        bundles[-1].append(batch)
        size += len(batch.messages)
    return bundles


def _fail(asks: Iterable[Ask[Any]], error: Exception) -> None:
    for ask in asks:
        if not ask.answer.done():
            ask.answer.set_exception(error)


