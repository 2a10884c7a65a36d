"""A lane: does what event loops ask of it, by the batch and one batch at a time."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import suppress
from typing import Any, Generic, TypeVar

from headrace.core.errors import EngineUnavailable
from headrace.engine.bells import running
from headrace.engine.sqlite.wanted import Wanted

T = TypeVar("T")
Subject = TypeVar("Subject")

log = logging.getLogger("headrace.sqlite")

_MOST = 1000
"""At most so many asks are served in one go."""


Want = Callable[[Wanted], None]
"""Says what the work is going to ask for."""


class Ask(Generic[Subject]):
    """One thing to do on `Subject`; to be awaited for the answer, and settled in the thread of its
    event loop. `size` is how many jobs it is about."""

    __slots__ = (
        "_answer",
        "_error",
        "_future",
        "given_up",
        "loop",
        "settled",
        "size",
        "want",
        "work",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        work: Callable[[Subject], Any],
        want: Want | None,
        size: int,
    ) -> None:
        self.loop, self.work, self.want, self.size = loop, work, want, size
        self.settled = self.given_up = False
        self._answer: Any = None
        self._error: BaseException | None = None
        self._future: asyncio.Future[None] | None = None

    def __await__(self) -> Generator[Any, None, Any]:
        """What an event loop serves itself is answered in its next round, before this goes on:
        there is a future only where a thread serves."""
        if not self.settled:
            try:
                yield
                if not self.settled:
                    self._future = self.loop.create_future()
                    yield from self._future
            except BaseException:
                self.given_up = True
                raise
        if self._error is not None:
            raise self._error
        return self._answer

    def settle(self, answer: object, error: BaseException | None) -> None:
        """The first answer counts."""
        if self.settled:
            return
        self.settled, self._answer, self._error = True, answer, error
        if self._future is not None and not self._future.done():
            self._future.set_result(None)


Answered = tuple[Ask[Subject], object, BaseException | None]
"""An ask, and what came of it."""


def send(answers: Sequence[Answered[Any]]) -> None:
    """Settles what was asked; each other event loop is woken once for all of its own."""
    here = running()
    elsewhere: dict[asyncio.AbstractEventLoop, list[Answered[Any]]] = {}
    for one in answers:
        ask, answer, error = one
        if ask.loop is here:
            ask.settle(answer, error)
        else:
            elsewhere.setdefault(ask.loop, []).append(one)
    for loop, own in elsewhere.items():
        with suppress(RuntimeError):  # the event loop is closed: nobody waits any more
            loop.call_soon_threadsafe(_settle, own)


def _settle(answers: list[Answered[Any]]) -> None:
    for ask, answer, error in answers:
        ask.settle(answer, error)


class Lane(Generic[Subject]):
    """Runs `serve` with what was asked since it last did: in a thread of its own, or right in the
    event loop that asked, where nothing else is being served and `serve_here` takes the batch.

    There is no delay to gather more: a batch is what was asked in one round of an event loop, or
    what piled up while the last one was served.
    """

    def __init__(
        self,
        name: str,
        serve: Callable[[list[Ask[Subject]]], None],
        serve_here: Callable[[list[Ask[Subject]]], bool] | None = None,
    ) -> None:
        self._serve, self._serve_here = serve, serve_here
        self._waiting: list[Ask[Subject]] = []
        self._rounds: set[asyncio.AbstractEventLoop] = set()
        """Event loops that hand over what they asked before their round ends."""
        self._lock = threading.Lock()
        self._open = True
        self._serving = False
        """Whether somebody serves, or the thread has been told to."""
        self._told: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def ask(
        self, work: Callable[[Subject], T], want: Want | None = None, size: int = 1
    ) -> Awaitable[T]:
        """Has `work` done in the lane, whether it is awaited or not."""
        loop = asyncio.get_running_loop()
        ask = Ask(loop, work, want, size)
        with self._lock:
            if not self._open:
                raise EngineUnavailable("the engine is closed; open it again")
            self._waiting.append(ask)
            first = loop not in self._rounds
            if first:
                self._rounds.add(loop)
        if first:
            loop.call_soon(self._hand_over, loop)
        return ask

    def stop(self) -> None:
        """Serves what was asked, then ends the thread. Blocks until it has."""
        with self._lock:
            self._open = False
            if not self._serving:
                self._tell()
        self._thread.join()

    def _hand_over(self, loop: asyncio.AbstractEventLoop) -> None:
        """Sees to it that what the loop asked in this round is served."""
        with self._lock:
            self._rounds.discard(loop)
            if self._serving or not self._waiting:
                return  # whoever serves goes on with it, or has it already
            if self._serve_here is None or not self._open:
                self._tell()
                return
            self._serving = True
            asks = self._taken()
        served = True
        try:
            served = not asks or self._serve_here(asks)
        except BaseException as error:
            self._broken(asks, error)
            if not isinstance(error, Exception):
                raise
        finally:
            with self._lock:
                self._serving = False
                if not served:
                    self._waiting[:0] = asks
                if self._waiting or not self._open:
                    self._tell()

    def _run(self) -> None:
        while True:
            self._told.get()
            with self._lock:
                asks = self._taken()
            if asks:
                try:
                    self._serve(asks)
                except BaseException as error:  # without the thread, whoever asks waits for ever
                    self._broken(asks, error)
            with self._lock:
                self._serving = False
                if self._waiting:
                    self._go_on()
                elif not self._open:
                    return

    def _broken(self, asks: list[Ask[Subject]], error: BaseException) -> None:
        """Answers for those that have no answer yet: the first answer counts."""
        log.error("%s failed; it goes on", self._thread.name, exc_info=error)
        reason = EngineUnavailable(f"{self._thread.name} failed: {error!r}")
        reason.__cause__ = error
        send([(ask, None, reason) for ask in asks])

    def _go_on(self) -> None:
        """What was asked meanwhile goes back to its event loops, which may be quicker; with the
        lock held."""
        loops = {ask.loop for ask in self._waiting} - self._rounds
        if self._serve_here is None or not self._open or any(loop.is_closed() for loop in loops):
            self._tell()
            return
        self._rounds |= loops
        for loop in loops:
            with suppress(RuntimeError):  # closed just now: another round takes care of it
                loop.call_soon_threadsafe(self._hand_over, loop)

    def _tell(self) -> None:
        """Has the thread serve, with the lock held."""
        self._serving = True
        self._told.put(None)

    def _taken(self) -> list[Ask[Subject]]:
        """The next batch, with the lock held."""
        asks, self._waiting = self._waiting[:_MOST], self._waiting[_MOST:]
        return [ask for ask in asks if not ask.given_up]
