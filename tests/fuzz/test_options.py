"""Options of jobs, payloads and names, from callers that get everything wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import App, Debounce, KeepLast, Throttle
from headrace.app.options import JobOptions
from headrace.app.queues import QueueSettings
from headrace.core.model import Filter
from tests.fuzz.values import ANYTHING, NUMBERS, QUICK, SCALARS, TEXTS, taken

NAMES = sorted(JobOptions.__annotations__)
KEYS = st.one_of(TEXTS, st.lists(SCALARS, max_size=3), st.tuples(st.just("/n"), SCALARS))
PLAUSIBLE: dict[str, st.SearchStrategy[Any]] = {
    "unique": st.one_of(
        KEYS,
        st.builds(Throttle, NUMBERS, KEYS, st.booleans()),
        st.builds(Debounce, NUMBERS, KEYS),
        st.builds(KeepLast, KEYS),
    ),
    "key": KEYS,
    "max_active": NUMBERS,
    "max_tries": NUMBERS,
    "max_queued": NUMBERS,
    "retry": st.one_of(NUMBERS, st.lists(NUMBERS, max_size=3), TEXTS),
    "delay": NUMBERS,
    "ttl": NUMBERS,
    "timeout": NUMBERS,
    "deadline": NUMBERS,
    "metadata": st.dictionaries(TEXTS, SCALARS, max_size=3),
    "tags": st.lists(TEXTS, max_size=3),
    "depends_on": st.lists(TEXTS, max_size=2),
}
OPTIONS = st.dictionaries(st.sampled_from(NAMES), st.none(), max_size=4).flatmap(
    lambda names: st.fixed_dictionaries(
        {name: st.one_of(PLAUSIBLE.get(name, ANYTHING), ANYTHING) for name in names}
    )
)
PAYLOADS = st.one_of(st.dictionaries(TEXTS, ANYTHING, max_size=3), ANYTHING)


class Stage:
    """An app that all examples of a test share."""

    def __init__(self, url: str) -> None:
        self._runner = asyncio.Runner()
        self.app = App(url)

    def run(self, body: Callable[[App], Coroutine[Any, Any, None]]) -> None:
        self._runner.run(body(self.app))

    def close(self) -> None:
        self._runner.run(self.app.close())
        self._runner.close()


@pytest.fixture(params=["memory", "sqlite"])
def stage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stage]:
    url = "memory:" if request.param == "memory" else f"sqlite:{tmp_path / 'jobs.db'}"
    stage = Stage(url + ("?synchronous=normal" if request.param == "sqlite" else ""))
    yield stage
    stage.close()


async def written(app: App) -> int:
    """How far the journal has got."""
    newest = 0
    async for entry in app.events():
        newest = entry.event.seq
    return newest


@QUICK
@given(options=OPTIONS, payload=PAYLOADS, type=st.one_of(st.just("t"), ANYTHING))
def test_job_is_taken_or_refused_and_then_nothing_is_written(
    stage: Stage, options: dict[str, Any], payload: Any, type: Any
) -> None:
    async def body(app: App) -> None:
        async def enqueue() -> None:
            prepared = app.prepare(type, payload, **options)
            (answer,) = await app.enqueue_many([prepared])
            if answer.error is not None:
                raise answer.error

        before = await written(app)
        if await taken(enqueue()):
            assert await written(app) > before
            async for job in app.find(limit=1):  # what was taken can be read
                assert await app.why(job.id)
        else:
            assert await written(app) == before

    stage.run(body)


async def plain(n: Any, count: int = 0) -> None:
    """Takes anything first, and a number."""


@QUICK
@given(options=OPTIONS, value=ANYTHING)
def test_call_of_a_task_is_taken_or_refused(
    stage: Stage, options: dict[str, Any], value: Any
) -> None:
    async def body(app: App) -> None:
        task = app.registered("plain") or app.task(plain)

        async def enqueue() -> None:
            await task.options(**options).enqueue(value, count=value)

        before = await written(app)
        if not await taken(enqueue(), TypeError):
            assert await written(app) == before

    stage.run(body)


@QUICK
@given(
    changes=st.dictionaries(
        st.one_of(st.sampled_from(QueueSettings.__struct_fields__), st.just("unknown")),
        ANYTHING,
        max_size=3,
    ),
    name=st.one_of(st.just("q"), ANYTHING),
)
def test_queue_settings_are_taken_or_refused(
    stage: Stage, changes: dict[str, Any], name: Any
) -> None:
    async def body(app: App) -> None:
        async def change() -> None:
            await app.queue(name).set(force=True, **changes)

        before = await app.queues()
        if await taken(change()):
            await app.enqueue_many([app.prepare("t", queue=name)])
        else:
            assert await app.queues() == before

    stage.run(body)


@QUICK
@given(
    wanted=st.dictionaries(st.sampled_from(Filter.__struct_fields__), ANYTHING, max_size=3),
    limit=st.one_of(st.none(), NUMBERS),
    cursor=st.one_of(st.none(), TEXTS),
)
def test_search_answers_or_refuses(
    stage: Stage, wanted: dict[str, Any], limit: Any, cursor: Any
) -> None:
    async def body(app: App) -> None:
        await app.enqueue_many([app.prepare("t", {"n": 1})])

        async def find() -> None:
            async for _ in app.find(limit, **wanted):
                pass

        async def page() -> None:
            await (await app.engine()).find(Filter(), cursor)

        await taken(find())
        await taken(page())

    stage.run(body)


@QUICK
@given(given=ANYTHING, number=NUMBERS)
def test_ids_tokens_reasons_and_cursors_are_taken_or_refused(
    stage: Stage, given: Any, number: Any
) -> None:
    async def body(app: App) -> None:
        (answer,) = await app.enqueue_many([app.prepare("t")])
        assert answer.ref

        async def everything() -> None:
            for attempt in (
                lambda: app.job(given).get(),
                lambda: app.detached(given).complete(),
                lambda: app.detached(f"{answer.ref.id}.{number}").complete(given),
                lambda: answer.ref.set_priority(given),
                lambda: answer.ref.cancel(given),
                lambda: app.release_key(given),
                lambda: app.key(hash=given),
                lambda: _events(app, given),
            ):
                await taken(_call(attempt))

        await everything()
        await answer.ref.get()

    stage.run(body)


async def _call(attempt: Callable[[], Any]) -> None:
    await attempt()


async def _events(app: App, after: Any) -> None:
    async for _ in app.events(after):
        break
