"""Middleware, hooks, resources; and that none of them can stop a worker (FEATURES 8.7, 3.7)."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator
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
    provided,
)
from headrace.testing import run_until_idle, running
from tests.support import eventually


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
        with pytest.raises(InvalidValue, match="^middleware: 'x' is not callable"):
            timed.use("x")  # pyright: ignore
        with pytest.raises(InvalidValue, match="^middleware: None is not callable"):
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
            raise RuntimeError

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


class Database:
    def __init__(self, name: str) -> None:
        self.name, self.open = name, True


class Cache:
    pass


class TestResources:
    async def test_resources_are_made_once_found_by_annotation_and_closed(
        self, timed: App
    ) -> None:
        notes: list[str] = []

        @timed.resource
        async def database() -> AsyncIterator[Database]:
            notes.append("open db")
            database = Database("main")
            yield database
            database.open = False
            notes.append("close db")

        @timed.resource
        def cache() -> Iterator[Cache]:
            notes.append("open cache")
            yield Cache()
            notes.append("close cache")

        @timed.task
        async def query(n: int, db: Database = provided(), *, cache: Cache = provided()) -> str:
            assert isinstance(cache, Cache)
            assert db.open
            return f"{db.name} {n}"

        @timed.task
        def query_sync(db: Database = provided()) -> str:
            return db.name

        refs = [await query.enqueue(1), await query.enqueue(2), await query_sync.enqueue()]
        await run_until_idle(timed)
        assert [await ref.result() for ref in refs] == ["main 1", "main 2", "main"]
        assert notes == ["open db", "open cache", "close cache", "close db"]

    async def test_plain_and_async_functions_make_resources_too(self, timed: App) -> None:
        @timed.resource
        def cache() -> Cache:
            return Cache()

        @timed.resource
        async def database() -> Database:
            return Database("async")

        @timed.task
        async def use(cache: Cache = provided(), db: Database = provided()) -> str:
            return f"{type(cache).__name__} {db.name}"

        ref = await use.enqueue()
        await run_until_idle(timed)
        assert await ref.result() == "Cache async"

    async def test_resource_that_cannot_be_made_fails_the_try_and_is_tried_again(
        self, timed: App
    ) -> None:
        tries = []

        @timed.resource
        def database() -> Database:
            tries.append(1)
            if len(tries) == 1:
                raise ConnectionError("away")
            return Database("back")

        @timed.task(retry=1)
        async def use(db: Database = provided()) -> str:
            return db.name

        ref = await use.enqueue()
        await run_until_idle(timed, drain=True)
        assert await ref.result() == "back"

    async def test_missing_provider_is_named(self, timed: App) -> None:
        @timed.task(max_tries=1)
        async def use(db: Database = provided()) -> None: ...

        ref = await use.enqueue()
        await run_until_idle(timed)
        error = (await ref.get()).error
        assert error
        assert "nothing provides <class" in error.message
        assert "register it with @app.resource" in error.message

    async def test_resource_cannot_be_given_by_the_caller(self, timed: App) -> None:
        @timed.task
        async def use(db: Database = provided()) -> None: ...

        with pytest.raises(TypeError, match="unexpected keyword argument 'db'"):
            await use.enqueue(db=Database("mine"))

    async def test_mistakes_are_found_at_registration(self, timed: App) -> None:
        with pytest.raises(InvalidValue, match="needs a return annotation"):
            timed.resource(lambda: 1)

        def one() -> Cache:
            return Cache()

        timed.resource(one)
        with pytest.raises(InvalidValue, match="is provided twice"):
            timed.resource(one)
        with pytest.raises(InvalidValue, match="^db: a provided parameter needs an annotation"):
            timed.task(type="t")(lambda db=provided(): None)

    async def test_resource_that_cannot_be_closed_does_not_stop_the_stop(self, timed: App) -> None:
        @timed.resource
        def database() -> Iterator[Database]:
            yield Database("x")
            raise RuntimeError("close failed")

        @timed.task
        async def use(db: Database = provided()) -> str:
            return db.name

        ref = await use.enqueue()
        await run_until_idle(timed)
        assert await ref.result() == "x"


class TestThreads:
    async def test_sync_handlers_run_side_by_side_in_threads(self, app: App) -> None:
        barrier = threading.Barrier(4, timeout=20)

        def meet() -> str:
            barrier.wait()
            return threading.current_thread().name

        task = app.task(type="t")(meet)
        refs = [await task.enqueue() for _ in range(4)]
        async with running(app, concurrency=4):
            names = {await ref.result(20) for ref in refs}
        assert names == {"headrace-handler"}

    async def test_threads_can_be_fewer_than_slots_and_none_is_lost(self, app: App) -> None:
        now, most, lock = [0], [0], threading.Lock()

        def work() -> None:
            with lock:
                now[0] += 1
                most[0] = max(most[0], now[0])
            threading.Event().wait(0.005)
            with lock:
                now[0] -= 1

        task = app.task(type="t")(work)
        refs = [await task.enqueue() for _ in range(20)]
        async with running(app, concurrency=10, threads=2):
            for ref in refs:
                assert (await ref.wait(20)).state is State.COMPLETED
        assert most == [2]

    async def test_call_cancelled_before_its_thread_began_never_begins(self, app: App) -> None:
        entered, leave, ran = threading.Event(), threading.Event(), []

        def hold() -> None:
            entered.set()
            leave.wait(20)

        holder = await app.task(type="hold")(hold).enqueue()
        async with running(app, concurrency=2, threads=1) as worker:
            await eventually(entered.is_set)
            waiting = await app.task(type="waits")(lambda: ran.append(1)).enqueue()
            await eventually(lambda: _active(waiting))
            await waiting.cancel("not needed")
            assert (await waiting.wait(10)).state is State.CANCELLED
            leave.set()
            assert (await holder.wait(10)).state is State.COMPLETED
            await worker.until_idle()
        assert ran == []

    async def test_stuck_thread_does_not_keep_others_from_running(self, app: App) -> None:
        leave = threading.Event()
        app.task(type="stuck")(lambda: leave.wait(20) and None)
        await app.enqueue_many([app.prepare("stuck")])
        async with running(app, concurrency=2):
            ref = await app.task(type="t")(lambda: "fine").enqueue()
            assert await ref.result(10) == "fine"
            leave.set()


async def _active(ref) -> bool:
    return (await ref.get()).state is State.ACTIVE


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
