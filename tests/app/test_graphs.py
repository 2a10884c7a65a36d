"""Dependencies (FEATURES 7.1, 7.2, 7.3)."""

from __future__ import annotations

import pytest

from headrace import (
    App,
    InvalidValue,
    JobContext,
    JobNotFound,
    State,
    Terminate,
    UnknownParent,
    keep,
)
from headrace.testing import ManualClock, run_until_idle
from headrace.upkeep.retention import prune
from tests.support import story


@pytest.fixture
def step(timed: App):
    @timed.task(max_tries=1)
    async def step(name: str = "", fail: bool = False) -> str:
        if fail:
            raise Terminate("broken")
        ran.append(name)
        return name

    ran: list[str] = []
    step.ran = ran  # pyright: ignore
    return step


class TestWaiting:
    async def test_child_runs_when_all_parents_have_completed(self, timed: App, step) -> None:
        parents = [await step.enqueue(name) for name in "ab"]
        late = await step.options(delay=60).enqueue("c")
        child = await step.options(depends_on=[*parents, late.id]).enqueue("child")
        await run_until_idle(timed)
        assert step.ran == ["a", "b"]
        assert (await child.get()).state is State.BLOCKED
        await run_until_idle(timed, drain=True)
        assert step.ran == ["a", "b", "c", "child"]
        assert [str(event) for event in await story(timed, child.id)] == [
            "created",
            "released",
            "started",
            "completed",
        ]

    async def test_parents_may_be_finished_in_other_queues_or_in_the_same_call(
        self, timed: App, step
    ) -> None:
        done = await step.options(queue="other").enqueue("done")
        await run_until_idle(timed)
        now = step.prepare("now")
        group = [now, step.options(depends_on=[done, now.id]).prepare("child")]
        refs = await timed.enqueue_group(group)
        assert (await refs[1].get()).waiting_on == 1
        await run_until_idle(timed)
        assert step.ran == ["done", "now", "child"]

    async def test_child_of_finished_parents_is_ready_at_once(self, timed: App, step) -> None:
        done = await step.enqueue("done")
        await run_until_idle(timed)
        child = await step.options(depends_on=[done]).enqueue("child")
        assert (await child.get()).state is State.PENDING

    async def test_unknown_parent_and_cycle_are_refused(self, timed: App, step) -> None:
        with pytest.raises(UnknownParent, match="depends on nobody, which does not exist"):
            await step.options(depends_on=["nobody"]).enqueue()
        with pytest.raises(InvalidValue, match="'me' cannot depend on itself"):
            await step.options(id="me", depends_on=["me"]).enqueue()
        one = step.options(id="one", depends_on=["two"]).prepare()
        two = step.options(id="two", depends_on=["one"]).prepare()
        with pytest.raises(UnknownParent):
            await timed.enqueue_group([one, two])

    async def test_chain_and_diamond_run_in_order(self, timed: App, step) -> None:
        top = step.prepare("top")
        left = step.options(depends_on=[top.id]).prepare("left")
        right = step.options(depends_on=[top.id]).prepare("right")
        bottom = step.options(depends_on=[left.id, right.id]).prepare("bottom")
        await timed.enqueue_group([top, left, right, bottom])
        await run_until_idle(timed)
        assert step.ran[0] == "top"
        assert sorted(step.ran[1:3]) == ["left", "right"]
        assert step.ran[3:] == ["bottom"]


