"""Running a handler directly, with a context that is not a worker's."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from headrace import (
    App,
    Cancel,
    JobContext,
    Retry,
    Snooze,
    State,
    Terminate,
    current_job,
    provided,
)
from headrace.core.outcome import Failed, Snoozed
from headrace.testing import ManualClock, Setup, run_task


@dataclass
class Person:
    name: str


class Database:
    def __init__(self, name: str) -> None:
        self.name = name


class TestDirect:
    async def test_result_and_arguments_go_through_json(self, timed: App) -> None:
        @timed.task
        async def greet(person: Person) -> Person:
            assert isinstance(person, Person)
            return Person(f"hello {person.name}")

        run = await run_task(greet, Person("Ada"))
        assert (run.result, run.state) == (Person("hello Ada"), State.COMPLETED)

    async def test_sync_and_cpu_handlers_run_here(self, timed: App) -> None:
        @timed.task
        def sync(n: int) -> int:
            return n + 1

        assert (await run_task(sync, 1)).result == 2
        assert (await run_task(cpu_task, 3)).result == 9

    async def test_context_collects_what_the_handler_says(self, timed: App) -> None:
        @timed.task
        async def chatty(ctx: JobContext) -> int:
            ctx.progress("half", current=1, total=2)
            ctx.log("info", f"try {current_job().number}")
            return len(await ctx.load_dependencies())

        run = await Setup(number=3, dependencies={"a": 1}).run(chatty)
        assert run.result == 1
        assert [progress.step for progress in run.progress] == ["half"]
        assert [entry.message for entry in run.logs] == ["try 3"]

    async def test_what_the_handler_raises_comes_out(self, timed: App, clock: ManualClock) -> None:
        @timed.task(retry=30)
        async def fails(kind: str) -> None:
            match kind:
                case "error":
                    raise KeyError("k")
                case "retry":
                    raise Retry(after=5)
                case "snooze":
                    raise Snooze(seconds=7)
                case "terminate":
                    raise Terminate("no")
                case _:
                    raise Cancel("stop")

        run = await run_task(fails, "error")
        assert isinstance(run.outcome, Failed)
        assert (run.state, run.job.run_at) == (State.RETRY, clock.now() + 30_000)
        with pytest.raises(KeyError):
            _ = run.result
        assert (await run_task(fails, "retry")).job.run_at == clock.now() + 5000
        assert (await run_task(fails, "snooze")).outcome == Snoozed(clock.now() + 7000)
        assert (await run_task(fails, "terminate")).state is State.FAILED
        assert (await run_task(fails, "cancel")).state is State.CANCELLED
        assert (await Setup(number=10).run(fails, "error")).state is State.DEAD

    async def test_wrong_arguments_are_refused_as_by_enqueue(self, timed: App) -> None:
        @timed.task
        async def one(a: int) -> None: ...

        with pytest.raises(TypeError, match="Expected `int`"):
            await run_task(one, "x")  # pyright: ignore[reportArgumentType]

    async def test_resources_can_be_replaced_and_middleware_runs(self, timed: App) -> None:
        seen: list[str] = []

        @timed.resource
        def database() -> Database:
            return Database("real")

        @timed.task
        async def query(db: Database = provided()) -> str:
            return db.name

        async def outer(ctx: JobContext, proceed):
            seen.append(ctx.job.type)
            return await proceed()

        timed.use(outer)
        assert (await run_task(query)).result == "real"
        fake = Setup(resources={Database: Database("fake")})
        assert (await fake.run(query)).result == "fake"
        assert seen == ["query", "query"]

    async def test_call_after_runs_with_the_outcome(self, timed: App) -> None:
        after: list[State] = []

        @timed.task
        async def work(ctx: JobContext) -> None:
            ctx.call_after(lambda _, answer: after.append(answer.job.state))

        await run_task(work)
        assert after == [State.COMPLETED]

    async def test_detached_and_moved_have_no_result(self, timed: App) -> None:
        @timed.task
        async def leaves(ctx: JobContext, far: bool) -> object:
            return ctx.move_to("far") if far else ctx.detach()

        assert (await run_task(leaves, True)).job.queue == "far"
        run = await run_task(leaves, False)
        assert run.job.detached
        with pytest.raises(AssertionError, match="has no result"):
            _ = run.result


_module_app = App("memory:")


@_module_app.task(cpu=True)
def cpu_task(n: int) -> int:
    return n * n
