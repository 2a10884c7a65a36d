"""The handler's context: progress, logs, results, call_after (FEATURES 8.6, 9.3)."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from headrace import (
    App,
    HeadraceError,
    InvalidValue,
    JobContext,
    State,
    current_job,
)
from headrace.core.model import MAX_LOGS, MAX_MESSAGE
from headrace.testing import ManualClock, run_until_idle, running
from tests.support import eventually, story, within


class TestWhatItShows:
    @pytest.mark.parametrize("sync", [False, True])
    async def test_context_comes_by_argument_and_by_current_job(
        self, timed: App, clock: ManualClock, sync: bool
    ) -> None:
        def check(ctx: JobContext) -> list[Any]:
            assert current_job() is ctx
            assert ctx.now() == clock.time
            assert (ctx.cancelled, ctx.cancel_reason) == (False, None)
            return [ctx.id, ctx.number, ctx.job.type]

        if sync:

            @timed.task(type="t")
            def handler(ctx: JobContext) -> list[Any]:
                return check(ctx)
        else:

            @timed.task(type="t")
            async def handler(ctx: JobContext) -> list[Any]:
                return check(ctx)

        ref = await handler.enqueue()
        await run_until_idle(timed)
        assert await ref.result() == [ref.id, 1, "t"]

    def test_outside_a_handler_there_is_none(self) -> None:
        with pytest.raises(HeadraceError, match="no job is running here"):
            current_job()

    async def test_context_may_stand_anywhere_among_the_parameters(self, timed: App) -> None:
        @timed.task
        async def handler(a: int, ctx: JobContext, b: int = 2) -> list[int]:
            return [a, ctx.number, b]

        ref = await handler.enqueue(7, b=8)  # pyright: ignore[reportCallIssue]
        await run_until_idle(timed)
        assert await ref.result() == [7, 1, 8]

    async def test_handlers_side_by_side_have_their_own(self, app: App) -> None:
        both = asyncio.Barrier(2)

        @app.task
        async def handler() -> str:
            await both.wait()
            return current_job().id

        refs = [await handler.enqueue() for _ in range(2)]
        async with running(app):
            assert [await ref.result(10) for ref in refs] == [ref.id for ref in refs]


class TestProgressAndLogs:
    async def test_latest_progress_and_all_logs_are_on_the_job(
        self, timed: App, clock: ManualClock
    ) -> None:
        @timed.task
        async def handler(ctx: JobContext) -> None:
            ctx.progress("one", "first", 1, 2)
            ctx.log("info", "line 1")
            clock.advance(1)
            ctx.progress("two", current=2)
            ctx.log("error", "line 2")

        start = clock.now()
        ref = await handler.enqueue()
        await run_until_idle(timed)
        details = await ref.details()
        progress = details.job.progress
        assert progress
        assert (progress.step, progress.message, progress.current) == ("two", None, 2)
        assert [(entry.at - start, entry.level, entry.message) for entry in details.logs] == [
            (0, "info", "line 1"),
            (1000, "error", "line 2"),
        ]
        assert [str(event) for event in await story(timed, ref.id)] == [
            "created",
            "started",
            "progress",
            "logged",
            "progress",
            "logged",
            "completed",
        ]

    async def test_progress_is_seen_while_the_handler_runs(self, app: App) -> None:
        leave = asyncio.Event()

        @app.task
        async def handler(ctx: JobContext) -> None:
            ctx.progress("working")
            await leave.wait()

        ref = await handler.enqueue()
        async with running(app):
            await eventually(lambda: _progress(ref))
            leave.set()
            await ref.wait(10)

    async def test_logs_from_threads_keep_their_order(self, timed: App) -> None:
        @timed.task
        def handler(ctx: JobContext) -> None:
            for n in range(50):
                ctx.log("debug", str(n))

        ref = await handler.enqueue()
        await run_until_idle(timed)
        assert [entry.message for entry in (await ref.details()).logs] == [
            str(n) for n in range(50)
        ]

    async def test_logs_are_bounded_and_cleaned(self, timed: App) -> None:
        @timed.task
        async def handler(ctx: JobContext) -> None:
            for n in range(MAX_LOGS + 5):
                ctx.log("info", f"{n}")
            ctx.log("warn", "x" * 10_000)
            ctx.log("warn", "half \ud800 character")
            ctx.progress("half \ud800 step")

        ref = await handler.enqueue()
        await run_until_idle(timed)
        logs = (await ref.details()).logs
        assert len(logs) == MAX_LOGS
        assert logs[-3].message == f"{MAX_LOGS + 4}"
        assert len(logs[-2].message) == MAX_MESSAGE
        assert logs[-1].message == "half \\ud800 character"
        assert (await ref.get()).state is State.COMPLETED

    async def test_warnings_may_be_called_as_in_logging(self, timed: App) -> None:
        @timed.task
        async def handler(ctx: JobContext) -> None:
            ctx.log("warning", "low on paper")

        ref = await handler.enqueue()
        await run_until_idle(timed)
        assert [entry.level for entry in (await ref.details()).logs] == ["warn"]

    async def test_unknown_level_is_refused(self, timed: App) -> None:
        @timed.task(max_tries=1)
        async def handler(ctx: JobContext) -> None:
            ctx.log("loud", "x")

        ref = await handler.enqueue()
        await run_until_idle(timed)
        error = (await ref.get()).error
        assert error
        assert error.message == "level: 'loud' is not one of debug, info, warn, error"

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("current", "3"),
            ("current", True),
            ("total", float("nan")),
            ("total", 10**400),
            ("step", 3),
            ("message", b"x"),
        ],
    )
    async def test_progress_of_the_wrong_kind_is_refused_and_nothing_is_written(
        self, timed: App, field: str, value: Any
    ) -> None:
        @timed.task(max_tries=1)
        async def handler(ctx: JobContext) -> None:
            ctx.progress(**{field: value})

        ref = await handler.enqueue()
        await run_until_idle(timed)
        job = await ref.get()
        assert job.error
        assert (job.error.type, job.progress) == ("headrace.InvalidValue", None)
        assert job.error.message.startswith(f"{field}: ")

    async def test_unchanged_progress_is_written_once(self, timed: App) -> None:
        @timed.task
        async def handler(ctx: JobContext) -> None:
            for _ in range(10):
                ctx.progress("same")

        ref = await handler.enqueue()
        await run_until_idle(timed)
        assert len(await story(timed, ref.id)) == 4

    async def test_retried_job_starts_with_clean_logs(self, timed: App) -> None:
        @timed.task
        async def handler(ctx: JobContext) -> None:
            ctx.log("info", "again")

        ref = await handler.enqueue()
        await run_until_idle(timed)
        await ref.retry()
        assert (await ref.details()).logs == ()
        await run_until_idle(timed)
        assert len((await ref.details()).logs) == 1


class TestResult:
    async def test_result_so_far_is_what_none_leaves(self, timed: App) -> None:
        @timed.task
        async def sets(ctx: JobContext) -> None:
            assert ctx.result is None
            ctx.set_result({"n": 1})
            assert ctx.result == {"n": 1}

        @timed.task
        async def returns(ctx: JobContext) -> int:
            ctx.set_result(1)
            return 2

        refs = [await sets.enqueue(), await returns.enqueue()]
        await run_until_idle(timed)
        assert await timed.job(refs[0].id).result() == {"n": 1}
        assert await refs[1].result() == 2


class TestHeartbeat:
    async def test_heartbeat_renews_the_lease_now(self, app: App) -> None:
        go, leave = threading.Event(), threading.Event()

        @app.task
        def handler(ctx: JobContext) -> None:
            go.wait(20)
            ctx.heartbeat()
            leave.wait(20)

        async with running(app):
            ref = await handler.enqueue()
            await eventually(lambda: _all_active(ref))
            before = (await ref.get()).lease_until or 0
            await eventually(lambda: app.clock.now() > before - 30_000)
            go.set()
            # By itself the worker would renew it after a third of the lease: ten seconds.
            await eventually(lambda: _leased_beyond(ref, before), limit=5)
            leave.set()
            await ref.wait(10)

    async def test_several_threads_may_wait_for_the_cancel(self, app: App) -> None:
        @app.task
        def handler(ctx: JobContext) -> int:
            woken: list[bool] = []
            threads = [
                threading.Thread(target=lambda: woken.append(ctx.wait_cancelled(20)))
                for _ in range(4)
            ]
            for thread in threads:
                thread.start()
            entered.set()
            for thread in threads:
                thread.join()
            assert ctx.wait_cancelled(0)
            return sum(woken)

        entered = threading.Event()
        async with running(app):
            ref = await handler.enqueue()
            await eventually(entered.is_set)
            await ref.cancel()
            assert await ref.result(10) == 4


async def test_impossible_moves_and_detachments_are_refused(timed: App) -> None:
    @timed.task
    async def handler(ctx: JobContext) -> list[str]:
        texts: list[str] = []
        for attempt in (
            lambda: ctx.detach(0),
            lambda: ctx.detach(float("inf")),
            lambda: ctx.move_to("default"),
            lambda: ctx.move_to("a b"),
            lambda: ctx.move_to("q", "a b"),
            lambda: ctx.move_to("q", delay=-1),
            lambda: ctx.move_to("default", "handler"),
        ):
            with pytest.raises(InvalidValue) as caught:
                attempt()
            texts.append(str(caught.value))
        return texts

    ref = await handler.enqueue()
    await run_until_idle(timed)
    texts = await within(ref.result())
    assert [text.partition(":")[0] for text in texts] == [
        "timeout",
        "timeout",
        "queue",
        "queue",
        "type",
        "delay",
        "queue",
    ]


async def _progress(ref) -> object:
    return (await ref.get()).progress


async def _all_active(*refs) -> bool:
    return all([(await ref.get()).state is State.ACTIVE for ref in refs])


async def _leased_beyond(ref, moment: int) -> bool:
    return ((await ref.get()).lease_until or 0) > moment