class TestFailure:
    async def family(self, timed: App, step, policy: str):
        parent = step.prepare("parent", fail=True)
        child = step.options(depends_on=[parent.id], on_parent_failure=policy).prepare("child")
        grandchild = step.options(depends_on=[child.id]).prepare("grandchild")
        refs = await timed.enqueue_group([parent, child, grandchild])
        await run_until_idle(timed)
        return refs

    async def states(self, refs) -> list[State]:
        return [(await ref.get()).state for ref in refs]

    async def test_descendants_become_unreachable(self, timed: App, step) -> None:
        refs = await self.family(timed, step, "unreachable")
        assert await self.states(refs) == [State.FAILED, State.UNREACHABLE, State.UNREACHABLE]

    async def test_child_may_wait_or_run_anyway(self, timed: App, step) -> None:
        waits = await self.family(timed, step, "wait")
        assert await self.states(waits) == [State.FAILED, State.BLOCKED, State.BLOCKED]
        runs = await self.family(timed, step, "run")
        assert await self.states(runs) == [State.FAILED, State.COMPLETED, State.COMPLETED]

    async def test_retried_parent_brings_its_descendants_back(self, timed: App) -> None:
        broken = [True]

        @timed.task
        async def fragile() -> None:
            if broken[0]:
                raise Terminate("broken")

        plain = timed.task(type="plain")(lambda: None)
        parent = await fragile.enqueue()
        child = await plain.options(depends_on=[parent]).enqueue()
        grandchild = await plain.options(depends_on=[child]).enqueue()
        await run_until_idle(timed)
        assert (await grandchild.get()).state is State.UNREACHABLE
        broken[0] = False
        await parent.retry()
        assert await self.states([child, grandchild]) == [State.BLOCKED, State.BLOCKED]
        await run_until_idle(timed)
        assert await self.states([parent, child, grandchild]) == [State.COMPLETED] * 3

    async def test_cancelled_parent_makes_its_child_unreachable(self, timed: App, step) -> None:
        parent = await step.enqueue()
        child = await step.options(depends_on=[parent]).enqueue()
        await parent.cancel()
        assert (await child.get()).state is State.UNREACHABLE

    async def test_child_of_a_parent_that_has_failed_is_unreachable(self, timed, step) -> None:
        parent = await step.enqueue("p", fail=True)
        await run_until_idle(timed)
        child = await step.options(depends_on=[parent]).enqueue()
        assert (await child.get()).state is State.UNREACHABLE


class TestResults:
    async def test_results_are_loaded_on_request(self, timed: App) -> None:
        @timed.task
        async def number(n: int) -> int:
            return n

        @timed.task(load_dependencies=True)
        async def total(ctx: JobContext) -> int:
            return sum(ctx.dependencies.values())

        @timed.task
        async def lazy(ctx: JobContext) -> list[object]:
            assert ctx.dependencies == {}
            return [(await ctx.load_dependencies())[parent] for parent in ctx.job.spec.depends_on]

        parents = [await number.enqueue(n) for n in (1, 2)]
        nothing = await timed.task(type="nothing")(lambda: None).enqueue()
        refs = (
            await total.options(depends_on=parents).enqueue(),
            await lazy.options(depends_on=[*parents, nothing]).enqueue(),
        )
        await run_until_idle(timed)
        assert [await ref.result() for ref in refs] == [3, [1, 2, None]]

    async def test_sync_handlers_get_them_too(self, timed: App) -> None:
        parent = await timed.task(type="parent")(lambda: {"a": [1]}).enqueue()

        @timed.task(load_dependencies=True)
        def child(ctx: JobContext) -> object:
            return ctx.dependencies[parent.id]

        ref = await child.options(depends_on=[parent]).enqueue()
        await run_until_idle(timed)
        assert await ref.result() == {"a": [1]}

    async def test_results_survive_the_parent_s_pruning(
        self, timed: App, clock: ManualClock
    ) -> None:
        @timed.task(load_dependencies=True)
        async def child(ctx: JobContext) -> object:
            return dict(ctx.dependencies)

        await timed.queue("short").set(retention={"completed": keep(age=0)}, force=True)
        parent = await timed.task(type="parent")(lambda: 7).options(queue="short").enqueue()
        ref = await child.options(depends_on=[parent], delay=100).enqueue()
        await run_until_idle(timed)
        clock.advance(100)
        await prune(await timed.engine(), clock.now())
        with pytest.raises(JobNotFound):
            await parent.get()
        await run_until_idle(timed)
        assert await ref.result() == {parent.id: 7}
