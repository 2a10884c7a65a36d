"""Resources: shared by handlers, found by annotation (FEATURES 8.7)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from headrace import App, InvalidValue, State, provided
from headrace.testing import run_until_idle, running
from tests.support import within


class Database:
    def __init__(self, name: str) -> None:
        self.name, self.open = name, True


class Cache:
    pass


class TestResources:
    async def test_resources_are_made_once_found_by_annotation_and_closed(self, timed: App) -> None:
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

    async def test_resource_is_entered_and_left_by_the_same_task(self, timed: App) -> None:
        """Task groups and cancel scopes insist on it."""
        tasks: list[asyncio.Task[object] | None] = []

        @timed.resource
        async def database() -> AsyncIterator[Database]:
            tasks.append(asyncio.current_task())
            async with asyncio.TaskGroup() as group:
                beating = group.create_task(asyncio.Event().wait())
                yield Database("grouped")
                beating.cancel()
            tasks.append(asyncio.current_task())

        @timed.task
        async def use(db: Database = provided()) -> str:
            return db.name

        ref = await use.enqueue()
        await run_until_idle(timed)
        assert await ref.result() == "grouped"
        assert tasks[0] is tasks[1] is not None

    async def test_cancelled_job_does_not_take_the_resource_from_the_others(self, app: App) -> None:
        making, go, made = asyncio.Event(), asyncio.Event(), []

        @app.resource
        async def database() -> AsyncIterator[Database]:
            made.append(1)
            making.set()
            await go.wait()
            yield Database("slow")

        @app.task
        async def use(db: Database = provided()) -> str:
            return db.name

        async with running(app):
            first = await use.enqueue()
            await within(making.wait())
            second = await use.enqueue()
            await first.cancel()
            assert (await first.wait(10)).state is State.CANCELLED
            go.set()
            assert await second.result(10) == "slow"
        assert made == [1]

    @pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), BaseException("odd")])
    @pytest.mark.parametrize("kind", ["plain", "async", "generator", "async generator"])
    async def test_provider_that_raises_to_end_the_process_fails_the_try(
        self, timed: App, kind: str, error: BaseException
    ) -> None:
        def plain() -> Database:
            raise error

        async def coroutine() -> Database:
            raise error

        def generator() -> Iterator[Database]:
            raise error
            yield

        async def async_generator() -> AsyncIterator[Database]:
            raise error
            yield

        providers = {
            "plain": plain,
            "async": coroutine,
            "generator": generator,
            "async generator": async_generator,
        }
        timed.resource(providers[kind])

        @timed.task(max_tries=1)
        async def use(db: Database = provided()) -> None: ...

        @timed.task
        async def other() -> str:
            return "alive"

        refs = await use.enqueue(), await other.enqueue()
        await within(run_until_idle(timed))
        failed = await refs[0].get()
        assert failed.state is State.DEAD
        assert failed.error
        assert repr(error) in failed.error.traceback or str(error) in failed.error.traceback
        assert await refs[1].result() == "alive"

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
        with pytest.raises(InvalidValue, match=r"^db: a provided parameter needs an annotation"):
            timed.task(type="t")(lambda db=provided(): None)

    @pytest.mark.parametrize("error", [RuntimeError("close failed"), SystemExit(1)])
    async def test_resource_that_cannot_be_closed_does_not_stop_the_stop(
        self, timed: App, error: BaseException
    ) -> None:
        @timed.resource
        def database() -> Iterator[Database]:
            yield Database("x")
            raise error

        @timed.task
        async def use(db: Database = provided()) -> str:
            return db.name

        ref = await use.enqueue()
        await run_until_idle(timed)
        assert await ref.result() == "x"
