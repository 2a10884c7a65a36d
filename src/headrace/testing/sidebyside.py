"""Two engines side by side: the same operations on both, through crashes, compared."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from hypothesis.stateful import RuleBasedStateMachine

from headrace.core.change import Answer, Change
from headrace.core.model import Job
from headrace.engine.memory import MemoryEngine
from headrace.engine.protocol import Engine
from headrace.testing.conformance.bench import Bench
from headrace.testing.plain import plain

T = TypeVar("T")

Both = tuple[T, T]
"""What the engine under test and the reference answered, or each one's own snapshot of a job."""


class Crash(Exception):
    """What the fault hook raises."""


class SideBySide(RuleBasedStateMachine):
    """The engine under test, the memory engine, and one clock for both."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.subject = Bench(self.make_engine())
        self.reference = Bench(MemoryEngine())
        self.crash_at: str | None = None
        self.repeat: Callable[[Bench], Awaitable[object]] | None = None

    def make_engine(self) -> Engine:
        """The engine under test, on a store of its own."""
        raise NotImplementedError

    async def reopen(self, engine: Engine) -> Engine:
        """The engine on the same store after a crash."""
        raise NotImplementedError

    @property
    def now(self) -> int:
        return self.subject.now

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(work)

    def read(self, ask: Callable[[Bench], Awaitable[T]]) -> Both[T]:
        """Asks both."""

        async def work() -> Both[T]:
            return await ask(self.subject), await ask(self.reference)

        return self.run(work())

    def write(self, act: Callable[[Bench], Awaitable[T]]) -> Both[T]:
        """Lets both act, through a crash if one is due, and compares their answers."""
        point, self.crash_at = self.crash_at, None
        answers = self.read(act) if point is None else self.run(self._crash(act, point))
        assert plain(answers[0]) == plain(answers[1])
        self.repeat = act
        return answers

    async def _crash(self, act: Callable[[Bench], Awaitable[T]], point: str) -> Both[T]:
        """Crashes the engine at a commit point, reopens it and repeats the operation. After the
        commit the answer is lost: the reference's first answer is thrown away too."""
        engine: Any = self.subject.engine
        struck = False

        def fault(reached: str) -> None:
            nonlocal struck
            if reached == point and not struck:
                struck = True
                raise Crash(point)

        engine.fault = fault
        try:
            answer = await act(self.subject)
        except Exception:
            if not struck:
                raise
        else:
            engine.fault = None
            if not struck:
                return answer, await act(self.reference)
        engine.fault = None
        self.subject.engine = await self.reopen(engine)
        if point == "after_commit":
            await act(self.reference)
        return await act(self.subject), await act(self.reference)

    def pick(self, pool: list[Both[Job]], place: int) -> Both[Job]:
        return pool[-1 - place % len(pool)]

    def snapshots(self, id: str) -> Both[Job] | None:
        """The job as each engine has it now."""
        mine, theirs = self.read(lambda bench: bench.engine.get([id]))
        if mine[0] is None or theirs[0] is None:
            return None
        return mine[0].job, theirs[0].job

    def apply(self, decide: Callable[[Job], Change], *pairs: Both[Job]) -> list[Answer]:
        """Commits what was decided from each engine's own snapshots; the subject's answers."""
        mine = [decide(job) for job, _ in pairs]
        theirs = [decide(job) for _, job in pairs]
        return self.write(
            lambda bench: bench.engine.apply(mine if bench is self.subject else theirs)
        )[0]
