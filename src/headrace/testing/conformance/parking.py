"""Parking: jobs whose key is full stand aside and come back in order (FEATURES 5.7)."""

from __future__ import annotations

from headrace.core import actions
from headrace.core.model import Stage
from headrace.core.outcome import Moved, Returned, Snoozed
from headrace.core.queue import QueueSettings
from headrace.core.states import State
from headrace.testing.conformance.bench import LEASE, Bench, key, made

K = key("k")


class Parking:
    """No job of a full key stands in another's way, and none is forgotten."""

    async def test_backlog_of_one_key_does_not_delay_another_s_first(self, bench: Bench) -> None:
        for n in range(50):
            await bench.add(f"big{n}", key=key("big"))
        await bench.add("small", key=key("small"))
        await bench.add("free")
        assert await bench.claimed_ids(3) == ["big0", "small", "free"]

    async def test_waiting_for_a_key_costs_no_try(self, bench: Bench) -> None:
        await bench.add("a", key=K)
        await bench.add("b", key=K)
        job = await bench.start()
        for _ in range(5):
            assert await bench.claimed_ids() == []
        await bench.complete(job)
        assert (await bench.start()).tries == 1

    async def test_jobs_of_a_key_run_in_order(self, bench: Bench) -> None:
        for n in range(5):
            await bench.add(f"j{n}", key=K)
        assert [(await bench.run()).id for _ in range(5)] == [f"j{n}" for n in range(5)]

    async def test_better_priority_of_a_key_runs_first(self, bench: Bench) -> None:
        await bench.add("a", key=K, priority=5)
        await bench.add("b", key=K, priority=5)
        await bench.add("urgent", key=K, priority=0)
        assert [(await bench.run()).id for _ in range(3)] == ["urgent", "a", "b"]

    async def test_better_priority_that_came_while_the_key_was_full_runs_next(
        self, bench: Bench
    ) -> None:
        await bench.add("running", key=K)
        job = await bench.start()
        await bench.add("a", key=K, priority=5)
        await bench.add("urgent", key=K, priority=0)
        await bench.complete(job)
        assert [(await bench.run()).id for _ in range(2)] == ["urgent", "a"]

    async def test_changed_priority_of_a_parked_job_counts(self, bench: Bench) -> None:
        await bench.add("running", key=K)
        job = await bench.start()
        await bench.add("a", key=K)
        parked = await bench.add("b", key=K)
        await bench.apply(actions.reprioritise(parked, bench.now, 0))
        await bench.complete(job)
        assert [(await bench.run()).id for _ in range(2)] == ["b", "a"]

    async def test_lowered_priority_of_the_ready_job_lets_the_parked_one_first(
        self, bench: Bench
    ) -> None:
        ready = await bench.add("a", key=K, priority=5)
        await bench.add("b", key=K, priority=6)
        await bench.apply(actions.reprioritise(ready, bench.now, 9))
        assert [(await bench.run()).id for _ in range(2)] == ["b", "a"]

    async def test_job_made_worse_than_all_others_does_not_hide_a_parked_one(
        self, bench: Bench
    ) -> None:
        await bench.add("eight", key=K, priority=8)
        five = await bench.add("five", key=K, priority=5)
        assert (await bench.add("six", key=K, priority=6)).stage is Stage.PARKED
        await bench.apply(actions.reprioritise(five, bench.now, 9))
        assert [(await bench.run()).id for _ in range(3)] == ["six", "eight", "five"]

    async def test_failed_job_goes_behind_those_that_wait_for_its_key(self, bench: Bench) -> None:
        await bench.add("a", key=K)
        await bench.add("b", key=K)
        job = await bench.start()
        bench.tick(1)
        await bench.fail(job, after=0)
        assert [(await bench.run()).id for _ in range(2)] == ["b", "a"]

    async def test_key_is_free_while_its_job_waits_for_a_retry(self, bench: Bench) -> None:
        await bench.add("a", key=K)
        await bench.add("b", key=K)
        await bench.fail(await bench.start(), after=5000)
        assert (await bench.run()).id == "b"
        bench.tick(5000)
        assert (await bench.run()).id == "a"

    async def test_snoozed_job_frees_the_slot_and_returned_one_keeps_its_place(
        self, bench: Bench
    ) -> None:
        for id in "abc":
            await bench.add(id, key=K)
        await bench.settle(await bench.start(), Snoozed(bench.now + 10))
        job = await bench.start()
        assert job.id == "b"
        bench.tick(1)
        await bench.settle(job, Returned())
        assert (await bench.run()).id == "b"
        assert (await bench.run()).id == "c"

    async def test_moved_job_frees_the_slot_and_queues_up_again(self, bench: Bench) -> None:
        await bench.add("a", key=K)
        await bench.add("b", key=K)
        await bench.settle(await bench.start(), Moved("q2"))
        job = await bench.start()
        assert job.id == "b"
        assert await bench.claimed_ids(1, "q2") == []
        await bench.complete(job)
        assert await bench.claimed_ids(1, "q2") == ["a"]

    async def test_cancelled_ready_job_lets_the_parked_one_in(self, bench: Bench) -> None:
        ready = await bench.add("a", key=K)
        await bench.add("b", key=K)
        await bench.cancel(ready)
        assert await bench.claimed_ids() == ["b"]

    async def test_expired_ready_job_lets_the_parked_one_in(self, bench: Bench) -> None:
        await bench.add("a", key=K, ttl=10)
        await bench.add("b", key=K)
        bench.tick(10)
        assert await bench.claimed_ids() == ["b"]

    async def test_put_off_ready_job_lets_the_parked_one_in(self, bench: Bench) -> None:
        ready = await bench.add("a", key=K)
        await bench.add("b", key=K)
        await bench.apply(actions.reschedule(ready, bench.now, bench.now + 100))
        assert await bench.claimed_ids() == ["b"]

    async def test_rescued_slot_lets_the_parked_one_in(self, bench: Bench) -> None:
        await bench.add("a", key=K)
        await bench.start()
        bench.tick(LEASE)
        await bench.add("b", key=K, priority=0)
        await bench.rescue()
        assert await bench.claimed_ids() == ["b"]

    async def test_parked_job_expires_too(self, bench: Bench) -> None:
        await bench.add("a", key=K)
        await bench.start()
        await bench.add("b", key=K, ttl=10)
        bench.tick(10)
        await bench.expire()
        assert await bench.state("b") is State.EXPIRED

    async def test_parked_job_can_be_put_off_and_comes_back(self, bench: Bench) -> None:
        await bench.add("a", key=K)
        running = await bench.start()
        parked = await bench.add("b", key=K)
        put_off = made(await bench.apply(actions.reschedule(parked, bench.now, bench.now + 50)))
        assert put_off.stage is Stage.DELAYED
        await bench.complete(running)
        assert await bench.claimed_ids() == []
        bench.tick(50)
        assert await bench.claimed_ids() == ["b"]

    async def test_delayed_job_of_a_busy_key_is_parked_when_it_is_due(self, bench: Bench) -> None:
        await bench.add("a", key=K)
        running = await bench.start()
        await bench.add("b", key=K, delay=10)
        bench.tick(10)
        assert await bench.claimed_ids() == []
        await bench.complete(running)
        assert await bench.claimed_ids() == ["b"]

    async def test_paused_queue_does_not_stop_its_keys_elsewhere(self, bench: Bench) -> None:
        await bench.add("a", key=K)
        await bench.add("b", key=K, queue="q2")
        await bench.set_queue(QueueSettings(paused=True))
        assert await bench.claimed_ids(10, "q", "q2") == ["b"]

    async def test_released_child_of_a_busy_key_is_parked(self, bench: Bench) -> None:
        await bench.add("parent")
        await bench.add("a", key=K, priority=0)
        running = await bench.start()
        await bench.add("child", key=K, depends_on=("parent",))
        await bench.run()
        assert (await bench.job("child")).stage is Stage.PARKED
        await bench.complete(running)
        assert await bench.claimed_ids() == ["child"]

    async def test_retried_job_of_a_busy_key_is_parked(self, bench: Bench) -> None:
        await bench.add("a", key=K)
        done = await bench.run()
        await bench.add("b", key=K)
        running = await bench.start()
        assert made(await bench.retry(done)).stage is Stage.PARKED
        await bench.complete(running)
        assert await bench.claimed_ids() == ["a"]
