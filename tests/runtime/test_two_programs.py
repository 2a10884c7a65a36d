"""Two programs on one store: what one does, the other hears of at once.

Each has an engine of its own, as two processes have. Nobody looks again by himself: what is not
heard of does not happen in time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from headrace import App, JobContext, State
from headrace.app import jobref
from headrace.runtime import exchange, settings
from headrace.testing import running
from tests.support import LIMIT, eventually, within

LEASE = 600
"""Seconds: far too long for what happens here to be a renewal."""


@pytest.fixture(autouse=True)
def nobody_looks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "LOOK_AGAIN", 600.0)
    monkeypatch.setattr(settings, "FALLBACK", 600.0)
    monkeypatch.setattr(jobref, "_LOOK_AGAIN", 600.0)


@pytest.fixture
async def here(shared_url: str) -> AsyncIterator[App]:
    async with App(shared_url) as app:
        yield app


@pytest.fixture
async def there(shared_url: str) -> AsyncIterator[App]:
    async with App(shared_url) as app:
        yield app


class Gate:
    """A handler that says that it has begun, and waits to be let go."""

    def __init__(self, app: App, queue: str, **options: object) -> None:
        self.entered, self.leave = asyncio.Event(), asyncio.Event()
        self.task = app.task(type=queue, queue=queue, **options)(self._run)  # pyright: ignore

    async def _run(self) -> str:
        self.entered.set()
        await self.leave.wait()
        return "done"


async def test_idle_worker_starts_jobs_of_another_program(here: App, there: App) -> None:
    there.task(type="t")(lambda: "ran")
    async with running(there) as worker:
        await worker.until_idle()
        ref = await here.task(type="t")(lambda: None).enqueue()
        assert await ref.result(LIMIT) == "ran"


async def test_idle_worker_knows_when_a_job_of_another_program_is_due(
    here: App, there: App
) -> None:
    there.task(type="t")(lambda: "ran")
    async with running(there) as worker:
        await worker.until_idle()
        task = here.task(type="t")(lambda: None)
        await task.options(delay=3600).enqueue()
        ref = await task.options(delay=0.3).enqueue()
        job = await ref.wait(LIMIT)
        assert job.started_at
        assert job.started_at >= job.run_at


@pytest.mark.parametrize("sync", [False, True])
async def test_cancel_by_another_program_reaches_the_handler(
    here: App, there: App, sync: bool
) -> None:
    entered = asyncio.Event()
    loop = asyncio.get_running_loop()

    async def waits() -> None:
        entered.set()
        await asyncio.Event().wait()

    def looks(ctx: JobContext) -> None:
        loop.call_soon_threadsafe(entered.set)
        assert ctx.wait_cancelled(LIMIT)
        raise RuntimeError(ctx.cancel_reason)

    task = there.task(type="t")(looks if sync else waits)
    async with running(there, lease=LEASE):
        ref = await task.enqueue()
        await within(entered.wait())
        await here.job(ref.id).cancel("enough")
        assert (await here.job(ref.id).wait(LIMIT)).state is State.CANCELLED


async def test_slot_of_a_key_that_is_freed_is_taken_by_another_program(
    here: App, there: App
) -> None:
    first, second = Gate(here, "a", key="k"), Gate(there, "b", key="k")
    async with running(here, queues="a", lease=LEASE), running(there, queues="b", lease=LEASE):
        await first.task.enqueue()
        await within(first.entered.wait())
        ref = await second.task.enqueue()
        await eventually(lambda: _parked(there, ref.id))
        first.leave.set()
        await within(second.entered.wait())
        second.leave.set()
        assert await ref.result(LIMIT) == "done"


async def test_place_under_a_cap_that_is_freed_is_taken_by_another_program(
    here: App, there: App
) -> None:
    await here.queue("q").set(max_active=1)
    first, second = Gate(here, "q"), Gate(there, "q")
    async with running(here, queues="q", lease=LEASE) as one:
        await first.task.enqueue()
        await within(first.entered.wait())
        async with running(there, queues="q", lease=LEASE) as other:
            ref = await second.task.enqueue()
            await other.until_idle()
            assert not second.entered.is_set()
            one.set_queues("elsewhere")
            first.leave.set()
            await within(second.entered.wait())
            second.leave.set()
            assert await ref.result(LIMIT) == "done"


async def test_child_that_is_released_is_started_by_another_program(here: App, there: App) -> None:
    parent, child = Gate(here, "a"), Gate(there, "b")
    async with running(here, queues="a", lease=LEASE), running(there, queues="b", lease=LEASE):
        above = await parent.task.enqueue()
        below = await child.task.options(depends_on=[above.id]).enqueue()
        await within(parent.entered.wait())
        assert (await below.get()).state is State.BLOCKED
        parent.leave.set()
        await within(child.entered.wait())
        child.leave.set()
        assert await below.result(LIMIT) == "done"


async def test_watcher_in_another_program_sees_each_change(here: App, there: App) -> None:
    gate = Gate(there, "q")
    ref = await gate.task.enqueue()
    watching = here.job(ref.id).watch()
    assert (await within(anext(watching))).state is State.PENDING
    async with running(there, queues="q"):
        assert (await within(anext(watching))).state is State.ACTIVE
        gate.leave.set()
        assert [snapshot.state async for snapshot in watching] == [State.COMPLETED]


async def _parked(app: App, job_id: str) -> bool:
    return [job.id async for job in app.find(states="parked")] == [job_id]
