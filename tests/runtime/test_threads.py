"""Sync handlers in threads (FEATURES 8.1)."""

from __future__ import annotations

import threading

from headrace import App, State
from headrace.testing import running
from tests.support import eventually


class TestThreads:
    async def test_sync_handlers_run_side_by_side_in_threads(self, app: App) -> None:
        barrier = threading.Barrier(4, timeout=20)

        def meet() -> str:
            barrier.wait()
            return threading.current_thread().name

        task = app.task(type="t")(meet)
        refs = [await task.enqueue() for _ in range(4)]
        async with running(app, concurrency=4):
            names = {await ref.result(20) for ref in refs}
        assert names == {"headrace-handler"}

    async def test_threads_can_be_fewer_than_slots_and_none_is_lost(self, app: App) -> None:
        now, most, lock = [0], [0], threading.Lock()

        def work() -> None:
            with lock:
                now[0] += 1
                most[0] = max(most[0], now[0])
            threading.Event().wait(0.005)
            with lock:
                now[0] -= 1

        task = app.task(type="t")(work)
        refs = [await task.enqueue() for _ in range(20)]
        async with running(app, concurrency=10, threads=2):
            for ref in refs:
                assert (await ref.wait(20)).state is State.COMPLETED
        assert most == [2]

    async def test_call_cancelled_before_its_thread_began_never_begins(self, app: App) -> None:
        entered, leave, ran = threading.Event(), threading.Event(), []

        def hold() -> None:
            entered.set()
            leave.wait(20)

        holder = await app.task(type="hold")(hold).enqueue()
        async with running(app, concurrency=2, threads=1) as worker:
            await eventually(entered.is_set)
            waiting = await app.task(type="waits")(lambda: ran.append(1)).enqueue()
            await eventually(lambda: _active(waiting))
            await waiting.cancel("not needed")
            assert (await waiting.wait(10)).state is State.CANCELLED
            leave.set()
            assert (await holder.wait(10)).state is State.COMPLETED
            await worker.until_idle()
        assert ran == []

    async def test_stuck_thread_does_not_keep_others_from_running(self, app: App) -> None:
        leave = threading.Event()
        app.task(type="stuck")(lambda: leave.wait(20) and None)
        await app.enqueue_many([app.prepare("stuck")])
        async with running(app, concurrency=2):
            ref = await app.task(type="t")(lambda: "fine").enqueue()
            assert await ref.result(10) == "fine"
            leave.set()


async def _active(ref) -> bool:
    return (await ref.get()).state is State.ACTIVE
