"""Shutdown: let finish, give back, leave (FEATURES 8.5)."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from headrace import App, State
from headrace.engine.memory import MemoryEngine
from headrace.runtime.worker import Worker, WorkerOptions
from headrace.testing import ManualClock, run_until_idle
from tests.support import Outage, eventually, within


async def started(app: App, **options: object) -> Worker:
    await app.open()
    worker = app.worker(WorkerOptions(**options))  # pyright: ignore
    await worker.start()
    return worker


def leftover_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "headrace-leases"]


async def test_handlers_are_let_finish_and_nothing_new_is_claimed(app: App) -> None:
    entered, leave = asyncio.Event(), asyncio.Event()

    @app.task
    async def work() -> str:
        entered.set()
        await leave.wait()
        return "finished"

    worker = await started(app)
    ref = await work.enqueue()
    await within(entered.wait())
    stopping = asyncio.create_task(worker.stop())
    await asyncio.sleep(0)
    late = await work.enqueue()
    leave.set()
    await within(stopping)
    assert await ref.result(0) == "finished"
    assert (await late.get()).state is State.PENDING


@pytest.mark.parametrize("sync", [False, True])
async def test_after_the_grace_jobs_are_given_back_and_the_try_is_not_counted(
    app: App, sync: bool
) -> None:
    entered = threading.Event()

    if sync:
        from headrace import current_job

        @app.task(type="t")
        def work() -> None:
            entered.set()
            if current_job().wait_cancelled(20):
                raise RuntimeError("interrupted")
    else:

        @app.task(type="t")
        async def work() -> None:
            entered.set()
            await asyncio.Event().wait()

    worker = await started(app, grace=0.05)
    ref = await work.enqueue()
    await eventually(entered.is_set)
    await within(worker.stop())
    job = await ref.get()
    assert (job.state, job.tries, job.worker, job.error) == (State.PENDING, 0, None, None)
    assert job.event == "returned"


async def test_given_back_job_runs_at_once_elsewhere_and_completes(app: App) -> None:
    runs: list[int] = []

    @app.task(max_tries=1)
    async def work() -> str:
        runs.append(1)
        if len(runs) == 1:
            await asyncio.Event().wait()
        return "second worker"

    first = await started(app, grace=0)
    ref = await work.enqueue()
    await eventually(lambda: runs)
    await within(first.stop())
    second = await started(app)
    assert second.id != first.id
    assert await ref.result(10) == "second worker"
    assert (await ref.get()).tries == 1
    await second.stop()


async def test_ten_running_jobs_all_come_back(app: App) -> None:
    @app.task
    async def work() -> None:
        await asyncio.Event().wait()

    refs = [await work.enqueue() for _ in range(10)]
    worker = await started(app, grace=0)
    await eventually(lambda: _all(refs, State.ACTIVE))
    await within(worker.stop())
    assert await _all(refs, State.PENDING)


async def test_handler_that_cannot_be_interrupted_is_given_back_in_the_end(app: App) -> None:
    entered, leave = threading.Event(), threading.Event()

    def stubborn() -> str:
        entered.set()
        leave.wait(30)
        return "too late"

    ref = await app.task(type="t")(stubborn).enqueue()
    worker = await started(app, grace=0)
    await eventually(entered.is_set)
    worker.leave_now()
    await within(worker.stop(), 5)
    job = await ref.get()
    assert (job.state, job.tries) == (State.PENDING, 0)
    leave.set()


async def test_second_word_cuts_the_grace_short(app: App) -> None:
    entered = asyncio.Event()

    @app.task
    async def work() -> None:
        entered.set()
        await asyncio.Event().wait()

    worker = await started(app, grace=60.0)
    ref = await work.enqueue()
    await within(entered.wait())
    stopping = asyncio.create_task(worker.stop())
    await asyncio.sleep(0)
    assert not stopping.done()
    worker.leave_now()
    await within(stopping, 5)
    assert (await ref.get()).state is State.PENDING


async def test_stopping_twice_waits_for_the_same_end(app: App) -> None:
    worker = await started(app)
    await within(asyncio.gather(worker.stop(), worker.stop()))
    await worker.stop()
    assert await app.workers() == []


async def test_worker_that_never_started_can_be_stopped(app: App) -> None:
    await app.worker().stop()


async def test_nothing_is_left_behind(app: App) -> None:
    before = len(asyncio.all_tasks())
    threads = leftover_threads()
    app.task(type="t")(lambda: None)
    worker = await started(app)
    await app.enqueue_many([app.prepare("t") for _ in range(5)])
    await worker.until_idle()
    await worker.stop()
    assert leftover_threads() == threads
    await eventually(lambda: len(asyncio.all_tasks()) == before)


async def test_cancelled_work_stops_in_order(app: App) -> None:
    entered, notes = asyncio.Event(), []

    @app.task
    async def work() -> str:
        entered.set()
        await asyncio.sleep(0.05)
        return "finished"

    app.on_stop(lambda: notes.append("stopped"))
    working = asyncio.create_task(app.work())
    ref = await work.enqueue()
    await within(entered.wait())
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await within(working)
    assert await ref.result(0) == "finished"
    assert notes == ["stopped"]


async def test_outcome_of_an_abandoned_handler_is_refused_later(timed: App) -> None:
    """It was given back, so somebody else has it by now."""
    entered, leave, ended = threading.Event(), threading.Event(), threading.Event()

    def stubborn() -> str:
        entered.set()
        leave.wait(20)
        ended.set()
        return "late"

    task = timed.task(type="t")(stubborn)
    ref = await task.enqueue()
    worker = await started(timed, grace=0)
    await eventually(entered.is_set)
    worker.leave_now()
    await within(worker.stop(), 5)
    leave.set()
    await eventually(ended.is_set)
    await asyncio.sleep(0)
    assert (await ref.get()).state is State.PENDING
    await run_until_idle(timed)
    assert (await ref.get()).tries == 1


class TestEngineAway:
    """An engine that is away must not keep a worker from leaving."""

    async def test_idle_worker_leaves(self) -> None:
        engine = Outage(MemoryEngine())
        app = App(engine)  # pyright: ignore[reportArgumentType]
        worker = await started(app)
        await worker.until_idle()
        engine.down = True
        worker.look()
        await eventually(lambda: engine.refused > 0)
        await within(worker.stop(), 5)

    async def test_worker_with_unwritten_outcomes_leaves_in_bounded_time(self) -> None:
        engine = Outage(MemoryEngine())
        app = App(engine)  # pyright: ignore[reportArgumentType]
        entered, leave = asyncio.Event(), asyncio.Event()

        @app.task
        async def work() -> str:
            entered.set()
            await leave.wait()
            return "unwritten"

        worker = await started(app, grace=0.1)
        ref = await work.enqueue()
        await within(entered.wait())
        engine.down = True
        leave.set()
        await eventually(lambda: engine.refused > 0)
        worker.leave_now()
        begun = time.monotonic()
        await within(worker.stop(), 10)
        assert time.monotonic() - begun < 5
        engine.down = False
        assert (await ref.get()).state is State.ACTIVE, "it comes back when its lease runs out"


async def test_damaged_store_ends_the_worker_with_its_error(app: App) -> None:
    from headrace import StoreCorrupt

    engine = await app.engine()

    async def broken(request, changes=()):
        raise StoreCorrupt("the page is gone")

    engine.claim = broken  # pyright: ignore
    threads = leftover_threads()
    with pytest.raises(StoreCorrupt, match="the page is gone"):
        await within(app.work())
    assert leftover_threads() == threads


async def test_clock_moves_after_the_stop_touch_nothing(timed: App, clock: ManualClock) -> None:
    worker = await started(timed)
    await worker.stop()
    clock.advance(100)
    await asyncio.sleep(0)


async def _all(refs, state: State) -> bool:
    return all([(await ref.get()).state is state for ref in refs])
