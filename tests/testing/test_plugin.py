"""The pytest fixtures that come with the package."""

from __future__ import annotations

from collections.abc import Callable

from headrace import App
from headrace.engine.memory import MemoryEngine
from headrace.testing import ManualClock, jobs, run_until_idle

mine = App("sqlite:/nowhere/that/exists.db")


@mine.task
async def greet(name: str) -> str:
    return f"hello {name}"


async def test_fresh_app_is_on_the_engine_and_by_the_clock(
    headrace_app: App, headrace_engine: MemoryEngine, headrace_clock: ManualClock
) -> None:
    task = headrace_app.task(type="t")(lambda: None)
    ref = await task.enqueue()
    (details,) = await headrace_engine.get([ref.id])
    assert details
    assert details.job.spec.created_at == headrace_clock.now()


async def test_own_app_is_put_on_them_until_the_test_is_over(
    use_headrace: Callable[[App], App], headrace_clock: ManualClock
) -> None:
    assert use_headrace(mine) is mine
    ref = await greet.options(delay=10).enqueue("Ada")
    headrace_clock.advance(10)
    await run_until_idle(mine)
    assert await ref.result() == "hello Ada"


async def test_next_test_has_an_empty_store(use_headrace: Callable[[App], App]) -> None:
    use_headrace(mine)
    assert await jobs(mine) == []


def test_after_the_test_the_app_is_as_it_was() -> None:
    assert repr(mine) == "<App 'default' on sqlite:/nowhere/that/exists.db>"
    assert not isinstance(mine.clock, ManualClock)


async def test_two_apps_share_one_store(use_headrace: Callable[[App], App]) -> None:
    other = use_headrace(App("memory:", service="other"))
    use_headrace(mine)
    await greet.enqueue("Ada")
    assert await jobs(other) == []
    engines = await mine.engine(), await other.engine()
    assert engines[0] is engines[1]
