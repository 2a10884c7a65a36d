"""Transition and detached jobs (FEATURES 7.6, 7.7)."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any, cast

import pytest

from headrace import (
    App,
    Detached,
    InvalidValue,
    JobContext,
    JobNotFound,
    KeyBusy,
    PayloadTooLarge,
    Refused,
    State,
)
from headrace.core.model import MAX_RESULT
from headrace.testing import ManualClock, run_until_idle, running
from tests.support import story


class TestTransition:
    @pytest.mark.parametrize("sync", [False, True])
    async def test_job_goes_on_in_another_queue_as_another_type(
        self, timed: App, clock: ManualClock, sync: bool
    ) -> None:
        def first(ctx: JobContext, n: int) -> object:
            if ctx.number == 1:
                raise ValueError("once")
            ctx.set_result({"so far": n})
            return ctx.move_to("deliver", "second", delay=60)

        async def first_async(ctx: JobContext, n: int) -> object:
            return first(ctx, n)

        task = timed.task(type="first", retry=1)(first if sync else first_async)

        @timed.task
        async def second(ctx: JobContext, n: int) -> object:
            assert ctx.number == 1, "tries start again"
            return [n, ctx.result]

        ref = await task.enqueue(7)
        await run_until_idle(timed)
        clock.advance(1)
        await run_until_idle(timed)
        job = await ref.get()
        assert (job.state, job.queue, job.type) == (State.PENDING, "deliver", "second")
        assert (job.tries, job.error, job.run_at) == (0, None, clock.now() + 60_000)
        await run_until_idle(timed, drain=True)
        assert await ref.result() == [7, {"so far": 7}]
        assert "moved" in map(str, await story(timed, ref.id))

    async def test_any_worker_of_the_queue_takes_it_on(self, timed: App) -> None:
        @timed.task
        async def first(ctx: JobContext) -> object:
            return ctx.move_to("b") if ctx.job.queue == "default" else "arrived"

        ref = await first.enqueue()
        await run_until_idle(timed, queues="default")
        assert (await run_until_idle(timed, queues="c")).tries == 0
        assert (await run_until_idle(timed, queues="b")).tries == 1
        assert await ref.result() == "arrived"

    async def test_result_survives_without_being_set_again(self, timed: App) -> None:
        @timed.task
        async def a(ctx: JobContext) -> object:
            ctx.set_result(1)
            return ctx.move_to("default", "b")

        @timed.task
        async def b(ctx: JobContext) -> object:
            return ctx.move_to("default", "c")

        @timed.task
        async def c(ctx: JobContext) -> object:
            return ctx.result

        ref = await a.enqueue()
        await run_until_idle(timed)
        assert await ref.result() == 1

    async def test_dedup_key_and_slot_go_with_the_job(self, timed: App) -> None:
        @timed.task(key="k", max_queued=0, unique="u")
        async def first(ctx: JobContext) -> object:
            return ctx.move_to("later", delay=60)

        await first.enqueue()
        await run_until_idle(timed, queues="default")
        with pytest.raises(KeyBusy):
            await first.options(unique="other").enqueue()
        answer = await first.options(max_queued=5).submit()
        assert answer.reason == "dedup-key"


@pytest.fixture
def outside(timed: App):
    tokens: list[str] = []

    @timed.task(retry=30, max_tries=2)
    async def outside(ctx: JobContext) -> Detached:
        leaving = ctx.detach(timeout=60)
        tokens.append(leaving.token)
        return leaving

    outside.tokens = tokens  # pyright: ignore
    return outside


class TestDetached:
    async def start(self, timed: App, outside):
        ref = await outside.enqueue()
        await run_until_idle(timed)
        return ref, timed.detached(outside.tokens[-1])

    async def test_job_stays_active_until_it_is_completed(self, timed: App, outside) -> None:
        ref, detached = await self.start(timed, outside)
        job = await ref.get()
        assert (job.state, job.shown(timed.clock.now())) == (State.ACTIVE, "detached")
        done = await detached.complete({"a": 1})
        assert done.state is State.COMPLETED
        assert await ref.result() == {"a": 1}
        assert detached.id == ref.id

    async def test_completing_with_nothing_gives_none(self, timed: App, outside) -> None:
        ref, detached = await self.start(timed, outside)
        await detached.complete()
        assert await ref.result() is None

    async def test_first_call_wins_and_later_ones_are_refused(self, timed: App, outside) -> None:
        ref, detached = await self.start(timed, outside)
        await detached.fail("no", retry=False)
        for late in (
            detached.complete(1),
            detached.fail("x"),
            detached.move_to("q"),
            detached.renew(60),
        ):
            with pytest.raises(Refused, match=f"detached job {ref.id} was settled already"):
                await late
        assert (await ref.get()).state is State.FAILED
        assert str((await story(timed, ref.id))[-1]) == "stale_completion_ignored"

    async def test_failure_is_a_failed_try(self, timed: App, outside, clock: ManualClock) -> None:
        ref, detached = await self.start(timed, outside)
        job = await detached.fail("gateway down", type="Gateway")
        assert (job.state, job.tries, job.run_at) == (State.RETRY, 1, clock.now() + 30_000)
        assert job.error
        assert (job.error.type, job.error.message) == ("Gateway", "gateway down")
        clock.advance(30)
        await run_until_idle(timed)
        with pytest.raises(Refused):
            await detached.complete("from the first try")
        await timed.detached(outside.tokens[-1]).complete("second")
        assert await ref.result() == "second"

    async def test_it_can_be_moved_on(self, timed: App, outside) -> None:
        timed.task(type="finish")(lambda: "finished")
        ref, detached = await self.start(timed, outside)
        await detached.move_to("q", "finish", delay=10)
        await run_until_idle(timed, drain=True)
        assert await ref.result() == "finished"

    async def test_time_limit_is_a_failed_try_unless_renewed(
        self, timed: App, outside, clock: ManualClock
    ) -> None:
        ref, detached = await self.start(timed, outside)
        clock.advance(59)
        await detached.renew(60)
        clock.advance(59)
        await run_until_idle(timed)
        assert (await ref.get()).state is State.ACTIVE
        clock.advance(1)
        await run_until_idle(timed)
        job = await ref.get()
        assert job.error
        assert (job.state, job.tries, job.error.type) == (State.RETRY, 1, "DetachedTimeout")

    async def test_detached_job_is_cancelled_at_once(self, timed: App, outside) -> None:
        ref, detached = await self.start(timed, outside)
        assert await ref.cancel()
        assert (await ref.get()).state is State.CANCELLED
        with pytest.raises(Refused):
            await detached.complete()

    async def test_quick_completion_before_the_handler_has_returned_wins(self, timed: App) -> None:
        @timed.task
        async def eager(ctx: JobContext) -> Detached:
            leaving = ctx.detach()
            await timed.detached(leaving.token).complete("quick")
            return leaving

        ref = await eager.enqueue()
        await run_until_idle(timed)
        assert await ref.result() == "quick"

    async def test_bad_tokens_are_refused(self, timed: App) -> None:
        for token in ("", "x", "a.b", "a b.1", ".", "a.-1", "a.²"):
            with pytest.raises(InvalidValue, match=r"^token: "):
                timed.detached(token)
        with pytest.raises(JobNotFound):
            await timed.detached("nobody.1").complete()

    async def test_words_and_times_that_make_no_sense_are_refused(
        self, timed: App, outside
    ) -> None:
        ref, detached = await self.start(timed, outside)
        wrong: list[tuple[str, Any]] = [
            ("message", lambda: detached.fail(cast(Any, 3))),
            ("type", lambda: detached.fail("no", type=cast(Any, ValueError))),
            ("timeout", lambda: detached.renew(0)),
            ("timeout", lambda: detached.renew(-1)),
            ("timeout", lambda: detached.renew(float("nan"))),
        ]
        for field, call in wrong:
            with pytest.raises(InvalidValue, match=f"^{field}: "):
                await call()
        assert (await ref.get()).state is State.ACTIVE
        job = await detached.fail("half \ud800 character", retry=False)
        assert job.error
        assert job.error.message == "half \\ud800 character"

    async def test_result_over_the_limit_is_refused(self, timed: App, outside) -> None:
        ref, detached = await self.start(timed, outside)
        with pytest.raises(PayloadTooLarge):
            await detached.complete("x" * MAX_RESULT)
        assert (await ref.get()).state is State.ACTIVE

    async def test_slot_of_the_key_is_kept_while_detached(self, timed: App) -> None:
        tokens = []

        @timed.task(key="k")
        async def keyed(ctx: JobContext) -> Detached:
            leaving = ctx.detach()
            tokens.append(leaving.token)
            return leaving

        first, second = await keyed.enqueue(), await keyed.enqueue()
        await run_until_idle(timed)
        assert (await second.get()).state is State.PENDING
        await timed.detached(tokens[0]).complete()
        await run_until_idle(timed)
        assert (await first.get()).state is State.COMPLETED
        assert (await second.get()).state is State.ACTIVE

    async def test_worker_is_free_while_the_job_is_detached(self, timed: App, outside) -> None:
        for _ in range(5):
            await outside.enqueue()
        async with running(timed, concurrency=1) as worker:
            await worker.until_idle()
            assert len(outside.tokens) == 5
        await asyncio.gather(
            *(timed.detached(token).complete(n) for n, token in enumerate(outside.tokens))
        )
        assert [job.state async for job in timed.find()] == [State.COMPLETED] * 5

    async def test_another_process_completes_it_after_the_worker_is_gone(
        self, shared_url: str
    ) -> None:
        tokens: list[str] = []
        async with App(shared_url) as app:

            @app.task
            async def outside(ctx: JobContext) -> Detached:
                leaving = ctx.detach()
                tokens.append(leaving.token)
                return leaving

            ref = await outside.enqueue()
            await run_until_idle(app)
        code = (
            "import headrace, asyncio\n"
            "async def main():\n"
            f"    async with headrace.App({shared_url!r}) as app:\n"
            f"        await app.detached({tokens[0]!r}).complete('from afar')\n"
            "asyncio.run(main())"
        )
        answer = await asyncio.to_thread(
            subprocess.run, [sys.executable, "-c", code], capture_output=True, timeout=30
        )
        assert answer.returncode == 0, answer.stderr.decode()
        async with App(shared_url) as app:
            assert await app.job(ref.id).result() == "from afar"
