"""Several queues, weights, concurrency and live changes (FEATURES 5.4, 5.5, 5.3)."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import App, InvalidValue, State
from headrace.app.workers import worker_options
from headrace.core.change import Change
from headrace.core.claims import Claimed, ClaimRequest
from headrace.runtime import exchange
from headrace.runtime.shares import Shares
from headrace.testing import run_until_idle, running
from tests.support import eventually, within


def simulate(shares: Shares, backlog: dict[str, int], free: int, claims: int) -> Counter[str]:
    """What a worker starts, by the rules by which every engine serves shares in turn."""
    started: Counter[str] = Counter()
    left = dict(backlog)
    for _ in range(claims):
        taken: Counter[str] = Counter()
        for share in shares.plan(free):
            room = min(share.at_most, free - taken.total(), left.get(share.queue, 0))
            taken[share.queue] += room
            left[share.queue] = left.get(share.queue, 0) - room
        shares.charge(list(taken.elements()))
        started += taken
    return started


class TestShares:
    @pytest.mark.parametrize("free", [1, 3, 10, 100])
    def test_weights_give_their_share(self, free: int) -> None:
        shares = Shares({"a": 6, "b": 3, "c": 1}, False, lambda _: 1)
        backlog = dict.fromkeys("abc", 10_000)
        started = simulate(shares, backlog, free, 1000 // free)
        total = started.total()
        assert abs(started["a"] / total - 0.6) < 0.02
        assert abs(started["b"] / total - 0.3) < 0.02
        assert abs(started["c"] / total - 0.1) < 0.02

    def test_strict_drains_the_first_first(self) -> None:
        shares = Shares(["a", "b"], True, lambda _: 1)
        assert simulate(shares, {"a": 5, "b": 9}, 2, 4) == {"a": 5, "b": 3}

    def test_empty_queue_does_not_save_up_its_turns(self) -> None:
        shares = Shares({"a": 1, "b": 1}, False, lambda _: 1)
        simulate(shares, {"a": 1000}, 1, 500)
        started = simulate(shares, {"a": 100, "b": 100}, 1, 40)
        assert abs(started["a"] - started["b"]) <= 2

    def test_free_slots_go_to_whoever_has_jobs(self) -> None:
        shares = Shares({"a": 9, "b": 1}, False, lambda _: 1)
        assert simulate(shares, {"b": 50}, 10, 3) == {"b": 30}

    @given(
        st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 50), min_size=2),
        st.integers(1, 20),
    )
    def test_no_queue_with_a_weight_starves(self, weights: dict[str, int], free: int) -> None:
        shares = Shares(weights, False, lambda _: 1)
        claims = 2 * sum(weights.values()) // free + 2
        started = simulate(shares, dict.fromkeys(weights, 100_000), free, claims)
        assert set(started) == set(weights)

    def test_weight_of_zero_is_not_served(self) -> None:
        shares = Shares({"a": 0, "b": 1}, False, lambda _: 1)
        assert simulate(shares, {"a": 5, "b": 5}, 2, 5) == {"b": 5}

    def test_queue_s_own_weight_holds_where_the_worker_says_nothing(self) -> None:
        shares = Shares(["a", "b"], False, {"a": 3, "b": 1}.__getitem__)
        started = simulate(shares, {"a": 1000, "b": 1000}, 1, 400)
        assert started == {"a": 300, "b": 100}

    @pytest.mark.parametrize("queues", [[], "a b", ["a", "a"], {"a": -1}, [3]])
    def test_queues_that_make_no_sense_are_refused(self, queues) -> None:
        with pytest.raises(InvalidValue, match=r"^queues?: "):
            Shares(queues, False, lambda _: 1)


class TestWorker:
    async def order(self, app: App, **options) -> list[str]:
        """In which order a worker of one slot starts the jobs of three queues."""
        order: list[str] = []

        @app.task
        async def note(queue: str) -> None:
            order.append(queue)

        batch = [note.options(queue=queue).prepare(queue) for queue in "abc" for _ in range(40)]
        await app.enqueue_many(batch)
        async with running(app, concurrency=1, **options) as worker:
            await within(worker.until_idle())
        return order

    async def test_weighted_worker_gives_6_3_1(self, app: App) -> None:
        order = await self.order(app, queues={"a": 6, "b": 3, "c": 1})
        counts = Counter(order[:60])
        assert abs(counts["a"] - 36) <= 2
        assert abs(counts["b"] - 18) <= 2
        assert abs(counts["c"] - 6) <= 2
        assert len(order) == 120

    async def test_strict_worker_drains_the_first_first(self, app: App) -> None:
        order = await self.order(app, queues=["b", "a", "c"], strict=True)
        assert order == ["b"] * 40 + ["a"] * 40 + ["c"] * 40

    async def test_weights_of_the_queues_are_followed(self, app: App) -> None:
        await app.queue("a").set(weight=3)
        order = await self.order(app, queues=["a", "b", "c"])
        assert abs(Counter(order[:50])["a"] - 30) <= 2

    async def test_priority_then_order_of_arrival(self, timed: App) -> None:
        order: list[str] = []

        @timed.task
        async def note(name: str) -> None:
            order.append(name)

        for name, priority in (("d", 9), ("b", 5), ("a", 0), ("c", 5)):
            await note.options(priority=priority).enqueue(name)
        await run_until_idle(timed, concurrency=1)
        assert order == ["a", "b", "c", "d"]

    async def test_lifo_takes_the_newest_first(self, timed: App) -> None:
        order: list[int] = []

        @timed.task(lifo=True)
        async def note(n: int) -> None:
            order.append(n)

        for n in range(4):
            await note.enqueue(n)
        await run_until_idle(timed, concurrency=1)
        assert order == [3, 2, 1, 0]


class TestConcurrency:
    async def test_never_more_than_its_slots_and_nothing_is_prefetched(self, app: App) -> None:
        leave = asyncio.Event()

        @app.task
        async def hold() -> None:
            await leave.wait()

        refs = [await hold.enqueue() for _ in range(10)]
        async with running(app, concurrency=3):
            await eventually(lambda: _active(app, 3))
            leave.set()
            for ref in refs:
                await ref.wait(10)
        assert (await _most_active(app)).total() == 3

    async def test_claims_ask_for_free_slots_only(self, app: App) -> None:
        engine, leave = await app.engine(), asyncio.Event()
        claim, asked = engine.claim, list[int]()

        async def noting(request: ClaimRequest, changes: Sequence[Change] = ()):
            asked.append(request.limit)
            return await claim(request, changes)

        engine.claim = noting  # pyright: ignore

        @app.task
        async def hold() -> None:
            await leave.wait()

        await app.enqueue_many(hold.prepare() for _ in range(4))
        async with running(app, concurrency=5):
            await eventually(lambda: _active(app, 4))
            await app.enqueue_many(hold.prepare() for _ in range(4))
            await eventually(lambda: _active(app, 5))
            assert asked[0] == -(-5 // engine.overlap)
            assert all(limit <= 5 - 4 for limit in asked[engine.overlap :])
            leave.set()

    async def test_claim_that_finds_nothing_does_not_stop_others_that_find_plenty(
        self, app: App, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What an overlapping claim has in its hands, the other does not see."""
        monkeypatch.setattr(exchange, "LOOK_AGAIN", 3600.0)
        engine, calls, in_vain = await app.engine(), count(1), asyncio.Event()
        claim = engine.claim

        async def overlapping(request: ClaimRequest, changes: Sequence[Change] = ()) -> Claimed:
            match next(calls):
                case 2:
                    claimed = await claim(request, changes)
                    await within(in_vain.wait())
                    return claimed
                case 3:
                    answers = await engine.apply(changes) if changes else ()
                    asyncio.get_running_loop().call_later(0.01, in_vain.set)
                    return Claimed((), answers=tuple(answers))
                case _:
                    return await claim(request, changes)

        engine.claim = overlapping  # pyright: ignore
        monkeypatch.setattr(type(engine), "overlap", 2)

        @app.task
        async def noop() -> None: ...

        refs = [await noop.enqueue() for _ in range(10)]
        async with running(app, concurrency=4):
            for ref in refs:
                await ref.wait(10)
        assert in_vain.is_set()

    async def test_queue_s_cap_holds_over_all_workers(self, app: App) -> None:
        leave = asyncio.Event()
        caps = {"a": 4, "b": 3, "c": 3}

        @app.task
        async def hold() -> None:
            await leave.wait()

        for queue, cap in caps.items():
            await app.queue(queue).set(max_active=cap, force=True)
        batch = [hold.options(queue=queue).prepare() for queue in caps for _ in range(12)]
        answers = await app.enqueue_many(batch)
        async with running(app, queues=list(caps)), running(app, queues=list(caps)):
            await eventually(lambda: _active(app, 10))
            leave.set()
            for answer in answers:
                assert answer.ref
                await answer.ref.wait(15)
        assert await _most_active(app) == caps

    async def test_two_workers_share_and_each_job_runs_once(self, app: App) -> None:
        ran: Counter[int] = Counter()

        @app.task
        async def work(n: int) -> None:
            ran[n] += 1
            await asyncio.sleep(0)

        answers = await app.enqueue_many(work.prepare(n) for n in range(300))
        async with running(app, concurrency=7), running(app, concurrency=7):
            for answer in answers:
                assert answer.ref
                await answer.ref.wait(15)
        assert ran == dict.fromkeys(range(300), 1)

    @pytest.mark.parametrize("sync", [False, True])
    async def test_concurrency_can_change_while_it_runs(self, app: App, sync: bool) -> None:
        import threading

        leave = threading.Event()

        if sync:

            def hold() -> None:
                leave.wait(20)
        else:

            async def hold() -> None:
                await eventually(leave.is_set)

        task = app.task(type="t")(hold)
        answers = await app.enqueue_many(task.prepare() for _ in range(12))
        async with running(app, concurrency=2) as worker:
            await eventually(lambda: _active(app, 2))
            worker.set_concurrency(6)
            await eventually(lambda: _active(app, 6))
            worker.set_concurrency(1)
            await worker.renew_leases()
            assert await _active(app, 6), "running handlers are not touched"
            leave.set()
            jobs = [await answer.ref.wait(15) for answer in answers if answer.ref]
        assert [(job.state, job.tries) for job in jobs] == [(State.COMPLETED, 1)] * 12
        assert (await _most_active(app)).total() == 6

    async def test_queues_can_change_while_it_runs(self, app: App) -> None:
        task = app.task(type="t")(lambda: None)
        b = await task.options(queue="b").enqueue()
        async with running(app, queues="a") as worker:
            a = await task.options(queue="a").enqueue()
            await a.wait(10)
            assert (await b.get()).state is State.PENDING
            worker.set_queues({"b": 1, "c": 2})
            await b.wait(10)
            assert worker.queues == ["b", "c"]
            later = await task.options(queue="c").enqueue()
            await later.wait(10)
            left = await task.options(queue="a").enqueue()
            await worker.until_idle()
            assert (await left.get()).state is State.PENDING
            with pytest.raises(InvalidValue):
                worker.set_queues([])

    @pytest.mark.parametrize(
        ("options", "field"),
        [
            ({"concurrency": 0}, "concurrency"),
            ({"threads": "many"}, "threads"),
            ({"children": -1}, "children"),
            ({"lease": 0.5}, "lease"),
            ({"lease": "x"}, "lease"),
            ({"colour": 1}, "colour"),
        ],
    )
    def test_worker_options_that_make_no_sense_are_refused(self, options, field: str) -> None:
        with pytest.raises(InvalidValue, match=f"^{field}: "):
            worker_options(options)


async def _active(app: App, number: int) -> bool:
    return sum(one.jobs for one in await app.count() if one.state is State.ACTIVE) == number


async def _most_active(app: App) -> Counter[str]:
    """How many jobs of each queue were active at a time, at most, by the journal."""
    active, most = Counter[str](), Counter[str]()
    async for entry in app.events():
        event = entry.event
        active[event.queue] += (event.state is State.ACTIVE) - (event.previous is State.ACTIVE)
        most |= active
    return most
