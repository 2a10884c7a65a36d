"""Transitions into another queue (FEATURES 7.6)."""

from __future__ import annotations

from headrace.core import actions
from headrace.core.model import LogEntry
from headrace.core.outcome import Completed, Moved
from headrace.core.queue import QueueSettings
from headrace.core.states import EventType, State
from headrace.testing.conformance.bench import LEASE, Bench, made, raw, refused


class Moving:
    """A job goes on elsewhere: the same job, in one step."""

    async def test_moved_job_goes_on_in_the_other_queue_as_another_type(self, bench: Bench) -> None:
        await bench.add("a", payload={"n": 1})
        moved = made(await bench.settle(await bench.start(), Moved("q2", "second")))
        assert (moved.id, moved.queue, moved.type) == ("a", "q2", "second")
        assert (moved.state, moved.tries) == (State.PENDING, 0)
        assert await bench.claimed_ids(5, "q") == []
        job = await bench.start("q2", worker="any")
        assert bytes(job.spec.payload) == b'{"n":1}'
        assert (await bench.complete(job)).state is State.COMPLETED

    async def test_moved_job_keeps_its_type_where_none_is_named(self, bench: Bench) -> None:
        await bench.add("a", type="first")
        assert made(await bench.settle(await bench.start(), Moved("q2"))).type == "first"

    async def test_moved_job_may_be_put_off(self, bench: Bench) -> None:
        await bench.add("a")
        await bench.settle(await bench.start(), Moved("q2", run_at=bench.now + 500))
        assert await bench.claimed_ids(5, "q2") == []
        bench.tick(500)
        assert await bench.claimed_ids(5, "q2") == ["a"]

    async def test_result_so_far_is_there_for_the_next_handler(self, bench: Bench) -> None:
        await bench.add("a")
        await bench.settle(await bench.start(), Moved("q2", result=raw("one")))
        job = await bench.start("q2")
        assert job.result == raw("one")
        await bench.settle(job, Moved("q3"))
        assert (await bench.start("q3")).result == raw("one")

    async def test_moved_job_starts_with_fresh_tries_and_no_errors(self, bench: Bench) -> None:
        await bench.add("a", max_tries=2)
        await bench.fail(await bench.start(), after=0)
        job = await bench.start()
        await bench.report(job, logs=[LogEntry(bench.now, "info", "x")])
        await bench.settle(job, Moved("q2"))
        details = await bench.details("a")
        assert (details.errors, details.logs, details.job.error) == ((), (), None)
        assert (await bench.start("q2")).tries == 1

    async def test_moved_job_keeps_max_tries_deadline_and_priority(self, bench: Bench) -> None:
        deadline = bench.now + 10**6
        await bench.set_queue(QueueSettings(max_tries=1), "q2")
        await bench.add("a", max_tries=4, deadline=deadline, priority=2)
        moved = made(await bench.settle(await bench.start(), Moved("q2")))
        assert (moved.max_tries, moved.deadline, moved.priority) == (4, deadline, 2)

    async def test_old_owner_cannot_touch_the_moved_job(self, bench: Bench) -> None:
        await bench.add("a")
        job = await bench.start()
        await bench.settle(job, Moved("q2"))
        bench.tick(1)
        refused(await bench.settle(job, Completed()))
        assert await bench.state("a") is State.PENDING
        await bench.start("q2")
        refused(await bench.settle(job, Moved("q3")))
        assert (await bench.job("a")).queue == "q2"

    async def test_only_a_running_job_can_be_moved(self, bench: Bench) -> None:
        waiting = await bench.add("a")
        refused(await bench.settle(waiting, Moved("q2")))
        job = await bench.start()
        await bench.fail(job, after=5000)
        bench.tick(1)
        refused(await bench.settle(job, Moved("q2")))
        assert (await bench.job("a")).queue == "q"

    async def test_there_is_one_copy_in_counts_and_lists(self, bench: Bench) -> None:
        await bench.add("a")
        await bench.settle(await bench.start(), Moved("q2"))
        assert await bench.counts() == {("q2", State.PENDING): 1}

    async def test_move_is_one_event_that_names_the_new_place(self, bench: Bench) -> None:
        await bench.add("a")
        await bench.settle(await bench.start(), Moved("q2", "second"))
        event = (await bench.events("a"))[-1]
        assert (event.event, event.state) == (EventType.MOVED, State.PENDING)
        assert (event.queue, event.type, event.previous) == ("q2", "second", State.ACTIVE)

    async def test_move_frees_the_old_queue_s_cap(self, bench: Bench) -> None:
        await bench.set_queue(QueueSettings(max_active=1))
        await bench.add("a")
        await bench.add("b")
        await bench.settle(await bench.start(), Moved("q2"))
        assert await bench.claimed_ids() == ["b"]

    async def test_moved_job_can_be_lost_cancelled_and_retried_like_any_other(
        self, bench: Bench
    ) -> None:
        await bench.add("a")
        await bench.settle(await bench.start(), Moved("q2"))
        await bench.start("q2")
        bench.tick(LEASE)
        await bench.rescue()
        ended = made(await bench.apply(actions.cancel(await bench.job("a"), bench.now, "no")))
        made(await bench.retry(ended))
        assert await bench.claimed_ids(1, "q2") == ["a"]
