"""What makes no sense is refused at the edge, by the name of its field (FEATURES 1.4)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest

from headrace import App, InvalidValue, KeepLast, QueueSettings, Throttle, WorkerOptions
from headrace.app.queues import apply_settings
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


@pytest.mark.parametrize(
    ("field", "wanted"),
    [
        ("limit", {"limit": -1}),
        ("limit", {"limit": "5"}),
        ("states", {"states": "tired"}),
        ("states", {"states": 5}),
        ("queue", {"queue": 5}),
        ("created_from", {"created_from": "yesterday"}),
    ],
)
async def test_search_that_makes_no_sense_is_refused(
    timed: App, field: str, wanted: dict[str, Any]
) -> None:
    with pytest.raises(InvalidValue, match=f"^{field}: "):
        await first(timed.find(**wanted))


@pytest.mark.parametrize(
    ("field", "given"),
    [
        *(("key", {"key": value}) for value in ("", (), b"x", ["/n", None])),
        *(("unique", {"unique": value}) for value in ("", (), ("/nothing",), Throttle, 5)),
        ("unique", {"unique": KeepLast(key="")}),
        ("extend", {"unique": Throttle(5, extend="yes")}),  # pyright: ignore
        ("key", {"key": lambda payload: payload["nothing"]}),
        ("unique", {"unique": lambda payload: None}),
        ("when_full", {"key": "k", "when_full": "coalesce"}),
        ("max_queued", {"max_queued": 5}),
        ("retry", {"retry": [timedelta(seconds=-1)]}),
        *(("depends_on", {"depends_on": value}) for value in ("id", 5, [5], [None], iter(["id"]))),
    ],
)
def test_keys_and_delays_that_make_no_sense_are_refused(field: str, given: dict[str, Any]) -> None:
    task = App("memory:").task(type="t")(lambda n: None)
    refused(field, lambda: task.options(**given).prepare(1))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("max_active", value) for value in (-1, "5", 1.5, True)),
        *(("max_tries", value) for value in (0, "5")),
        *(("weight", value) for value in (-1, 1.5)),
        *(("max_entries", value) for value in (0, "many")),
        *(("max_runtime", value) for value in (0, "1h")),
        *(("max_age", value) for value in (0, -1)),
        *(("rate", value) for value in (5, "fast", [1])),
        ("discard", "some"),
        *(("dead_letters", value) for value in ("no", 0)),
        *(("retention", value) for value in (5, {"tired": 1}, {"pending": 1}, {"dead": "7d"})),
    ],
)
def test_queue_settings_that_make_no_sense_are_refused(field: str, value: object) -> None:
    refused(field, lambda: apply_settings(QueueSettings(), {field: value}))


def test_setting_of_none_is_the_default() -> None:
    changed = QueueSettings(max_runtime=5, max_tries=1, weight=7, max_active=3, dead_letters=False)
    names = ("max_runtime", "max_tries", "weight", "max_active", "dead_letters", "rate")
    assert apply_settings(changed, dict.fromkeys(names)) == QueueSettings()


@pytest.mark.parametrize("segments", [(), (["tenant", 7],), (("tenant", 7),), (None,)])
async def test_key_is_looked_up_by_its_segments_one_by_one(
    timed: App, segments: tuple[Any, ...]
) -> None:
    with pytest.raises(InvalidValue, match=r"^key: "):
        await timed.key(*segments)
    with pytest.raises(InvalidValue, match=r"^key: give the segments of a key, or its hash"):
        await timed.key("tenant", 7, hash="f00")


async def test_job_of_another_service_is_refused(timed: App) -> None:
    stranger = App("memory:", service="other").prepare("t", {})
    with pytest.raises(InvalidValue, match=r"^jobs: .* is of service 'other', not of 'default'"):
        await timed.enqueue_many([stranger])
    with pytest.raises(InvalidValue, match=r"^jobs: "):
        await timed.enqueue_group([stranger])


def test_function_that_yields_or_tells_no_parameters_is_no_task() -> None:
    async def many() -> AsyncIterator[int]:
        yield 1

    def several() -> Iterator[int]:
        yield 1

    for function in (many, several, type):
        refused("task", lambda function=function: App("memory:").task(type="t")(function))


@pytest.mark.parametrize("timeout", ["5", NAN, INF, True])
async def test_wait_for_no_sensible_time_is_refused(timed: App, timeout: Any) -> None:
    ref = await timed.task(type="t")(lambda: None).enqueue()
    with pytest.raises(InvalidValue, match=r"^timeout: "):
        await ref.wait(timeout)


@pytest.mark.parametrize("timeout", [0, -5, timedelta(0), timedelta(milliseconds=1)])
async def test_job_that_has_not_ended_in_time_is_told(timed: App, timeout: Any) -> None:
    ref = await timed.task(type="t")(lambda: None).enqueue()
    with pytest.raises(TimeoutError, match="has not ended after"):
        await ref.result(timeout)
