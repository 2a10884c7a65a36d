"""Operations that share a step: none of them waits for ever for another, or takes it with it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from headrace import App
from headrace.core import actions
from headrace.core.change import Applied, NotApplied
from headrace.core.errors import EngineUnavailable, InvalidValue
from headrace.core.outcome import Completed
from headrace.core.queue import QueueSettings
from headrace.core.states import State
from headrace.engine.nats import NatsEngine, commit
from headrace.engine.nats.commit import Committer, Work
from headrace.engine.nats.lines import Line
from headrace.engine.nats.tickets import Place
from headrace.testing.conformance.bench import key, raw
from headrace.testing.nats import NatsServer
from tests.nats.real import RealBench, session_of
from tests.support import eventually

pytestmark = [pytest.mark.timeout(60), pytest.mark.usefixtures("nobody_sure")]

LIMIT = 10.0
"""Seconds that a step may take; far more than it does."""

HUGE = raw("x" * 1_048_000)
"""A result that no message holds."""


@pytest.mark.parametrize("limited", ["by its queue", "by its key"])
async def test_outcome_is_stored_beside_a_ticket_that_is_out_of_date(
    real: RealBench, limited: str
) -> None:
    limit = key("tenant", 2) if limited == "by its key" else None
    if limit is None:
        await real.set_queue(QueueSettings(max_active=3))
    await real.add("a", key=limit)
    job = await real.start()
    await real.cancel(await real.add("b", key=limit))
    ending = await real.settled(job, Completed())
    (await session_of(real)).committer.forget()  # as any conflict does
    async with asyncio.timeout(LIMIT):
        claimed = await real.engine.claim(real.request(), [ending])
    assert [type(answer) for answer in claimed.answers] == [Applied]


@pytest.mark.parametrize("capped", [False, True])
async def test_outcome_that_is_too_large_is_refused_though_a_claim_comes_with_it(
    real: RealBench, capped: bool
) -> None:
    if capped:
        await real.set_queue(QueueSettings(max_active=3))
    await real.add("a", key=key("one"))
    job = await real.start()
    await real.add("b", key=key("two"))
    ending = await real.settled(job, Completed(HUGE))
    async with asyncio.timeout(LIMIT):
        with pytest.raises(InvalidValue):
            await real.engine.claim(real.request(1), [ending])
    assert await real.states("a", "b") == [State.ACTIVE, State.PENDING]


async def test_jobs_that_a_claim_started_are_handed_out_though_its_next_look_fails(
    real: RealBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await real.add("warm")
    await real.run()
    await real.add("k", key=key("one"))
    ending = await real.settled(await real.start(), Completed())
    await real.add("b")
    gather, looks = Line.gather, 0

    async def failing(line: Line, want: int, paused: bool):
        nonlocal looks
        looks += 1
        if looks == 2:
            raise EngineUnavailable("the consumer does not answer")
        return await gather(line, want, paused)

    monkeypatch.setattr(Line, "gather", failing)
    claimed = await real.engine.claim(real.request(), [ending])
    assert looks == 2
    assert [job.id for job in claimed.jobs] == ["b"]
    assert [type(answer) for answer in claimed.answers] == [Applied]


async def test_dependents_are_told_though_whoever_goes_on_fails_once(
    real: RealBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await real.add("p")
    names = [f"c{n}" for n in range(400)]
    groups = [[real.new(name, queue="other", depends_on=("p",))] for name in names]
    await real.engine.insert(groups, real.now)
    job = await real.start()

    async def dies(committer: Committer) -> bool:
        committer.unfinished.clear()
        return False

    with monkeypatch.context() as patch:
        patch.setattr(Committer, "finish", dies)
        await real.complete(job)
    resuming, attempts = commit._resuming, 0  # pyright: ignore[reportPrivateUsage]

    def failing(job_id: str, at: int) -> Work[None]:
        nonlocal attempts
        attempts += 1
        return away if attempts == 1 else resuming(job_id, at)

    def away(_: object, __: object) -> None:
        raise EngineUnavailable("the server is away")

    monkeypatch.setattr(commit, "_resuming", failing)

    async def told() -> bool:
        """A timer says soon that somebody is to go on."""
        await real.engine.claim(real.request())
        found = await real.engine.get(names)
        return all(details and details.job.state is State.PENDING for details in found)

    await eventually(told, 30)
    assert attempts > 1


@pytest.mark.parametrize("limited", ["by its queue", "by its key"])
async def test_two_workers_end_all_jobs_though_some_are_cancelled(
    plain_server: NatsServer, tmp_path: Path, limited: str
) -> None:
    url = f"{plain_server.url}?namespace={tmp_path.name[-20:]}&projection={tmp_path}/p"
    apps = [App(url) for _ in range(3)]
    limit = {"key": ("tenant", "/tenant"), "max_active": 3} if limited == "by its key" else {}

    async def step(n: int, tenant: int) -> int:
        await asyncio.sleep(0.002)
        return n

    tasks = [app.task(type="step", queue="q", **limit)(step) for app in apps]
    one, two, producer = apps
    async with one, two, producer:
        if not limit:
            await producer.queue("q").set(max_active=3, force=True)

        async def produce() -> None:
            for n in range(40):
                ref = await tasks[2].enqueue(n, 1)
                if n % 2:
                    await ref.cancel()

        async def ended() -> bool:
            states = {counted.state for counted in await producer.count()}
            return states <= {State.COMPLETED, State.CANCELLED}

        async with one.working(queues="q", concurrency=4), two.working(queues="q", concurrency=4):
            await asyncio.gather(*(produce() for _ in range(3)))
            await eventually(ended, 40)


async def test_end_goes_on_though_the_parked_job_of_its_key_was_cancelled_by_somebody_else(
    real: RealBench, plain_server: NatsServer, tmp_path: Path
) -> None:
    await real.add("a", key=key("tenant"))
    await real.add("b", key=key("tenant"))
    other = NatsEngine(
        f"{plain_server.url}?namespace={tmp_path.name[-20:]}&projection={tmp_path}/other"
    )
    await other.open()
    there = RealBench(other)
    job = await there.start()
    assert job.id == "a"
    await real.cancel(await real.job("b"))
    async with asyncio.timeout(LIMIT):
        await there.complete(job)
    assert await real.states("a", "b") == [State.COMPLETED, State.CANCELLED]
    await other.close()


class InStep:
    """Claims that have gathered their tickets wait for each other."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.gathered, self.go_on = 0, asyncio.Event()
        gather = Line.gather

        async def in_step(line: Line, want: int, paused: bool):
            found = await gather(line, want, paused)
            self.gathered += 1
            await self.go_on.wait()
            return found

        monkeypatch.setattr(Line, "gather", in_step)

    async def reached(self, claims: int) -> None:
        await eventually(lambda: self.gathered == claims)


