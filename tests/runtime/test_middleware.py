"""Middleware, hooks, resources; and that none of them can stop a worker (FEATURES 8.7, 3.7)."""

from __future__ import annotations

from contextvars import ContextVar

import pytest

from headrace import (
    App,
    InvalidValue,
    JobContext,
    Middleware,
    Snooze,
    State,
    Terminate,
    chain,
    current_job,
)
from headrace.testing import run_until_idle, running


def noting(name: str, notes: list[str]) -> Middleware:
    async def middleware(ctx: JobContext, proceed) -> object:
        notes.append(f"{name} in")
        try:
            return await proceed()
        finally:
            notes.append(f"{name} out")

    return middleware


class TestMiddleware:
    @pytest.mark.parametrize("sync", [False, True])
    async def test_outermost_comes_first_and_the_app_s_is_outside(
        self, timed: App, sync: bool
    ) -> None:
        notes: list[str] = []
        a, b, c, d, e = (noting(name, notes) for name in "abcde")
        timed.use(a, b)
        timed.use(c)
        if sync:
            timed.task(type="t", middleware=[chain(d, e)])(lambda: notes.append("run"))
        else:

            @timed.task(type="t", middleware=[d, e])
            async def run() -> None:
                notes.append("run")

        await timed.enqueue_many([timed.prepare("t")])
        await run_until_idle(timed)
        assert notes == [f"{n} in" for n in "abcde"] + ["run"] + [f"{n} out" for n in "edcba"]

    async def test_middleware_sees_changes_and_replaces_the_result(self, timed: App) -> None:
        async def double(ctx: JobContext, proceed) -> object:
            assert ctx is current_job()
            return 2 * await proceed()

        ref = await timed.task(type="t", middleware=[double])(lambda: 4).enqueue()
        await run_until_idle(timed)
        assert await ref.result() == 8

    async def test_middleware_may_not_call_the_handler(self, timed: App) -> None:
        async def cached(ctx: JobContext, proceed) -> object:
            return "cached"

        ran = []
        ref = await timed.task(type="t", middleware=[cached])(lambda: ran.append(1)).enqueue()
        await run_until_idle(timed)
        assert (await ref.result(), ran) == ("cached", [])

    async def test_middleware_can_catch_and_raise(self, timed: App) -> None:
        async def patient(ctx: JobContext, proceed) -> object:
            try:
                return await proceed()
            except ValueError as error:
                raise Terminate("given up") from error

        def fails() -> None:
            raise ValueError("x")

        ref = await timed.task(type="t", middleware=[patient])(fails).enqueue()
        await run_until_idle(timed)
        job = await ref.get()
        assert job.state is State.FAILED
        assert job.error
        assert "ValueError: x" in job.error.traceback

    async def test_context_variables_of_middleware_reach_the_handler(self, timed: App) -> None:
        user: ContextVar[str] = ContextVar("user")

        async def login(ctx: JobContext, proceed) -> object:
            user.set(ctx.job.spec.metadata["user"])
            return await proceed()

        timed.use(login)

        @timed.task
        async def in_loop() -> str:
            return user.get()

        in_thread = timed.task(type="thread")(lambda: user.get())
        refs = [
            await in_loop.options(metadata={"user": "ada"}).enqueue(),
            await in_thread.options(metadata={"user": "bob"}).enqueue(),
        ]
        await run_until_idle(timed)
        assert [await ref.result() for ref in refs] == ["ada", "bob"]

    async def test_what_is_not_callable_is_refused(self, timed: App) -> None:
        with pytest.raises(InvalidValue, match=r"^middleware: 'x' is not callable"):
            timed.use("x")  # pyright: ignore
        with pytest.raises(InvalidValue, match=r"^middleware: None is not callable"):
            chain(None)  # pyright: ignore


class TestPanics:
    """Nothing of the user's stops the worker or loses a job."""

    async def alive(self, app: App) -> None:
        ref = await app.task(type="alive")(lambda: "alive").enqueue()
        await run_until_idle(app)
        assert await ref.result() == "alive"

    @pytest.mark.parametrize("error", [RuntimeError("x"), BaseException("y"), SystemExit(1)])
    async def test_exception_in_middleware_is_a_failed_try(
        self, timed: App, error: BaseException
    ) -> None:
        async def broken(ctx: JobContext, proceed) -> object:
            raise error

        ref = await timed.task(type="t", middleware=[broken], max_tries=1)(lambda: 1).enqueue()
        await run_until_idle(timed)
        assert (await ref.get()).state is State.DEAD
        await self.alive(timed)

    async def test_middleware_that_is_not_async_is_a_failed_try(self, timed: App) -> None:
        ref = await timed.task(
            type="t",
            middleware=[lambda ctx, proceed: 3],  # pyright: ignore
            max_tries=1,
        )(lambda: 1).enqueue()
        await run_until_idle(timed)
        assert (await ref.get()).state is State.DEAD
        await self.alive(timed)

    @pytest.mark.parametrize("error", [RuntimeError("x"), SystemExit(1), KeyboardInterrupt()])
    async def test_exception_in_call_after_changes_nothing(
        self, timed: App, error: BaseException
    ) -> None:
        called = []

        def broken(*_: object) -> None:
            called.append(1)
            raise error

        async def broken_async(*_: object) -> None:
            called.append(2)
            raise error

        @timed.task
        async def work(ctx: JobContext) -> str:
            ctx.call_after(broken)
            ctx.call_after(broken_async)
            ctx.call_after(lambda *_: called.append(3))
            return "done"

        ref = await work.enqueue()
        await run_until_idle(timed)
        assert await ref.result() == "done"
        assert sorted(called) == [1, 2, 3]
        await self.alive(timed)


class TestHooks:
    async def test_hooks_run_around_the_worker(self, timed: App) -> None:
        notes: list[str] = []

        @timed.on_start
        async def start() -> None:
            notes.append("start")

        @timed.on_start
        def start_sync() -> None:
            notes.append("start sync")

        timed.on_stop(lambda: notes.append("stop"))
        await timed.task(type="t")(lambda: notes.append("job")).enqueue()
        await run_until_idle(timed)
        assert notes == ["start", "start sync", "job", "stop"]

    async def test_failing_start_hook_aborts_the_start(self, timed: App) -> None:
        @timed.on_start
        async def broken() -> None:
            raise RuntimeError("no database")

        ran = []
        await timed.task(type="t")(lambda: ran.append(1)).enqueue()
        worker = timed.worker()
        with pytest.raises(RuntimeError, match="no database"):
            await worker.start()
        await worker.stop()
        with pytest.raises(RuntimeError, match="no database"):
            await timed.work()
        assert ran == []

    async def test_failing_stop_hook_is_passed_over(self, timed: App) -> None:
        notes: list[str] = []

        def broken() -> None:
            raise RuntimeError

        timed.on_stop(broken)
        timed.on_stop(lambda: notes.append("second"))
        async with running(timed):
            pass
        assert notes == ["second"]


async def test_handlers_may_snooze_from_middleware(timed: App) -> None:
    async def later(ctx: JobContext, proceed) -> object:
        if not asked:
            asked.append(1)
            raise Snooze(seconds=5)
        return await proceed()

    asked: list[int] = []
    ref = await timed.task(type="t", middleware=[later])(lambda: 1).enqueue()
    summary = await run_until_idle(timed, drain=True)
    assert (summary.tries, await ref.result()) == (2, 1)
