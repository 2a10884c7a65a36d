"""Trace context, request id, metadata and tags (FEATURES 1.10)."""

from __future__ import annotations

import asyncio
import re

import pytest

from headrace import App, InvalidValue, JobContext, State, current_job
from headrace.core.model import Context
from headrace.testing import jobs, run_until_idle
from tests.support import story

TRACEPARENT = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-01")


async def test_every_job_has_a_fresh_trace_and_request_id(timed: App) -> None:
    task = timed.task(type="t")(lambda: None)
    contexts = [(await (await task.enqueue()).get()).spec.context for _ in range(2)]
    for context in contexts:
        found = TRACEPARENT.fullmatch(context.traceparent)
        assert found
        assert context.trace_id == found[1]
        assert context.request_id
    assert contexts[0].trace_id != contexts[1].trace_id
    assert contexts[0].request_id != contexts[1].request_id


@pytest.mark.parametrize("sync", [False, True])
async def test_job_enqueued_by_a_handler_inherits_the_trace(timed: App, sync: bool) -> None:
    child = timed.task(type="child")(lambda: None)

    if sync:

        @timed.task
        def parent() -> None:
            assert current_job().job.type == "parent"
            child.blocking.enqueue()
    else:

        @timed.task
        async def parent() -> None:
            await child.enqueue()

    ref = await parent.enqueue()
    await run_until_idle(timed)
    (made,) = await jobs(timed, "child")
    mine, inherited = (await ref.get()).spec.context, made.spec.context
    assert inherited.trace_id == mine.trace_id
    assert inherited.request_id == mine.request_id
    assert inherited.traceparent != mine.traceparent


GIVEN = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"


@pytest.mark.parametrize("how", ["options", "prepare", "blocking"])
async def test_caller_hands_its_trace_and_request_id_over(timed: App, how: str) -> None:
    task = timed.task(type="t")(lambda: None)
    given = task.options(request_id="req-7", traceparent=GIVEN, tracestate="a=1,b=2")
    match how:
        case "options":
            ref = await given.enqueue()
        case "prepare":
            prepared = timed.prepare(
                "t", request_id="req-7", traceparent=GIVEN, tracestate="a=1,b=2"
            )
            (submission,) = await timed.enqueue_many([prepared])
            assert submission.ref
            ref = submission.ref
        case _:
            blocking = await asyncio.to_thread(given.blocking.enqueue)
            ref = timed.job(blocking.id)
    context = (await ref.get()).spec.context
    assert context == Context("req-7", GIVEN, "a=1,b=2")
    assert context.trace_id == "0af7651916cd43dd8448eb211c80319c"


async def test_what_a_handler_gives_wins_over_what_its_jobs_inherit(timed: App) -> None:
    child = timed.task(type="child")(lambda: None)

    @timed.task
    async def parent() -> None:
        await child.options(traceparent=GIVEN).enqueue()
        await child.options(request_id="own").enqueue()

    ref = await parent.options(request_id="outer", tracestate="x=1", traceparent=GIVEN).enqueue()
    await run_until_idle(timed)
    mine = (await ref.get()).spec.context
    traced, named = (made.spec.context for made in await jobs(timed, "child"))
    assert traced == Context("outer", GIVEN)
    assert (named.request_id, named.trace_id, named.tracestate) == ("own", mine.trace_id, "x=1")
    assert named.traceparent != GIVEN
    assert named.traceparent.endswith("-00"), "whether it is sampled is inherited too"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("traceparent", GIVEN.upper()),
        ("traceparent", f"ff{GIVEN[2:]}"),
        ("traceparent", f"00-{'0' * 32}-b7ad6b7169203331-01"),
        ("traceparent", f"{GIVEN}\n"),
        ("traceparent", 7),
        ("tracestate", "a=1"),
        ("tracestate", ""),
        ("request_id", "two words"),
        ("request_id", ""),
        ("request_id", "x" * 257),
    ],
)
async def test_context_that_makes_no_sense_is_refused(
    timed: App, field: str, value: object
) -> None:
    with pytest.raises(InvalidValue, match=f"^{field}: "):
        timed.prepare("t", **{field: value})  # pyright: ignore[reportArgumentType]


async def test_context_is_stable_and_on_every_event(timed: App) -> None:
    @timed.task(retry=1)
    async def flaky(ctx: JobContext) -> None:
        ctx.progress("x")
        ctx.log("info", "y")
        if ctx.number == 1:
            raise ValueError

    ref = await flaky.enqueue()
    before = (await ref.get()).spec.context
    await run_until_idle(timed, drain=True)
    await ref.retry()
    await run_until_idle(timed)
    engine = await timed.engine()
    events = [entry.event for entry in await engine.journal(0, job_id=ref.id)]
    assert len(events) > 10
    assert {event.context for event in events} == {before}
    assert (await ref.get()).spec.context == before


async def test_metadata_and_tags_stay_with_the_job(timed: App) -> None:
    task = timed.task(type="t")(lambda: None)
    ref = await task.options(metadata={"user": 7, "deep": {"a": []}}, tags=["x", "y"]).enqueue()
    await task.enqueue()
    await run_until_idle(timed)
    job = await ref.get()
    assert job.state is State.COMPLETED
    assert job.spec.metadata == {"user": 7, "deep": {"a": []}}
    assert [found.id for found in await jobs(timed, tag="y")] == [ref.id]
    assert len(await story(timed, ref.id)) == 3
