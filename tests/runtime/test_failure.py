"""Failure: tries, dead letters, signals, policies (FEATURES 3.1 to 3.6)."""

from __future__ import annotations

import asyncio
import os
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec import Raw

from headrace import (
    App,
    Cancel,
    JobContext,
    JobFailed,
    Retry,
    Snooze,
    State,
    Terminate,
    UndecodablePayload,
)
from headrace.app import bulk
from headrace.core import actions
from headrace.core.model import MAX_MESSAGE, MAX_RESULT, MAX_TRACEBACK, Filter
from headrace.testing import ManualClock, run_until_idle
from tests.support import story


class Custom(Exception):
    pass


class TestTries:
    @pytest.mark.parametrize("sync", [False, True])
    async def test_error_is_stored_and_the_job_tried_again(
        self, timed: App, clock: ManualClock, sync: bool
    ) -> None:
        if sync:

            @timed.task(retry=30)
            def fails(ctx: JobContext) -> str:
                if ctx.number < 3:
                    raise Custom(f"try {ctx.number}")
                return "fine"
        else:

            @timed.task(retry=30)
            async def fails(ctx: JobContext) -> str:
                if ctx.number < 3:
                    raise Custom(f"try {ctx.number}")
                return "fine"

        ref = await fails.enqueue()
        await run_until_idle(timed)
        job = await ref.get()
        assert (job.state, job.tries, job.run_at) == (State.RETRY, 1, clock.now() + 30_000)
        assert job.error
        assert (job.error.type, job.error.message) == (f"{__name__}.Custom", "try 1")
        assert 'raise Custom(f"try {ctx.number}")' in job.error.traceback
        await run_until_idle(timed, drain=True)
        details = await ref.details()
        assert (details.job.state, details.job.tries, details.job.error) == (
            State.COMPLETED,
            3,
            None,
        )
        assert [error.message for error in details.errors] == ["try 1", "try 2"]

    async def test_default_is_ten_tries_then_dead_with_every_error(self, timed: App) -> None:
        @timed.task
        async def fails(ctx: JobContext) -> None:
            raise Custom(ctx.number)

        ref = await fails.enqueue()
        summary = await run_until_idle(timed, drain=True)
        assert (summary.tries, summary.dead) == (10, 1)
        details = await ref.details()
        assert details.job.state is State.DEAD
        assert [error.number for error in details.errors] == list(range(1, 11))
        with pytest.raises(JobFailed, match=r"ended dead: .*Custom: 10"):
            await ref.result()

    async def test_queue_without_dead_letters_ends_failed(self, timed: App) -> None:
        await timed.queue("default").set(dead_letters=False, force=True)

        @timed.task(max_tries=1)
        async def fails() -> None:
            raise Custom

        ref = await fails.enqueue()
        assert (await run_until_idle(timed)).failed == 1
        assert (await ref.get()).state is State.FAILED

    async def test_errors_are_bounded(self, timed: App) -> None:
        @timed.task
        async def fails() -> None:
            def deep(n: int) -> None:
                if n:
                    deep(n - 1)
                raise Custom("x" * 100_000)

            deep(200)

        ref = await fails.enqueue()
        await run_until_idle(timed)
        error = (await ref.get()).error
        assert error
        assert len(error.message) == MAX_MESSAGE
        assert len(error.traceback) < MAX_TRACEBACK + 100
        assert "characters left out" in error.traceback

    @pytest.mark.parametrize("kind", ["half", "unreadable", "group", "base", "exit", "stop"])
    async def test_odd_exceptions_are_failures_like_any_other(self, timed: App, kind: str) -> None:
        class Unreadable(Exception):
            def __str__(self) -> str:
                raise RuntimeError("no text")

        errors: dict[str, BaseException] = {
            "half": ValueError(os.fsdecode(b"file-\xff")),
            "unreadable": Unreadable(),
            "group": ExceptionGroup("several", [ValueError("a"), KeyError("b")]),
            "base": BaseException("base"),
            "exit": SystemExit(3),
            "stop": StopIteration("s"),
        }

        @timed.task(max_tries=1)
        async def fails_async() -> None:
            raise errors[kind]

        @timed.task(max_tries=1)
        def fails_sync() -> None:
            raise errors[kind]

        refs = [await fails_async.enqueue(), await fails_sync.enqueue()]
        after = await timed.task(type="fine")(lambda: "alive").enqueue()
        await run_until_idle(timed)
        for ref in refs:
            job = await ref.get()
            assert job.state is State.DEAD
            assert job.error
        assert await after.result() == "alive"

    async def test_handler_that_cancels_itself_has_failed(self, timed: App) -> None:
        @timed.task(max_tries=1)
        async def odd() -> None:
            raise asyncio.CancelledError

        ref = await odd.enqueue()
        await run_until_idle(timed)
        error = (await ref.get()).error
        assert error
        assert error.message == "the handler cancelled itself"


