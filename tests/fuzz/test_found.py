"""What fuzzing has found: each was an untyped error, or something worse, before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from headrace import (
    App,
    InvalidValue,
    KeepLast,
    QueueSettings,
    Throttle,
    UndecodablePayload,
)
from headrace.core import queue
from headrace.core.codec import decode_any
from headrace.core.model import Filter
from headrace.core.retry import Exponential

INFINITE, NAN = float("inf"), float("nan")


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"retry": INFINITE}, "retry"),
        ({"retry": NAN}, "retry"),
        ({"retry": 1e300}, "retry"),  # would have overflowed when the job failed, try after try
        ({"retry": [1, 1e300]}, "retry"),
        ({"max_tries": 10**30}, "max_tries"),
        ({"max_active": 2**63}, "max_active"),
        ({"key": "k", "max_queued": 2**63}, "max_queued"),
        ({"key": ("k", NAN)}, "key"),
        ({"key": "\ud800"}, "key"),
        ({"key": b"bytes"}, "key"),
        ({"unique": "\ud800"}, "key"),
        ({"unique": Throttle(1, key=3)}, "unique"),
        ({"unique": KeepLast(key=[None])}, "unique"),
        ({"depends_on": None}, "depends_on"),
        ({"depends_on": 3}, "depends_on"),
        ({"depends_on": [None]}, "depends_on"),
    ],
)
async def test_option_that_no_store_could_hold_is_refused_by_name(
    app: App, options: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidValue) as refused:
        app.prepare("t", **options)
    assert refused.value.field == field


def test_policy_without_bounds_is_refused(app: App) -> None:
    with pytest.raises(InvalidValue, match="retry"):
        app.prepare("t", retry=Exponential(cap=10**30))


@pytest.mark.parametrize(
    ("attempt", "field"),
    [
        (lambda app, ref: ref.cancel(object()), "reason"),
        (lambda app, ref: app.release_key("k", reason=3), "reason"),
        (lambda app, ref: app.key(object()), "key"),
        (lambda app, ref: app.key(hash=3), "hash"),
        (lambda app, ref: app.detached(3).complete(), "token"),
        (lambda app, ref: app.detached("a." + "9" * 5000).complete(), "token"),
        (lambda app, ref: app.queue("q").set(paused=object()), "paused"),
        (lambda app, ref: app.queue("q").set(max_active=NAN), "max_active"),
        (lambda app, ref: _all(app.find(states=None)), "states"),
        (lambda app, ref: _all(app.find(queue=3)), "queue"),
        (lambda app, ref: _all(app.find(text="\ud800")), "filter"),
        (lambda app, ref: _all(app.find(limit=1.5)), "limit"),
        (lambda app, ref: _all(app.events(2**63)), "after"),
        (lambda app, ref: _page(app, "9" * 5000), "cursor"),
    ],
)
async def test_value_that_makes_no_sense_is_refused_by_name(
    app: App, attempt: Callable[[App, Any], Any], field: str
) -> None:
    (answer,) = await app.enqueue_many([app.prepare("t")])
    with pytest.raises(InvalidValue) as refused:
        await attempt(app, answer.ref)
    assert refused.value.field == field


async def _all(found: Any) -> None:
    async for _ in found:
        pass


async def _page(app: App, cursor: str) -> None:
    await (await app.engine()).find(Filter(), cursor)


async def test_reason_with_half_a_character_is_kept_in_a_form_that_can_be(app: App) -> None:
    (answer,) = await app.enqueue_many([app.prepare("t")])
    assert answer.ref
    assert await answer.ref.cancel("half \ud800")
    events = [entry.event async for entry in app.events(job_id=answer.ref.id)]
    assert events[-1].reason == "half \\ud800"


def test_payload_that_is_nested_too_deeply_is_refused() -> None:
    with pytest.raises(UndecodablePayload, match="nested too deeply"):
        decode_any(b"[" * 100_000)


@pytest.mark.parametrize("body", [b'{"paused":null}', b"\xff", b"[", b"[" * 100_000])
def test_document_that_cannot_be_read_is_refused_by_name(body: bytes) -> None:
    with pytest.raises(InvalidValue, match="queue settings"):
        queue.decode(body)


def test_document_that_can_be_read_is() -> None:
    assert queue.decode(b'{"max_active":3}') == QueueSettings(max_active=3)
