"""call_after: once, after the outcome is stored, whatever it is (FEATURES 8.6)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headrace import App, Cancel, JobContext, Retry, Snooze, State, Terminate
from headrace.core.change import Answer, Applied, NotApplied
from headrace.testing import ManualClock, run_until_idle, running
from tests.support import eventually

OUTCOMES: dict[str, tuple[State, str]] = {
    "completed": (State.COMPLETED, "completed"),
    "retry": (State.RETRY, "retry"),
    "retry signal": (State.RETRY, "retry"),
    "dead": (State.DEAD, "dead"),
    "terminate": (State.FAILED, "failed"),
    "snooze": (State.PENDING, "snoozed"),
    "cancel": (State.CANCELLED, "cancelled"),
    "detach": (State.ACTIVE, "detached"),
    "move": (State.PENDING, "moved"),
    "undecodable result": (State.FAILED, "failed"),
}


class TestCallAfter:
    @pytest.mark.parametrize("kind", OUTCOMES)
    @pytest.mark.parametrize("sync", [False, True])
    async def test_runs_once_after_the_outcome_is_stored(
        self, timed: App, kind: str, sync: bool
    ) -> None:
        calls: list[tuple[JobContext, Answer]] = []

        def act(ctx: JobContext) -> Any:
            ctx.call_after(lambda ctx, answer: calls.append((ctx, answer)))
            match kind:
                case "retry" | "dead":
                    raise ValueError
                case "retry signal":
                    raise Retry(after=100)
                case "terminate":
                    raise Terminate
                case "snooze":
                    raise Snooze(seconds=100)
                case "cancel":
                    raise Cancel
                case "detach":
                    return ctx.detach()
                case "move":
                    return ctx.move_to("elsewhere")
                case "undecodable result":
                    return object()
                case _:
                    return 1

        if sync:

            @timed.task(type="t")
            def handler(ctx: JobContext) -> Any:
                return act(ctx)
        else:

            @timed.task(type="t")
            async def handler(ctx: JobContext) -> Any:
                return act(ctx)

        tries = 1 if kind == "dead" else 5
        ref = await handler.options(max_tries=tries, retry=100).enqueue()
        await run_until_idle(timed, queues="default")
        (call,) = calls
        state, event = OUTCOMES[kind]
        assert call[0].id == ref.id
        assert isinstance(call[1], Applied)
        assert (call[1].job.state, call[1].job.event) == (state, event)
        assert await ref.get() == call[1].job

    async def test_runs_for_interruptions_too(self, timed: App, clock: ManualClock) -> None:
        calls: dict[str, str] = {}

        @timed.task(timeout=5, retry=100)
        async def handler(ctx: JobContext, name: str) -> None:
            ctx.call_after(lambda _, answer: calls.update({name: str(answer.job.event)}))
            await asyncio.Event().wait()

        async with running(timed, grace=0):
            cancelled = await handler.enqueue("cancelled")
            timed_out = await handler.enqueue("timeout")
            expired = await handler.options(deadline=4).enqueue("deadline")
            await handler.options(timeout=50).enqueue("shutdown")
            await eventually(lambda: _all_active(cancelled, timed_out, expired))
            await cancelled.cancel()
            await cancelled.wait(10)
            clock.advance(4)
            await expired.wait(10)
            clock.advance(1)
            await eventually(lambda: "timeout" in calls)
        assert calls == {
            "cancelled": "cancelled",
            "timeout": "retry",
            "deadline": "expired",
            "shutdown": "returned",
        }

    async def test_refused_outcome_is_told_too(self, timed: App) -> None:
        answers: list[Answer] = []

        @timed.task
        async def handler(ctx: JobContext) -> object:
            ctx.call_after(lambda _, answer: answers.append(answer))
            leaving = ctx.detach()
            await timed.detached(leaving.token).complete("quicker")
            return leaving

        ref = await handler.enqueue()
        await run_until_idle(timed)
        assert await ref.result() == "quicker"
        (answer,) = answers
        assert isinstance(answer, NotApplied)

    async def test_async_functions_are_awaited_and_the_stop_waits_for_them(
        self, timed: App
    ) -> None:
        done: list[str] = []

        async def after(ctx: JobContext, answer: Answer) -> None:
            await asyncio.sleep(0.02)
            done.append(ctx.id)

        @timed.task
        def handler(ctx: JobContext) -> None:
            ctx.call_after(after)

        ref = await handler.enqueue()
        await run_until_idle(timed)
        assert done == [ref.id]


async def _all_active(*refs) -> bool:
    return all([(await ref.get()).state is State.ACTIVE for ref in refs])