async def test_ticket_is_kept_though_a_claim_beside_it_could_not_start_its_job(
    real: RealBench, plain_server: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await real.add("a", key=key("one"))
    other = NatsEngine(
        f"{plain_server.url}?namespace={tmp_path.name[-20:]}&projection={tmp_path}/other"
    )
    await other.open()
    there, step = RealBench(other), InStep(monkeypatch)
    first = asyncio.create_task(real.claimed_ids(2))
    await step.reached(1)
    await there.cancel(await there.job("a"))
    await there.add("b", key=key("two"))
    second = asyncio.create_task(real.claimed_ids(2))
    await step.reached(2)
    (await session_of(real)).committer.forget()  # as any conflict does
    step.go_on.set()  # the first has a ticket that is out of date, and would start both jobs
    started = [*await first, *await second]

    async def claimed() -> bool:
        started.extend(await real.claimed_ids())
        return started == ["b"]

    await eventually(claimed, LIMIT)
    await other.close()


async def test_ticket_is_kept_though_its_job_gets_another_dependent(
    real: RealBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    for parent in ("a", "b"):
        await real.add(parent)
        await real.add(f"{parent}-1", queue="other", depends_on=(parent,))
    await real.add("first", priority=1)
    await real.run()  # gives up the tickets that are out of date
    step = InStep(monkeypatch)
    claim = asyncio.create_task(real.claimed_ids(1))
    await step.reached(1)
    step.go_on.set()
    adding = asyncio.create_task(real.add("b-2", queue="other", depends_on=("b",)))
    assert await claim == ["a"]
    await adding

    async def claimed() -> bool:
        return await real.claimed_ids() == ["b"]

    await eventually(claimed, LIMIT)


async def test_ticket_is_kept_though_a_claim_beside_it_has_an_older_one_of_its_job(
    real: RealBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await real.add("first", priority=1, key=key("one"))
    await real.add("a", key=key("two"))
    step = InStep(monkeypatch)
    first = asyncio.create_task(real.claimed_ids(1))
    await step.reached(1)
    await real.apply(actions.reprioritise(await real.job("a"), real.now, 4))
    await real.add("second", priority=1, key=key("three"))
    second = asyncio.create_task(real.claimed_ids(1))
    await step.reached(2)
    step.go_on.set()
    started = [*await first, *await second]
    line = (await session_of(real)).line(Place("svc", "q"))
    await eventually(lambda: not line.kept)
    await real.add("third", priority=1, key=key("four"))

    async def claimed() -> bool:
        started.extend(await real.claimed_ids(1))  # the older ticket is given up on the way
        return sorted(started) == ["a", "first", "second", "third"]

    await eventually(claimed, LIMIT)


async def test_claim_goes_on_though_a_late_outcome_of_a_job_that_it_looks_at_is_noted(
    real: RealBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await real.add("b")
    job = await real.start()
    await real.fail(job, after=0)
    await real.add("a", priority=1, key=key("tenant"))
    step = InStep(monkeypatch)
    claim = asyncio.create_task(real.claimed_ids(1))
    await step.reached(1)
    late = await real.settled(job, Completed())
    step.go_on.set()
    noting = asyncio.create_task(real.apply(late))
    assert await claim == ["a"]
    assert isinstance(await noting, NotApplied)

    async def claimed() -> bool:
        return await real.claimed_ids() == ["b"]

    await eventually(claimed, LIMIT)