class TestSignals:
    async def raising(self, app: App, error: BaseException, sync: bool, **options: Any):
        if sync:

            def handler() -> None:
                raise error
        else:

            async def handler() -> None:
                raise error

        ref = await app.task(type="t", **options)(handler).enqueue()
        await run_until_idle(app)
        return ref

    @pytest.mark.parametrize("sync", [False, True])
    async def test_terminate_fails_at_once(self, timed: App, sync: bool) -> None:
        ref = await self.raising(timed, Terminate("no such address"), sync)
        job = await ref.get()
        assert (job.state, job.tries) == (State.FAILED, 1)

    async def test_listed_exceptions_and_their_children_fail_at_once(self, timed: App) -> None:
        ref = await self.raising(timed, KeyError("k"), False, terminates_on=[LookupError])
        assert (await ref.get()).state is State.FAILED

    @pytest.mark.parametrize("after", [5, 0.25, timedelta(seconds=5)])
    async def test_retry_sets_the_next_delay(
        self, timed: App, clock: ManualClock, after: Any
    ) -> None:
        ref = await self.raising(timed, Retry("busy", after=after), False, retry=1000)
        job = await ref.get()
        seconds = after.total_seconds() if isinstance(after, timedelta) else after
        assert (job.state, job.run_at) == (State.RETRY, clock.now() + seconds * 1000)
        assert job.error
        assert job.error.message == "busy"

    @pytest.mark.parametrize(
        ("policy", "seconds"), [(40, 40), (lambda number, error: timedelta(seconds=number), 1)]
    )
    async def test_retry_without_a_delay_keeps_to_the_policy(
        self, timed: App, clock: ManualClock, policy: Any, seconds: int
    ) -> None:
        ref = await self.raising(
            timed, Retry("not yet"), False, retry=policy, is_failure=lambda error: False
        )
        job = await ref.get()
        assert (job.state, job.tries) == (State.RETRY, 1)
        assert job.run_at == clock.now() + seconds * 1000

    async def test_retry_counts_and_runs_out(self, timed: App) -> None:
        ref = await self.raising(timed, Retry(after=1), False, max_tries=1)
        assert (await ref.get()).state is State.DEAD

    @pytest.mark.parametrize("sync", [False, True])
    async def test_snooze_does_not_count_the_try(
        self, timed: App, clock: ManualClock, sync: bool
    ) -> None:
        until = datetime(2030, 1, 2, tzinfo=UTC)
        ref = await self.raising(timed, Snooze(until=until), sync, max_tries=1)
        job = await ref.get()
        assert (job.state, job.tries, job.error) == (State.PENDING, 0, None)
        assert job.run_at == round(until.timestamp() * 1000)
        assert job.shown(clock.now()) == "scheduled"

    async def test_snooze_until_the_past_runs_now(self, timed: App, clock: ManualClock) -> None:
        slept: list[int] = []

        @timed.task
        async def nap() -> None:
            if not slept:
                slept.append(1)
                raise Snooze(until=clock.time - timedelta(days=1))

        await nap.enqueue()
        assert (await run_until_idle(timed)).completed == 1

    async def test_cancel_ends_the_job_cancelled(self, timed: App) -> None:
        ref = await self.raising(timed, Cancel("superseded"), False)
        assert (await ref.get()).state is State.CANCELLED
        engine = await timed.engine()
        assert (await engine.journal(0, job_id=ref.id))[-1].event.reason == "superseded"

    @pytest.mark.parametrize(
        "signal",
        [
            lambda: Retry(after=float("inf")),
            lambda: Retry(after="soon"),  # pyright: ignore
            lambda: Snooze(seconds=float("nan")),
            lambda: Snooze(until=datetime(2030, 1, 1)),
            lambda: Snooze(until="tomorrow"),  # pyright: ignore
            lambda: Snooze(),
            lambda: Snooze(until=datetime(2030, 1, 1, tzinfo=UTC), seconds=5),
        ],
    )
    async def test_signal_that_makes_no_sense_is_a_failed_try(self, timed: App, signal) -> None:
        @timed.task(max_tries=1)
        async def handler() -> None:
            raise signal()

        ref = await handler.enqueue()
        after = await timed.task(type="fine")(lambda: "alive").enqueue()
        await run_until_idle(timed, concurrency=1)
        job = await ref.get()
        assert job.state is State.DEAD
        assert job.error
        assert job.error.type.endswith("InvalidValue")
        assert await after.result() == "alive"

    async def test_error_that_is_no_failure_is_not_counted(self, timed: App) -> None:
        tries = []

        @timed.task(
            max_tries=2, retry=1, is_failure=lambda error: not isinstance(error, ConnectionError)
        )
        async def handler() -> str:
            tries.append(1)
            if len(tries) < 5:
                raise ConnectionError("away")
            return "there"

        ref = await handler.enqueue()
        summary = await run_until_idle(timed, drain=True)
        assert (summary.tries, summary.retries) == (5, 4)
        assert (await ref.get()).tries == 1
        assert await ref.result() == "there"

    async def test_broken_is_failure_and_retry_functions_are_passed_over(
        self, timed: App, clock: ManualClock
    ) -> None:
        def broken(*_: object) -> Any:
            raise RuntimeError

        @timed.task(is_failure=broken, retry=broken)
        async def one() -> None:
            raise Custom

        @timed.task(retry=lambda number, error: float("inf"))
        async def other() -> None:
            raise Custom

        @timed.task(retry=lambda number, error: 1e300)
        async def third() -> None:
            raise Custom

        for task in (one, other, third):
            ref = await task.enqueue()
            await run_until_idle(timed)
            job = await ref.get()
            assert (job.state, job.tries) == (State.RETRY, 1)
            assert clock.now() < job.run_at <= clock.now() + 2000, "the default policy"


