"""Finding and counting (FEATURES 9.5)."""

from __future__ import annotations

import pytest

from headrace.core.model import Filter
from headrace.core.outcome import Problem, Terminated
from headrace.core.states import State
from headrace.testing.conformance.bench import LEASE, Bench, key

PENDING = frozenset({State.PENDING})


class Searching:
    """Jobs by every field of a filter, newest first, in stable pages."""

    async def test_empty_filter_means_every_job_newest_first(self, bench: Bench) -> None:
        for id in "abc":
            await bench.add(id)
        await bench.add("d", service="other")
        assert await bench.found(Filter()) == ["d", "c", "b", "a"]

    @pytest.mark.parametrize(
        ("wanted", "ids"),
        [
            (Filter(ids=("a", "d", "none")), ["d", "a"]),
            (Filter(service="svc"), ["e", "d", "c", "b", "a"]),
            (Filter(service="elsewhere"), []),
            (Filter(queue="q2"), ["e", "b"]),
            (Filter(type="email:new"), ["c"]),
            (Filter(states=PENDING), ["d", "c", "b"]),
            (Filter(states=frozenset({State.COMPLETED, State.FAILED})), ["e", "a"]),
            (Filter(key="tenant:1"), ["d"]),
            (Filter(key=key("tenant:1").hash), ["d"]),
            (Filter(tag="red"), ["c", "b"]),
            (Filter(tag="re"), []),
            (Filter(text="needle"), ["c"]),
            (Filter(text='quo"te'), ["d"]),
            (Filter(text="żółw"), ["b"]),
            (Filter(text="bad address"), ["e"]),
            (Filter(text="LookupError"), ["e"]),
            (Filter(queue="q2", states=PENDING), ["b"]),
            (Filter(queue="q", tag="red", text="needle"), ["c"]),
        ],
    )
    async def test_filter_finds(self, bench: Bench, wanted: Filter, ids: list[str]) -> None:
        await bench.add("a")
        await bench.run()
        await bench.add("b", queue="q2", tags=("red", "blue"), payload={"t": "żółw"})
        await bench.add("c", type="email:new", tags=("red",), payload={"deep": ["a needle"]})
        await bench.add("d", key=key("tenant:1"), payload={"t": 'a quo"te'})
        await bench.add("e", queue="q2", priority=0)
        failing = await bench.start("q2")
        await bench.settle(failing, Terminated(Problem("LookupError", "bad address")))
        assert await bench.found(wanted) == ids

    async def test_filter_by_time_of_creation(self, bench: Bench) -> None:
        start = bench.now
        for id in "abc":
            await bench.add(id)
            bench.tick(10)
        assert await bench.found(Filter(created_from=start + 10)) == ["c", "b"]
        assert await bench.found(Filter(created_until=start + 10)) == ["a"]
        between = Filter(created_from=start + 1, created_until=start + 20)
        assert await bench.found(between) == ["b"]

    async def test_filter_by_lease_and_worker(self, bench: Bench) -> None:
        await bench.add("a")
        await bench.add("b")
        await bench.start(worker="w1")
        bench.tick(10)
        await bench.start(worker="w2")
        assert await bench.found(Filter(worker="w2")) == ["b"]
        until = bench.now - 10 + LEASE
        assert await bench.found(Filter(lease_until=until)) == ["a"]
        assert await bench.found(Filter(lease_until=until - 1)) == []

    async def test_filter_by_expiry(self, bench: Bench) -> None:
        await bench.add("a", ttl=100)
        await bench.add("b", deadline=bench.now + 200)
        await bench.add("c")
        assert await bench.found(Filter(expires_until=bench.now + 99)) == []
        assert await bench.found(Filter(expires_until=bench.now + 100)) == ["a"]
        assert await bench.found(Filter(expires_until=bench.now + 200)) == ["b", "a"]

    async def test_pages_follow_each_other_without_gap_or_repeat(self, bench: Bench) -> None:
        for n in range(25):
            await bench.add(f"j{n:02}")
        seen: list[str] = []
        cursor: str | None = None
        for _ in range(10):
            page = await bench.engine.find(Filter(queue="q"), cursor, limit=10)
            seen += [job.id for job in page.jobs]
            cursor = page.cursor
            if cursor is None:
                break
        assert seen == [f"j{n:02}" for n in reversed(range(25))]

    async def test_page_that_holds_everything_is_the_last(self, bench: Bench) -> None:
        for id in "abc":
            await bench.add(id)
        page = await bench.engine.find(Filter(), limit=3)
        assert len(page.jobs) == 3
        if page.cursor is not None:
            assert (await bench.engine.find(Filter(), page.cursor)).jobs == ()
        assert (await bench.engine.find(Filter(), limit=4)).cursor is None

    async def test_cursor_is_stable_while_jobs_come_go_and_change(self, bench: Bench) -> None:
        jobs = [await bench.add(f"j{n}") for n in range(6)]
        page = await bench.engine.find(Filter(), limit=3)
        await bench.add("newer")
        await bench.delete(jobs[2])
        await bench.cancel(jobs[4])
        rest = await bench.engine.find(Filter(), page.cursor, limit=10)
        assert [job.id for job in page.jobs] == ["j5", "j4", "j3"]
        assert [job.id for job in rest.jobs] == ["j1", "j0"]

    async def test_found_jobs_are_as_stored(self, bench: Bench) -> None:
        await bench.add("a", payload={"n": 1})
        done = await bench.run(result=[1])
        (found,) = (await bench.engine.find(Filter(ids=("a",)))).jobs
        assert found == done

    async def test_counts_follow_every_change(self, bench: Bench) -> None:
        assert await bench.counts() == {}
        for id in "abc":
            await bench.add(id, max_tries=1)
        await bench.add("d", depends_on=("a",))
        assert await bench.counts() == {("q", State.PENDING): 3, ("q", State.BLOCKED): 1}
        await bench.run()
        await bench.kill("b")
        await bench.start()
        assert await bench.counts() == {
            ("q", State.PENDING): 1,
            ("q", State.COMPLETED): 1,
            ("q", State.DEAD): 1,
            ("q", State.ACTIVE): 1,
        }

    async def test_counts_are_by_service_and_queue(self, bench: Bench) -> None:
        await bench.add("a", queue="q1")
        await bench.add("b", queue="q2")
        await bench.add("c", service="other")
        assert await bench.counts("svc") == {("q1", State.PENDING): 1, ("q2", State.PENDING): 1}
        assert await bench.counts("other") == {("q", State.PENDING): 1}
        assert len(await bench.engine.count()) == 3
