"""Trace context, request id, metadata and tags (FEATURES 1.10)."""

from __future__ import annotations

import re

import pytest

from headrace import App, JobContext, State, current_job
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