class TestResults:
    @pytest.mark.parametrize(
        "value", [object(), {"a": object()}, float("nan"), lambda: 1, Raw(b"{")]
    )
    async def test_result_that_cannot_be_encoded_fails_that_job_only(
        self, timed: App, value: Any
    ) -> None:
        bad = timed.task(type="bad")(lambda: value)
        good = timed.task(type="good")(lambda: 1)
        refs = [await bad.enqueue(), await good.enqueue()]
        await run_until_idle(timed)
        job = await refs[0].get()
        assert (job.state, job.tries) == (State.FAILED, 1)
        assert job.error
        assert job.error.message.startswith("the result cannot be encoded as JSON")
        assert await refs[1].result() == 1

    async def test_result_over_the_limit_fails_that_job(self, timed: App) -> None:
        big = timed.task(type="big")(lambda n: "x" * n)

        @timed.task
        async def sets(ctx: JobContext) -> None:
            ctx.set_result("x" * MAX_RESULT)

        fits = await big.enqueue(MAX_RESULT - 2)
        refs = [await big.enqueue(MAX_RESULT - 1), await sets.enqueue()]
        await run_until_idle(timed)
        assert len(await fits.result()) == MAX_RESULT - 2
        for ref in refs:
            error = (await ref.get()).error
            assert error
            assert "over the limit of 1,048,576" in error.message
            assert (await ref.get()).state is State.FAILED

    @pytest.mark.parametrize("wrong", ["too large", "no JSON", "result"])
    async def test_errors_about_other_jobs_are_failed_tries(self, timed: App, wrong: str) -> None:
        other = timed.task(type="other")(lambda x: None)

        @timed.task(retry=100)
        async def handler() -> None:
            match wrong:
                case "too large":
                    await other.enqueue("x" * timed.max_payload)
                case "no JSON":
                    await other.enqueue(object())
                case _:
                    raise UndecodablePayload("another job's result")

        ref = await handler.enqueue()
        await run_until_idle(timed)
        assert (await ref.get()).state is State.RETRY

    async def test_sync_function_that_returns_an_awaitable_is_awaited(self, timed: App) -> None:
        """As a decorator makes it that does not know of async functions."""

        async def inner() -> str:
            return "inner"

        ref = await timed.task(type="t")(lambda: inner()).enqueue()
        await run_until_idle(timed)
        assert await ref.result() == "inner"


async def test_dead_jobs_are_replayed_and_dismissed_by_filter(timed: App) -> None:
    broken = [True]

    @timed.task(max_tries=1)
    async def fragile(n: int) -> int:
        if broken[0]:
            raise Custom
        return n

    refs = [await fragile.enqueue(n) for n in range(3)]
    other = await fragile.options(queue="other").enqueue(3)
    await run_until_idle(timed)
    broken[0] = False
    dead = Filter(service="default", queue="default", states=frozenset({State.DEAD}))
    assert await bulk.act(timed, dead, actions.replay) == bulk.Tally(3, 0)
    await run_until_idle(timed)
    assert [await ref.result() for ref in refs] == [0, 1, 2]
    rest = Filter(service="default", states=frozenset({State.DEAD}))
    assert await bulk.act(timed, rest, actions.dismiss) == bulk.Tally(1, 0)
    assert (await other.get()).state is State.DISMISSED
    assert "retried" in map(str, await story(timed, refs[0].id))
