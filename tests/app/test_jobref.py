"""JobRef: get, wait, result, watch, cancel, retry and the rest (FEATURES 1.7, 3.5)."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import pytest

from headrace import (
    App,
    InvalidValue,
    JobContext,
    JobFailed,
    JobNotFound,
    JobRef,
    Refused,
    State,
    Terminate,
)
from headrace.core.retention import SEEN
from headrace.testing import ManualClock, run_until_idle, running
from headrace.upkeep.retention import prune
from tests.support import eventually, story


@pytest.fixture
def work(timed: App):
    @timed.task(retry=5, max_tries=2)
    async def work(n: int = 0) -> int:
        if n < 0:
            raise ValueError(f"bad {n}")
        return n

    return work


class TestResult:
    async def test_result_is_what_the_handler_returned(self, timed: App, work) -> None:
        ref = await work.enqueue(4)
        await run_until_idle(timed)
        assert await ref.result() == 4
        assert (await ref.get()).state is State.COMPLETED

    async def test_result_waits_and_is_woken_at_once(self, timed: App, work) -> None:
        ref = await work.enqueue(4)
        waiting = asyncio.create_task(ref.result())
        await asyncio.sleep(0)
        await run_until_idle(timed)
        assert await asyncio.wait_for(waiting, 2) == 4

    async def test_failed_job_raises_with_the_remote_error(self, timed: App) -> None:
        @timed.task
        async def fails() -> None:
            raise Terminate("the address does not exist")

        ref = await fails.enqueue()
        await run_until_idle(timed)
        with pytest.raises(JobFailed, match=r"ended failed: .*Terminate: the address") as caught:
            await ref.result()
        error = caught.value
        assert (error.job_id, error.state) == (ref.id, "failed")
        assert error.type == "headrace.Terminate"
        assert error.message == "the address does not exist"
        assert error.traceback
        assert 'raise Terminate("the address does not exist")' in error.traceback

    async def test_job_that_ended_without_an_error_says_how(self, timed: App, work) -> None:
        ref = await work.enqueue()
        await ref.cancel("not needed")
        with pytest.raises(JobFailed, match=f"job {ref.id} ended cancelled: not needed$") as caught:
            await ref.result()
        assert caught.value.type is None
        assert caught.value.reason == "not needed"

    async def test_waiting_has_a_limit(self, work) -> None:
        ref = await work.enqueue()
        for wait in (ref.wait, ref.result):
            with pytest.raises(TimeoutError, match=rf"job {ref.id} has not ended after 0.05 s"):
                await wait(0.05)

    async def test_unknown_job_is_not_found(self, timed: App) -> None:
        ref = timed.job("nobody")
        for call in (ref.get, ref.wait, ref.result, ref.cancel, ref.retry, ref.delete, ref.why):
            with pytest.raises(JobNotFound, match="job 'nobody' does not exist"):
                await call()
        with pytest.raises(InvalidValue, match=r"^id: "):
            timed.job("not a name")

    async def test_ref_is_rebuilt_from_its_id_alone(self, timed: App, work) -> None:
        ref = await work.enqueue(4)
        again = timed.job(ref.id)
        await run_until_idle(timed)
        assert await again.result() == 4
        assert again == ref
        assert hash(again) == hash(ref)
        assert repr(ref) == f"JobRef({ref.id!r})"
        assert ref != "x"

    async def test_ref_works_in_another_process(self, shared_url: str) -> None:
        async with App(shared_url) as app:
            ref = await app.task(type="t")(lambda: {"a": [1]}).enqueue()
            await run_until_idle(app)
            code = (
                "import asyncio, headrace\n"
                "async def main():\n"
                f"    async with headrace.App({shared_url!r}) as app:\n"
                f"        print(await app.job({ref.id!r}).result(5))\n"
                "asyncio.run(main())"
            )
            answer = await asyncio.to_thread(
                subprocess.run, [sys.executable, "-c", code], capture_output=True, timeout=30
            )
        assert answer.stdout == b"{'a': [1]}\n", answer.stderr.decode()

    async def test_result_of_a_moved_job_is_the_last_handler_s(self, timed: App) -> None:
        @timed.task
        async def first(ctx: JobContext) -> int:
            return ctx.move_to("default", "second")  # pyright: ignore[reportReturnType]

        @timed.task
        async def second() -> str:
            return "text"

        ref = await first.enqueue()
        await run_until_idle(timed)
        assert await ref.result() == "text"  # pyright: ignore[reportUnnecessaryComparison]


class TestWatch:
    async def test_state_comes_first_then_each_change_to_the_end(self, app: App) -> None:
        go = asyncio.Event()

        @app.task(retry=0)
        async def work(ctx: JobContext) -> str:
            await go.wait()
            ctx.progress("half", current=1, total=2)
            if ctx.number == 1:
                raise ValueError("once")
            return "done"

        ref = await work.enqueue()
        seen: list[tuple[str, Any]] = []

        async def watch() -> None:
            async for snapshot in ref.watch():
                seen.append((str(snapshot.event), snapshot.progress and snapshot.progress.step))
                if snapshot.event == "retry":
                    assert snapshot.error == "ValueError: once"
                assert snapshot.final is (snapshot.event == "completed")

        watching = asyncio.create_task(watch())
        await eventually(lambda: seen)
        async with running(app):
            go.set()
            await asyncio.wait_for(watching, 10)
        assert seen == [
            ("created", None),
            ("started", None),
            ("progress", "half"),
            ("retry", None),
            ("started", None),
            ("progress", "half"),
            ("completed", None),
        ]

    async def test_ended_job_gives_its_state_and_ends(self, timed: App, work) -> None:
        ref = await work.enqueue()
        await run_until_idle(timed)
        assert [snapshot.state async for snapshot in ref.watch()] == [State.COMPLETED]

    async def test_watcher_who_comes_late_misses_nothing_from_then_on(self, app: App) -> None:
        @app.task
        async def chatty(ctx: JobContext) -> None:
            for n in range(1500):
                ctx.progress(f"s{n}")
            await watched.wait()

        ref, watched, steps = await chatty.enqueue(), asyncio.Event(), []

        async def watch() -> None:
            async for snapshot in ref.watch():
                steps.append(snapshot.version)
                watched.set()

        watching = asyncio.create_task(watch())
        async with running(app):
            await asyncio.wait_for(watching, 10)
        assert steps == sorted(set(steps))
        assert len(steps) == 1503


class TestActions:
    async def test_waiting_job_is_cancelled_at_once(self, timed: App, work) -> None:
        ref = await work.enqueue()
        assert await ref.cancel("why not") is True
        assert await ref.cancel() is False
        assert (await run_until_idle(timed)).tries == 0
        assert [str(event) for event in await story(timed, ref.id)] == ["created", "cancelled"]
        engine = await timed.engine()
        assert (await engine.journal(0, job_id=ref.id))[-1].event.reason == "why not"

    async def test_retry_starts_from_scratch(self, timed: App, work, clock: ManualClock) -> None:
        ref = await work.enqueue(-1)
        await run_until_idle(timed, drain=True)
        dead = await ref.details()
        assert (dead.job.state, dead.job.tries, len(dead.errors)) == (State.DEAD, 2, 2)
        back = await ref.retry()
        assert (back.state, back.tries, back.error) == (State.PENDING, 0, None)
        assert (await ref.details()).errors == ()
        with pytest.raises(Refused, match="cannot be retried: the job is pending"):
            await ref.retry()
        await run_until_idle(timed, drain=True)
        assert (await ref.get()).state is State.DEAD

    async def test_dead_jobs_are_replayed_or_dismissed(self, timed: App, work) -> None:
        refs = [await work.options(max_tries=1).enqueue(-n) for n in (1, 2)]
        fine = await work.enqueue(1)
        await run_until_idle(timed)
        assert (await refs[0].replay()).state is State.PENDING
        assert (await refs[1].dismiss("known")).state is State.DISMISSED
        with pytest.raises(Refused, match="cannot be retried: the job is dismissed"):
            await refs[1].retry()
        for action in (fine.replay, fine.dismiss):
            with pytest.raises(Refused, match="the job is completed"):
                await action()

    async def test_delete_takes_waiting_and_ended_jobs_but_not_running_ones(self, app: App) -> None:
        entered, leave = asyncio.Event(), asyncio.Event()

        @app.task
        async def hold() -> None:
            entered.set()
            await leave.wait()

        waiting = await hold.options(delay=100).enqueue()
        await waiting.delete()
        with pytest.raises(JobNotFound):
            await waiting.get()
        async with running(app):
            ref = await hold.enqueue()
            await entered.wait()
            with pytest.raises(Refused, match="cannot be deleted: the job is active"):
                await ref.delete()
            leave.set()
            await ref.wait(10)
        await ref.delete()
        with pytest.raises(JobNotFound):
            await ref.get()

    async def test_priority_and_due_time_of_a_waiting_job_can_be_changed(
        self, timed: App, clock: ManualClock
    ) -> None:
        order: list[str] = []

        @timed.task
        async def note(name: str) -> None:
            order.append(name)

        for name in "abc":
            await note.options(id=name).enqueue(name)
        late = await note.options(delay=1000).enqueue("late")
        await timed.job("c").set_priority(0)
        assert (await late.run_now()).run_at == clock.now()
        await run_until_idle(timed, concurrency=1)
        assert order == ["c", "a", "b", "late"]
        with pytest.raises(Refused, match="the job is completed"):
            await timed.job("c").set_priority(1)
        with pytest.raises(InvalidValue, match=r"^priority: "):
            await timed.job("c").set_priority(10)

    async def test_dedup_key_can_be_given_back(self, timed: App, work) -> None:
        unique = work.options(unique="k")
        ref = await unique.enqueue(1)
        await ref.free_unique()
        await unique.enqueue(2)
        assert (await run_until_idle(timed)).completed == 2

    async def test_refs_are_of_their_own_app(self, timed: App, work) -> None:
        ref: JobRef[int] = await work.enqueue()
        assert (await timed.job(ref.id).details()).job == await ref.get()


async def test_result_that_is_not_kept_is_there_for_those_who_wait_and_then_gone(
    timed: App, clock: ManualClock
) -> None:
    await timed.queue("default").set(retention={"completed": 0}, force=True)
    ref = await timed.task(type="t")(lambda: 7).enqueue()
    waiting = asyncio.ensure_future(ref.result(10))
    await run_until_idle(timed)
    assert await waiting == 7
    clock.advance(SEEN / 1000)
    assert await prune(await timed.engine(), clock.now()) == 1
    with pytest.raises(JobNotFound):
        await ref.result()
