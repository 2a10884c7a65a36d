"""Looking at jobs: why, keys, events, find, queues (FEATURES 5.10, 9.1, 5.1 as far as used)."""

from __future__ import annotations

import asyncio

import pytest

from headrace import App, InvalidValue, JobContext, MigrationNeeded, OnLost, Refused, State
from headrace.core.claims import ClaimRequest, Share
from headrace.core.model import Job
from headrace.core.queue import Kind
from headrace.testing import ManualClock, jobs, run_until_idle, running
from tests.support import eventually, story, within


async def claim(app: App, queue: str = "default", lease: int = 30_000) -> Job:
    """One job in the hands of a worker that will never be heard of again."""
    request = ClaimRequest(
        service=app.service,
        worker="w-gone",
        shares=(Share(queue, 1),),
        limit=1,
        lease=lease,
        now=app.clock.now(),
    )
    return (await (await app.engine()).claim(request)).jobs[0]


@pytest.fixture
def work(timed: App):
    @timed.task
    async def work(n: int = 0) -> int:
        return n

    return work


class TestWhy:
    async def test_no_worker(self, work) -> None:
        (reason,) = await (await work.enqueue()).why()
        assert reason == "no worker serves queue 'default'; start one"

    async def test_ready_for_a_worker(self, timed: App, work) -> None:
        entered, leave = asyncio.Event(), asyncio.Event()

        @timed.task
        async def hold() -> None:
            entered.set()
            await leave.wait()

        async with running(timed, concurrency=1):
            await hold.enqueue()
            await within(entered.wait())
            ref = await work.enqueue()
            await eventually(timed.workers)
            ready = "it is ready, and will start as soon as a worker has a free slot"
            assert await ref.why() == [ready]
            leave.set()
            await ref.wait(10)

    async def test_paused_queue(self, timed: App, work) -> None:
        async with running(timed, queues="default"):
            await eventually(timed.workers)
            await timed.queue("default").pause()
            ref = await work.enqueue()
            assert await ref.why() == ["queue 'default' is paused; resume it"]

    async def test_not_due(self, work, clock: ManualClock) -> None:
        ref = await work.options(delay=60).enqueue()
        assert (await ref.why())[0] == "it is not due until 2030-01-01T12:01:00.000Z"

    async def test_next_try_not_due(self, timed: App) -> None:
        @timed.task(retry=60)
        async def fails() -> None:
            raise ValueError

        ref = await fails.enqueue()
        await run_until_idle(timed)
        assert (await ref.why())[0].startswith("its next try is not due until 2030-01-01T12:01")

    async def test_key_without_a_free_slot(self, timed: App, work) -> None:
        keyed = work.options(key="k")
        first, second = await keyed.enqueue(), await keyed.enqueue()
        await claim(timed)
        assert (await second.why())[0] == (
            f"its key 'k' has no free slot: {first.id} runs; 1 of the key wait"
        )

    async def test_queue_at_its_cap(self, timed: App, work) -> None:
        await timed.queue("default").set(max_active=1, force=True)
        await work.enqueue()
        second = await work.enqueue()
        await claim(timed)
        assert (await second.why())[0] == "queue 'default' runs its max_active of 1 jobs already"

    async def test_rate_limit(self, timed: App, work) -> None:
        await timed.queue("default").set(rate="5/m")
        assert "is limited to 5 starts per period" in (await (await work.enqueue()).why())[0]

    async def test_queue_of_weight_0_beside_others(self, timed: App, work) -> None:
        await timed.queue("default").set(weight=0)
        async with running(timed, queues=["default", "other"]):
            await eventually(timed.workers)
            ref = await work.enqueue()
            (reason,) = await ref.why()
            assert reason.startswith("queue 'default' has weight 0: workers that serve other")
            async with running(timed, queues="default"):
                await ref.wait(10)

    async def test_parents(self, timed: App, work) -> None:
        parent = await work.options(delay=60).enqueue()
        child = await work.options(depends_on=[parent]).enqueue()
        assert await child.why() == [f"it waits for {parent.id} to complete"]

    async def test_parents_that_ended_and_those_that_have_not(self, timed: App, work) -> None:
        fails = timed.task(type="fails", max_tries=1)(lambda: 1 / 0)
        failed, done = await fails.enqueue(), await work.enqueue()
        later = await work.options(delay=60).enqueue()
        child = work.options(on_parent_failure="wait")
        await run_until_idle(timed)
        both = await child.options(depends_on=[done, failed, later]).enqueue()
        one = await child.options(depends_on=[done, failed]).enqueue()
        retry = f"parents ended without success: {failed.id} (dead); retry them"
        assert await both.why() == [f"it waits for {later.id} to complete", retry]
        assert await one.why() == [retry]

    async def test_running_cancelling_lost_and_blocked(
        self, timed: App, work, clock: ManualClock
    ) -> None:
        ref = await work.enqueue()
        await claim(timed)
        assert await ref.why() == ["it is running on worker w-gone"]
        await ref.cancel("enough")
        assert (await ref.why())[0].endswith("a cancel was asked for: enough")
        clock.advance(30)
        assert (await ref.why())[0].endswith("it is about to be rescued")
        keyed = await work.options(key="k", on_lost=OnLost.BLOCK).enqueue()
        await claim(timed)
        clock.advance(30)
        assert "release the key if it does not come back" in (await keyed.why())[0]

    async def test_detached(self, timed: App) -> None:
        @timed.task
        async def leaves(ctx: JobContext) -> object:
            return ctx.detach(60)

        ref = await leaves.enqueue()
        await run_until_idle(timed)
        assert (await ref.why())[0].endswith("has until 2030-01-01T12:01:00.000Z")

    async def test_ended(self, timed: App, work) -> None:
        ref = await work.enqueue()
        await run_until_idle(timed)
        assert await ref.why() == ["it has ended: completed; `retry` brings it back"]


