"""What makes no sense is refused at the edge, by the name of its field (FEATURES 1.4)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from datetime import datetime, timedelta
from typing import Any

import pytest

from headrace import App, InvalidValue, WorkerOptions
from headrace.app.workers import worker_options
from headrace.testing import ManualClock, running

NAN, INF = float("nan"), float("inf")


def refused(field: str, call: Callable[[], object]) -> None:
    with pytest.raises(InvalidValue) as caught:
        call()
    assert caught.value.field == field
    assert str(caught.value).startswith(f"{field}: ")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("concurrency", value) for value in (0, -1, 2.5, True, "5", None, 10**10)),
        *(("threads", value) for value in (0, True, "5")),
        *(("children", value) for value in (0, True, "5")),
        *(("grace", value) for value in (-1, NAN, INF, "5")),
        *(("lease", value) for value in (0, NAN, "5", 10**10)),
        *(("strict", value) for value in (1, "yes", None)),
        *(("queues", value) for value in (5, None, b"q", [], [1], ["q", "q"], ["a b"], {})),
        *(("queues", {"q": weight}) for weight in (-1, 1.5, "2", True)),
        ("colour", 1),
    ],
)
def test_worker_options_that_make_no_sense_are_refused(field: str, value: object) -> None:
    refused(field, lambda: worker_options({field: value}))  # pyright: ignore


def test_bare_worker_options_are_checked_too() -> None:
    refused("concurrency", lambda: WorkerOptions(concurrency=0))
    refused("queues", lambda: WorkerOptions(queues=[]))


async def test_running_worker_takes_only_what_makes_sense(app: App) -> None:
    async with running(app) as worker:
        for wrong in (0, -1, True, "5"):
            refused("concurrency", lambda wrong=wrong: worker.set_concurrency(wrong))  # pyright: ignore
        for wrong in (5, [], {"q": 1.5}):
            with pytest.raises(InvalidValue):
                worker.set_queues(wrong)  # pyright: ignore
        refused("strict", lambda: worker.set_queues("q", strict=1))  # pyright: ignore
        assert worker.queues == ["default"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("terminates_on", value) for value in (ValueError, "x", ["x"], [ValueError()], [int])),
        *(("is_failure", value) for value in (1, "x")),
        *(("cpu", value) for value in (1, "no", None)),
        *(("load_dependencies", value) for value in (1, None)),
        *(("middleware", value) for value in (5, print, "x", [1])),
        *(("type", value) for value in (5, 0, None, "a b")),
    ],
)
def test_task_options_that_make_no_sense_are_refused(field: str, value: object) -> None:
    app = App("memory:")

    async def work() -> None: ...

    refused(field, lambda: app.task(**{field: value})(work))  # pyright: ignore
    assert app.types == []


def test_what_is_no_function_is_neither_task_nor_hook() -> None:
    app: Any = App("memory:")
    refused("task", lambda: app.task(5))
    refused("on_start", lambda: app.on_start(5))
    refused("on_stop", lambda: app.on_stop("x"))


@pytest.mark.parametrize(
    ("field", "call"),
    [
        ("url", lambda: App(123)),  # pyright: ignore
        ("url", lambda: App(b"jobs.db")),  # pyright: ignore
        ("url", lambda: App("memory:?synchronous=full")),
        ("url", lambda: App("memory://named")),
        ("url", lambda: App("nats+embedded:x?sync=banana")),
        ("busy_timeout", lambda: App("sqlite:jobs.db?busy_timeout=nan")),
        ("busy_timeout", lambda: App("sqlite:jobs.db?busy_timeout=-5")),
        ("busy_timeout", lambda: App("sqlite:jobs.db?busy_timeout=inf")),
        ("busy_timeout", lambda: App("sqlite:jobs.db?busy_timeout=soon")),
        *(("max_payload", lambda v=v: App("memory:", max_payload=v)) for v in (0, -1, 1.5, True)),
    ],
)
def test_app_that_makes_no_sense_is_refused(field: str, call: Callable[[], App]) -> None:
    refused(field, call)


async def first(found: AsyncIterator[Any]) -> Any:
    return await anext(found, None)


async def test_events_of_no_kind_are_refused(timed: App) -> None:
    looked: list[tuple[str, object]] = [
        ("event", "nonsense"),
        ("event", 5),
        ("queue", "a b"),
        ("type", 5),
        ("job_id", None),
    ]
    for field, value in looked:
        with pytest.raises(InvalidValue, match=f"^{field}: "):
            await first(timed.events(**{field: value}))  # pyright: ignore


async def test_jobs_are_found_by_datetimes(timed: App, clock: ManualClock) -> None:
    task = timed.task(type="t")(lambda: None)
    old = await task.enqueue()
    clock.advance(60)
    new = await task.enqueue()
    between = clock.time - timedelta(seconds=30)
    assert [job.id async for job in timed.find(created_from=between)] == [new.id]
    assert [job.id async for job in timed.find(created_until=between)] == [old.id]
    with pytest.raises(InvalidValue, match=r"^created_from: .* has no time zone"):
        await first(timed.find(created_from=datetime(2030, 1, 1)))
