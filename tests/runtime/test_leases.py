"""Leases and fencing: who holds a job, and who no longer does (FEATURES 8.2, 8.3, 5.9)."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence

import pytest

from headrace import App, JobContext, Snooze, State, Terminate
from headrace.app.workers import rounds
from headrace.core.claims import Lease, Renewal
from headrace.engine.protocol import Engine
from headrace.runtime.worker import Worker, WorkerOptions
from headrace.testing import ManualClock, run_until_idle, running
from tests.support import eventually, story, within


async def started(app: App, **options: object) -> Worker:
    worker = app.worker(WorkerOptions(**options))  # pyright: ignore
    await worker.start()
    return worker


async def lose(app: App, worker: Worker, clock: ManualClock) -> None:
    """Lets the leases of a worker run out, as if it had been away, and rescues its jobs."""
    keeper = worker._keeper  # pyright: ignore[reportPrivateUsage]
    held, keeper._runs = keeper._runs, {}  # pyright: ignore[reportPrivateUsage]
    clock.advance(31)
    assert await rounds(app, worker).once() >= 1
    keeper._runs = held  # pyright: ignore[reportPrivateUsage]


class TestKeeping:
    async def test_lease_is_renewed_while_the_handler_runs(self, app: App) -> None:
        leave = asyncio.Event()

        @app.task
        async def work() -> str:
            await leave.wait()
            return "kept"

        async with running(app, lease=1):
            ref = await work.enqueue()
            await eventually(lambda: _active(ref))
            first = (await ref.get()).lease_until or 0
            # Two leases later the job is still in the same hands.
            await eventually(lambda: app.clock.now() > first + 1000)
            leave.set()
            assert await ref.result(10) == "kept"
        assert (await ref.get()).tries == 1

    async def test_handler_that_blocks_the_loop_does_not_lose_its_lease(self, app: App) -> None:
        @app.task
        async def blocks() -> str:
            time.sleep(2.5)  # noqa: ASYNC251
            return "kept"

        worker = await started(app, lease=1000)
        watcher, stop = App(await app.engine()), threading.Event()
        rescued: list[int] = []

        def other_process() -> None:
            """Makes the rounds from another loop, as another worker would."""

            async def main() -> None:
                while not stop.is_set():
                    rescued.append(await rounds(watcher, worker).once())
                    await asyncio.sleep(0.05)

            asyncio.run(main())

        thread = threading.Thread(target=other_process)
        thread.start()
        ref = await blocks.enqueue()
        assert await ref.result(15) == "kept"
        stop.set()
        await asyncio.to_thread(thread.join)
        await worker.stop()
        assert sum(rescued) == 0
        assert (await ref.get()).tries == 1

    async def test_all_leases_of_a_worker_are_renewed_in_one_go(
        self, app: App, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        entered, leave, renewed = asyncio.Semaphore(0), asyncio.Event(), list[int]()
        engine = type(await app.engine())
        extend = engine.extend

        async def noting(self: Engine, leases: Sequence[Lease], until: int) -> list[Renewal]:
            renewed.append(len(leases))
            return await extend(self, leases, until)

        @app.task
        async def hold() -> None:
            entered.release()
            await leave.wait()

        async with running(app, concurrency=20) as worker:
            await app.enqueue_many(hold.prepare() for _ in range(20))
            for _ in range(20):
                await within(entered.acquire())
            monkeypatch.setattr(engine, "extend", noting)
            await worker.renew_leases()
            assert set(renewed) == {20}
            leave.set()

    async def test_worker_s_identity_is_fresh_at_every_start(self, app: App) -> None:
        assert app.worker().id != app.worker().id

    async def test_outcome_waiting_to_be_written_keeps_its_lease(
        self, timed: App, clock: ManualClock
    ) -> None:
        """The handler is done, the store slow: nobody else may start the job."""
        engine = await timed.engine()
        apply, go, entered = engine.apply, asyncio.Event(), asyncio.Event()

        async def slow_apply(changes):
            entered.set()
            await go.wait()
            return await apply(changes)

        engine.apply = slow_apply  # pyright: ignore
        ref = await timed.task(type="t")(lambda: "once").enqueue()
        worker = await started(timed)
        await within(entered.wait())
        clock.advance(29)
        await worker.renew_leases()
        clock.advance(29)
        assert ((await ref.get()).lease_until or 0) > clock.now()
        go.set()
        assert await ref.result(10) == "once"
        engine.apply = apply  # pyright: ignore
        await worker.stop()
        assert (await ref.get()).tries == 1


class TestLosing:
    async def test_job_of_a_worker_that_is_gone_runs_elsewhere(
        self, timed: App, clock: ManualClock
    ) -> None:
        """The lost delivery counts as a try."""
        entered = asyncio.Event()

        @timed.task
        async def work(ctx: JobContext) -> int:
            if ctx.number == 1:
                entered.set()
                await asyncio.Event().wait()
            return ctx.number

        worker = await started(timed)
        ref = await work.enqueue()
        await within(entered.wait())
        await lose(timed, worker, clock)
        assert await ref.result(10) == 2
        errors = (await ref.details()).errors
        assert [error.type for error in errors] == ["LeaseLost"]
        assert f"worker {worker.id} stopped renewing" in errors[0].message
        await worker.stop(0)

    async def test_poison_job_runs_out_of_tries(self, timed: App, clock: ManualClock) -> None:
        """A job that takes its worker with it each time does not go on for ever."""
        entered = asyncio.Event()

        @timed.task(max_tries=2)
        async def poison() -> None:
            entered.set()
            await asyncio.Event().wait()

        ref = await poison.enqueue()
        workers: list[Worker] = []
        for _ in range(2):
            worker = await started(timed)
            workers.append(worker)
            await within(entered.wait())
            entered.clear()
            worker.finish()
            await lose(timed, worker, clock)
        assert (await ref.get()).state is State.DEAD
        assert (await run_until_idle(timed)).tries == 0
        for worker in workers:
            await worker.stop(0)

    async def test_lost_lease_stops_the_handler_and_writes_nothing(
        self, timed: App, clock: ManualClock
    ) -> None:
        entered, stopped = asyncio.Event(), asyncio.Event()

        @timed.task
        async def work(ctx: JobContext) -> str:
            if ctx.number > 1:
                return "second"
            entered.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                ctx.log("info", "too late to tell")
                stopped.set()
                raise
            return "first"

        worker = await started(timed, concurrency=1)
        ref = await work.enqueue()
        await within(entered.wait())
        await lose(timed, worker, clock)
        await worker.renew_leases()
        await within(stopped.wait())
        assert await ref.result(10) == "second"
        await worker.stop()
        assert (await ref.details()).logs == ()
        assert "stale_completion_ignored" not in map(str, await story(timed, ref.id))

    async def test_late_finish_changes_nothing_and_is_journaled(
        self, timed: App, clock: ManualClock
    ) -> None:
        """Also while the next owner has not finished: the token tells them apart."""
        entered, leave, leave_again = threading.Event(), threading.Event(), threading.Event()

        @timed.task
        def work(ctx: JobContext) -> str:
            entered.set()
            (leave if ctx.number == 1 else leave_again).wait(20)
            return f"try {ctx.number}"

        worker = await started(timed)
        ref = await work.enqueue()
        await eventually(entered.is_set)
        await lose(timed, worker, clock)
        await eventually(lambda: _active_on_try(ref, 2))
        leave.set()
        await eventually(lambda: _in_story(timed, ref.id, "stale_completion_ignored"))
        job = await ref.get()
        assert (job.state, job.tries, job.result) == (State.ACTIVE, 2, None)
        leave_again.set()
        assert await ref.result(10) == "try 2"
        await worker.stop()
        assert await ref.result(0) == "try 2"

    @pytest.mark.parametrize("kind", ["return", "fail", "terminate", "move", "detach", "snooze"])
    async def test_old_owner_can_no_longer_end_move_or_log_the_job(
        self, timed: App, clock: ManualClock, kind: str
    ) -> None:
        entered, leave, leave_again = threading.Event(), threading.Event(), threading.Event()

        @timed.task
        def work(ctx: JobContext) -> object:
            entered.set()
            if ctx.number > 1:
                leave_again.wait(20)
                return "second"
            leave.wait(20)
            ctx.log("info", "late")
            ctx.progress("late")
            match kind:
                case "fail":
                    raise ValueError("late")
                case "terminate":
                    raise Terminate("late")
                case "snooze":
                    raise Snooze(seconds=5)
                case "move":
                    return ctx.move_to("far")
                case "detach":
                    return ctx.detach()
                case _:
                    return "late"

        worker = await started(timed)
        ref = await work.enqueue()
        await eventually(entered.is_set)
        await lose(timed, worker, clock)
        await eventually(lambda: _active_on_try(ref, 2))
        before = await ref.get()
        leave.set()
        runs = worker._runs  # pyright: ignore[reportPrivateUsage]
        await eventually(lambda: len(runs) == 1)
        await worker._exchange.drained()  # pyright: ignore[reportPrivateUsage]
        details = await ref.details()
        assert (details.job, details.logs) == (before, ())
        leave_again.set()
        assert await ref.result(10) == "second"
        await worker.stop()

    async def test_worker_keeps_its_slot_while_a_lost_handler_runs(
        self, timed: App, clock: ManualClock
    ) -> None:
        entered, leave = threading.Event(), threading.Event()

        def stubborn(ctx: JobContext) -> None:
            if ctx.number == 1:
                entered.set()
                leave.wait(20)

        ref = await timed.task(type="t")(stubborn).enqueue()
        worker = await started(timed, concurrency=1)
        await eventually(entered.is_set)
        await lose(timed, worker, clock)
        worker.look()
        await worker.renew_leases()
        assert (await ref.get()).state is State.RETRY, "no slot is free here"
        leave.set()
        assert (await ref.wait(10)).state is State.COMPLETED
        await worker.stop()


class TestServices:
    async def test_rescue_is_left_to_the_service_s_own_workers(
        self, timed: App, clock: ManualClock
    ) -> None:
        """Their settings decide what becomes of the job."""
        other = App(await timed.engine(), service="other", clock=clock)
        entered = asyncio.Event()

        @other.task(max_tries=1)
        async def work() -> None:
            entered.set()
            await asyncio.Event().wait()

        await other.queue("default").set(dead_letters=False, force=True)
        worker = await started(other)
        ref = await work.enqueue()
        await within(entered.wait())
        worker._keeper._runs = {}  # pyright: ignore[reportPrivateUsage]
        clock.advance(31)
        await run_until_idle(timed)
        assert (await ref.get()).state is State.ACTIVE
        await rounds(other, worker).once()
        assert (await ref.get()).state is State.FAILED
        await worker.stop(0)


async def _active_on_try(ref, number: int) -> bool:
    job = await ref.get()
    return job.state is State.ACTIVE and job.tries == number


async def _active(ref) -> bool:
    return (await ref.get()).state is State.ACTIVE


async def _in_story(app: App, job_id: str, event: str) -> bool:
    return event in map(str, await story(app, job_id))