class TestKeys:
    async def test_key_shows_who_runs_who_waits_and_takeovers(
        self, timed: App, work, clock: ManualClock
    ) -> None:
        keyed = work.options(key=("tenant", 7))
        refs = [await keyed.enqueue(n) for n in range(3)]
        job = await claim(timed)
        status = await timed.key("tenant", 7)
        assert status
        assert (status.name, status.queued, status.takeovers) == ("tenant:7", 2, 0)
        assert [active.id for active in status.active] == [refs[0].id]
        assert status.active[0].lease_until == job.lease_until == clock.now() + 30_000
        assert status.heartbeats == (None,), "its worker was never heard of"
        assert [waiting.id for waiting in status.next] == [refs[1].id, refs[2].id]
        clock.advance(30)
        await run_until_idle(timed)
        assert await timed.key("tenant", 7) is None
        assert await timed.key("tenant", "7") is None

    async def test_key_shows_when_its_owner_was_last_heard_of(
        self, timed: App, clock: ManualClock
    ) -> None:
        started, leave = asyncio.Event(), asyncio.Event()

        @timed.task(key="k")
        async def holds() -> None:
            started.set()
            await leave.wait()

        await holds.enqueue()
        async with running(timed):
            await within(started.wait())
            clock.advance(12)

            async def beaten() -> bool:
                status = await timed.key("k")
                return status is not None and status.heartbeats == (clock.now(),)

            await eventually(beaten)
            leave.set()

    async def test_one_of_a_key_runs_at_a_time_and_other_keys_do_not_wait(self, app: App) -> None:
        running_now: dict[str, int] = {}
        most: dict[str, int] = {}
        both = asyncio.Event()

        @app.task(key=("tenant", "/tenant"))
        async def work(tenant: str) -> None:
            running_now[tenant] = running_now.get(tenant, 0) + 1
            most[tenant] = max(most.get(tenant, 0), running_now[tenant])
            if len([t for t in running_now.values() if t]) == 2:
                both.set()
            await within(both.wait())
            running_now[tenant] -= 1

        refs = [await work.enqueue(tenant) for tenant in "aaaab"]
        async with running(app):
            for ref in refs:
                await ref.wait(10)
        assert most == {"a": 1, "b": 1}

    async def test_max_active_alone_limits_the_type(self, timed: App) -> None:
        now, most = [0], [0]

        @timed.task(max_active=2)
        async def work() -> None:
            now[0] += 1
            most[0] = max(most[0], now[0])
            await asyncio.sleep(0)
            now[0] -= 1

        for _ in range(6):
            await work.enqueue()
        assert (await run_until_idle(timed)).completed == 6
        assert most == [2]

    async def test_blocked_key_is_released_by_hand(
        self, timed: App, work, clock: ManualClock
    ) -> None:
        keyed = work.options(key="k", on_lost="block")
        first, second = await keyed.enqueue(1), await keyed.enqueue(2)
        await claim(timed)
        assert await timed.release_key("k") == 0, "its lease has not run out"
        clock.advance(31)
        assert (await run_until_idle(timed)).completed == 0
        assert await timed.release_key("k", reason="owner is gone") == 1
        assert (await run_until_idle(timed)).completed == 1
        assert (await first.get()).state is State.STALE
        assert await second.result() == 2

    async def test_fail_stale_ends_the_lost_job_and_runs_the_next(
        self, timed: App, work, clock: ManualClock
    ) -> None:
        keyed = work.options(key="k", on_lost="fail-stale")
        first, second = await keyed.enqueue(1), await keyed.enqueue(2)
        await claim(timed)
        clock.advance(30)
        await run_until_idle(timed)
        assert [(await ref.get()).state for ref in (first, second)] == [
            State.STALE,
            State.COMPLETED,
        ]


