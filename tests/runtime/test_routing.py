"""Routing: exact type, longest prefix, catch-all (FEATURES 1.11)."""

from __future__ import annotations

import pytest

from headrace import App, JobContext, State
from headrace.testing import ManualClock, run_until_idle


@pytest.mark.parametrize(
    ("type", "handler"),
    [
        ("email", "email"),
        ("email:new", "email:new"),
        ("email:new:fast", "email:new"),
        ("email:old", "email"),
        ("email:newer", "email"),
        ("emails", ""),
        ("other", ""),
        (":email", ""),
        ("email:", "email"),
    ],
)
async def test_job_goes_to_the_closest_handler(timed: App, type: str, handler: str) -> None:
    for name in ("email", "email:new", ""):

        def run(ctx: JobContext, *, _name: str = name, **payload: object) -> list[object]:
            return [_name, ctx.job.type, payload]

        timed.task(type=name)(run)
    (answer,) = await timed.enqueue_many([timed.prepare(type, {"a": 1})])
    await run_until_idle(timed)
    assert answer.ref
    assert await answer.ref.result() == [handler, type, {"a": 1}]


async def test_unrouted_job_fails_its_try_and_is_tried_again(
    timed: App, clock: ManualClock
) -> None:
    async def never(ctx: JobContext, proceed) -> object:
        raise AssertionError("middleware is not around unrouted jobs")

    timed.use(never)
    (answer,) = await timed.enqueue_many([timed.prepare("email:new", retry=30)])
    await run_until_idle(timed)
    assert answer.ref
    job = await answer.ref.get()
    assert (job.state, job.tries, job.run_at) == (State.RETRY, 1, clock.now() + 30_000)
    assert job.error
    assert job.error.type == "headrace.UnknownTask"
    assert job.error.message == (
        "'email:new' is not registered in this worker; import its module, or add a catch-all with"
        ' type ""'
    )


async def test_worker_that_knows_the_type_later_runs_it(timed: App) -> None:
    (answer,) = await timed.enqueue_many([timed.prepare("late", retry=30)])
    await run_until_idle(timed)
    timed.task(type="late")(lambda: "found")
    await run_until_idle(timed, drain=True)
    assert answer.ref
    assert await answer.ref.result() == "found"


async def test_handler_registered_while_working_takes_over_from_the_catch_all(timed: App) -> None:
    timed.task(type="")(lambda **payload: "anyone")
    first = (await timed.enqueue_many([timed.prepare("a")]))[0].ref
    await run_until_idle(timed)
    timed.task(type="a")(lambda: "me")
    second = (await timed.enqueue_many([timed.prepare("a")]))[0].ref
    await run_until_idle(timed)
    assert first
    assert second
    assert [await first.result(), await second.result()] == ["anyone", "me"]
