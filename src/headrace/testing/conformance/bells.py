"""Wake-ups (FEATURES 4.1, 8.4): who waits is told at once."""

from __future__ import annotations

import asyncio

from headrace.core.model import Filter
from headrace.core.outcome import Cancelled, Completed, Moved
from headrace.core.queue import QueueSettings
from headrace.engine.protocol import (
    DOCUMENTS_TOPIC,
    JOURNAL_TOPIC,
    job_topic,
    work_topic,
    worker_topic,
)
from headrace.testing.conformance.bench import LEASE, RING_LIMIT, Bench, key, raw, rings

WORK = work_topic("svc", "q")


class Bells:
    """Bells ring for what happened, also for what happened between two waits."""

    async def test_insert_rings_for_its_queue(self, bench: Bench) -> None:
        bell = bench.listen(WORK)
        waiting = asyncio.ensure_future(rings(bell))
        await bench.add("a")
        assert await waiting
        bell.close()

    async def test_ring_between_two_waits_is_remembered(self, bench: Bench) -> None:
        bell = bench.listen(WORK)
        await bench.add("a")
        assert await rings(bell)
        await bench.add("b")
        await bench.add("c")
        assert await rings(bell)
        bell.close()

    async def test_hook_is_told_of_every_ring_in_the_bell_s_event_loop(self, bench: Bench) -> None:
        bell, told = bench.listen(WORK), asyncio.Queue[object]()
        bell.tell(lambda: told.put_nowait(asyncio.get_running_loop()))
        for name in ("a", "b"):
            await bench.add(name)
            async with asyncio.timeout(RING_LIMIT):
                assert await told.get() is asyncio.get_running_loop()
        bell.close()

    async def test_hook_is_told_of_a_ring_before_it_was_there(self, bench: Bench) -> None:
        bell, waited = bench.listen(WORK), bench.listen(WORK)
        await bench.add("a")
        assert await rings(waited)  # then both have rung
        told = asyncio.Event()
        bell.tell(told.set)
        async with asyncio.timeout(RING_LIMIT):
            await told.wait()
        bell.close()
        waited.close()

    async def test_bell_rings_after_the_commit(self, bench: Bench) -> None:
        bell = bench.listen(WORK)
        adding = asyncio.ensure_future(bench.add("a"))
        assert await rings(bell)
        assert await bench.claimed_ids() == ["a"]
        await adding
        bell.close()

    async def test_every_bell_of_a_topic_rings(self, bench: Bench) -> None:
        bells = [bench.listen(WORK) for _ in range(3)]
        await bench.add("a")
        assert all([await rings(bell) for bell in bells])
        for bell in bells:
            bell.close()

    async def test_delayed_job_rings_so_that_its_time_is_known(self, bench: Bench) -> None:
        bell = bench.listen(WORK)
        await bench.add("a", delay=1000)
        assert await rings(bell)
        assert (await bench.offer()).next_due == bench.now + 1000
        bell.close()

    async def test_given_back_job_rings_for_its_queue(self, bench: Bench) -> None:
        await bench.add("a")
        job = await bench.start()
        bell = bench.listen(WORK)
        await bench.fail(job, after=10)
        assert await rings(bell)
        bell.close()

    async def test_moved_job_rings_for_its_new_queue(self, bench: Bench) -> None:
        await bench.add("a")
        job = await bench.start()
        bell = bench.listen(work_topic("svc", "q2"))
        await bench.settle(job, Moved("q2"))
        assert await rings(bell)
        bell.close()

    async def test_released_child_rings_for_its_queue(self, bench: Bench) -> None:
        await bench.add("p", queue="q2")
        await bench.add("child", depends_on=("p",))
        job = await bench.start("q2")
        bell = bench.listen(WORK)
        await bench.complete(job)
        assert await rings(bell)
        bell.close()

    async def test_freed_slot_rings_for_the_parked_job_s_queue(self, bench: Bench) -> None:
        limit = key("k")
        await bench.add("a", key=limit, queue="q2")
        job = await bench.start("q2")
        await bench.add("b", key=limit)
        assert await bench.claimed_ids() == []
        bell = bench.listen(WORK)
        await bench.complete(job)
        assert await rings(bell)
        assert await bench.claimed_ids() == ["b"]
        bell.close()

    async def test_freed_place_under_a_cap_rings(self, bench: Bench) -> None:
        await bench.set_queue(QueueSettings(max_active=1))
        await bench.add("a")
        await bench.add("b")
        job = await bench.start()
        bell = bench.listen(WORK)
        await bench.complete(job)
        assert await rings(bell)
        bell.close()

    async def test_cancel_rings_for_the_worker_that_runs_the_job(self, bench: Bench) -> None:
        await bench.add("a")
        job = await bench.start(worker="w7")
        bell = bench.listen(worker_topic("w7"))
        await bench.cancel(job)
        assert await rings(bell)
        bell.close()

    async def test_takeover_rings_for_the_worker_that_lost_the_job(self, bench: Bench) -> None:
        await bench.add("a")
        await bench.start(worker="w7")
        bell = bench.listen(worker_topic("w7"))
        bench.tick(LEASE)
        await bench.rescue()
        assert await rings(bell)
        bell.close()

    async def test_every_change_rings_for_the_job(self, bench: Bench) -> None:
        await bench.add("a")
        bell = bench.listen(job_topic("a"))
        job = await bench.start()
        assert await rings(bell)
        await bench.settle(job, Completed())
        assert await rings(bell)
        bell.close()

    async def test_every_commit_rings_for_the_journal(self, bench: Bench) -> None:
        bell = bench.listen(JOURNAL_TOPIC)
        await bench.add("a")
        assert await rings(bell)
        await bench.settle(await bench.start(), Cancelled())
        assert await rings(bell)
        bell.close()

    async def test_document_rings(self, bench: Bench) -> None:
        bell = bench.listen(DOCUMENTS_TOPIC)
        await bench.set_queue(QueueSettings(paused=True))
        assert await rings(bell)
        bell.close()

    async def test_one_bell_hears_several_topics(self, bench: Bench) -> None:
        bell = bench.listen(WORK, DOCUMENTS_TOPIC)
        await bench.set_queue(QueueSettings())
        assert await rings(bell)
        await bench.add("a")
        assert await rings(bell)
        bell.close()

    async def test_wait_without_a_ring_ends_at_its_time(self, bench: Bench) -> None:
        bell = bench.listen(job_topic("nobody"))
        assert await bell.wait(0) is False
        bell.close()

    async def test_closed_bell_disturbs_nobody(self, bench: Bench) -> None:
        bench.listen(WORK).close()
        await bench.add("a")
        assert await bench.claimed_ids() == ["a"]

    async def test_twin_in_another_thread_wakes_and_is_woken(self, bench: Bench) -> None:
        twin = bench.engine.twin()
        loop = asyncio.get_running_loop()
        listening = asyncio.Event()

        async def elsewhere() -> bool:
            bell = twin.listen(frozenset({WORK}))
            loop.call_soon_threadsafe(listening.set)
            heard = await bell.wait(RING_LIMIT)
            bell.close()
            there = Bench(twin, bench.now)
            await there.complete(await there.start(), "by the twin")
            return heard

        bell = bench.listen(job_topic("a"))
        other = asyncio.ensure_future(asyncio.to_thread(asyncio.run, elsewhere()))
        await listening.wait()
        await bench.add("a")
        assert await other
        assert await rings(bell)
        assert (await bench.job("a")).result == raw("by the twin")
        assert await bench.found(Filter(queue="q")) == ["a"]
        bell.close()