class TestEvents:
    async def test_journal_tells_every_change_of_the_service_in_order(
        self, timed: App, url: str
    ) -> None:
        other = App(await timed.engine(), service="other", clock=timed.clock)
        work = timed.task(type="w")(lambda: 1)
        await other.task(type="w")(lambda: 1).enqueue()
        ref = await work.enqueue()
        await run_until_idle(timed)
        entries = [entry async for entry in timed.events()]
        assert [str(entry.event.event) for entry in entries] == ["created", "started", "completed"]
        assert {entry.event.job_id for entry in entries} == {ref.id}
        assert entries[0].payload is not None
        assert bytes(entries[-1].result or b"") == b"1"
        later = [entry async for entry in timed.events(after=entries[0].event.seq)]
        assert len(later) == 2

    async def test_journal_is_filtered_by_job_queue_type_and_event(self, timed: App) -> None:
        one = timed.task(type="one")(lambda: 1)
        two = timed.task(type="two", queue="other")(lambda: 2)
        first, second = await one.enqueue(), await two.enqueue()
        await run_until_idle(timed)

        async def seen(**wanted: str) -> list[tuple[str, str]]:
            found = [entry.event async for entry in timed.events(**wanted)]  # type: ignore[arg-type]
            return [(event.job_id, str(event.event)) for event in found]

        mine = [(first.id, "created"), (first.id, "started"), (first.id, "completed")]
        assert await seen(job_id=first.id) == mine
        assert await seen(queue="default") == mine
        assert await seen(type="one") == mine
        assert await seen(event="created") == [(first.id, "created"), (second.id, "created")]
        assert await seen(job_id=first.id, event="started") == mine[1:2]
        with pytest.raises(InvalidValue, match="known are job_id, queue, type, event"):
            await seen(state="active")

    async def test_followed_journal_goes_on_as_things_happen(self, app: App) -> None:
        work, seen = app.task(type="w")(lambda: 1), []

        async def follow() -> None:
            async for entry in app.events(follow=True):
                seen.append(str(entry.event.event))  # noqa: PERF401  # it never ends

        following = asyncio.create_task(follow())
        async with running(app):
            await (await work.enqueue()).wait(10)
            await eventually(lambda: len(seen) == 3)
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        assert seen == ["created", "started", "completed"]


class TestFind:
    async def test_jobs_are_found_by_what_is_asked(self, timed: App, work) -> None:
        refs = [await work.options(queue="ab"[n % 2], tags=[f"t{n}"]).enqueue(n) for n in range(6)]
        assert [job.id async for job in timed.find(limit=2)] == [refs[5].id, refs[4].id]
        assert len([job async for job in timed.find(limit=None)]) == 6
        assert len(await jobs(timed, queue="a")) == 3
        assert [job.id for job in await jobs(timed, tag="t3")] == [refs[3].id]
        assert len([job async for job in timed.find(states=["pending", State.DEAD])]) == 6
        assert [job.id async for job in timed.find(text='"n":4')] == [refs[4].id]

    async def test_jobs_are_found_by_the_states_that_people_see(self, timed: App, work) -> None:
        later = await work.options(delay=60, queue="other").enqueue(1)
        first, second = [await work.options(key="k").enqueue(n) for n in (2, 3)]
        held = await work.options(queue="held").enqueue(4)
        await timed.queue("held").pause()

        async def found(*states: str) -> set[str]:
            return {job.id async for job in timed.find(states=states)}

        assert await found("scheduled") == {later.id}
        assert await found("parked") == {second.id}
        assert await found("paused") == {held.id}
        assert await found("parked", "scheduled") == {second.id, later.id}
        assert await found("parked", "pending") == {later.id, first.id, second.id, held.id}
        assert [job.id async for job in timed.find(limit=1, states="scheduled")] == [later.id]
        assert await found("detached") == set()

    async def test_dead_letters_are_replayed_and_dismissed_by_what_is_asked(
        self, timed: App, work
    ) -> None:
        fails = timed.task(type="fails", max_tries=1)(lambda n: 1 / 0)
        refs = [await fails.options(queue="ab"[n % 2]).enqueue(n) for n in range(5)]
        waiting = await work.options(delay=60, queue="a").enqueue()
        await run_until_idle(timed)

        assert await timed.replay(queue="b") == 2
        assert (await refs[1].get()).state is State.PENDING
        assert await timed.dismiss("no use", text='"n":4') == 1
        assert (await refs[4].get()).state is State.DISMISSED
        assert (await story(timed, refs[4].id))[-1] == "dismissed"
        assert await timed.dismiss(queue="b") == 0
        assert await timed.replay() == 2
        assert await timed.replay() == 0
        assert await story(timed, waiting.id) == ["created"]
        for states in ("failed", "dead"):
            with pytest.raises(InvalidValue, match=r"^states: only dead jobs"):
                await timed.replay(states=states)

    async def test_mistakes_are_named(self, timed: App) -> None:
        with pytest.raises(InvalidValue, match=r"^colour: is not something to look for"):
            _ = [job async for job in timed.find(colour="red")]
        with pytest.raises(InvalidValue, match=r"^states: "):
            _ = [job async for job in timed.find(states=["tired"])]

    async def test_services_are_apart(self, timed: App) -> None:
        other = App(await timed.engine(), service="other", clock=timed.clock)
        ref = await other.task(type="w")(lambda: 1).enqueue()
        assert await jobs(timed) == []
        assert (await run_until_idle(timed)).tries == 0
        assert [job.id for job in await jobs(other)] == [ref.id]
        assert [counted.service for counted in await other.count()] == ["other"]


class TestQueues:
    async def test_queue_is_set_read_listed_purged_and_deleted(self, timed: App, work) -> None:
        queue = timed.queue("q")
        await queue.set(max_tries=30, max_age=60, force=True)
        await work.options(queue="q").enqueue()
        info = await queue.info()
        assert (info.settings.max_tries, info.settings.max_age) == (30, 60_000)
        assert [(one.name, one.counts) for one in await timed.queues()] == [
            ("q", {State.PENDING: 1})
        ]
        with pytest.raises(MigrationNeeded, match="max_tries is lowered"):
            await queue.set(max_tries=1)
        with pytest.raises(InvalidValue, match=r"^colour: is not a queue setting"):
            await queue.set(colour=1)
        with pytest.raises(Refused, match="holds 1 waiting jobs"):
            await queue.delete()
        assert await queue.purge() == 1
        assert await queue.delete() == 0
        assert await timed.queues() == []

    async def test_first_limit_of_a_queue_without_jobs_or_settings_is_an_update(
        self, timed: App, work
    ) -> None:
        assert await timed.queue("unused").set(max_active=5) is Kind.UPDATE
        await work.options(queue="used").enqueue()
        for name in ("unused", "used"):
            with pytest.raises(MigrationNeeded, match="max_active is lowered"):
                await timed.queue(name).set(max_active=1)

    async def test_running_worker_follows_pause_and_resume(self, app: App) -> None:
        work = app.task(type="w")(lambda: 1)
        async with running(app) as worker:
            await worker.until_idle()
            await app.queue("default").pause()
            ref = await work.enqueue()
            assert (await ref.get()).state is State.PENDING
            await app.queue("default").resume()
            assert (await ref.wait(5)).state is State.COMPLETED
