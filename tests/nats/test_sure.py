"""Jobs that are sure of the slot of their key start and end by plain messages; whoever takes the
room away is seen by them, whichever process they run in."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Sequence

import pytest

from headrace.core.model import OnLost, Stage, WhenFull
from headrace.core.queue import QueueSettings, Retention
from headrace.core.states import FINAL, EventType, State
from headrace.engine.nats import NatsEngine
from headrace.engine.nats.keyed import SURE
from headrace.engine.nats.parts import KeyRecord, Part, key_part
from headrace.engine.nats.tickets import Place
from headrace.engine.nats.transaction import Transaction
from headrace.testing.conformance.bench import Bench, key
from tests.nats.real import session_of

K = key("tenant")
PAIR = key("tenant", max_active=2)


@pytest.fixture
async def other(bench: Bench) -> AsyncIterator[Bench]:
    """The same store, seen from elsewhere."""
    engine = NatsEngine(bench.engine.url)
    await engine.open()
    yield Bench(engine)
    await engine.close()


async def record(bench: Bench) -> KeyRecord:
    """What is stored of the key, without a look at its jobs."""
    session, part = await session_of(bench), key_part("svc", K.hash)
    transaction = Transaction(0, session.rules)
    await session.loader.load(transaction, [part])
    return transaction.known[part].value


async def written(bench: Bench) -> int:
    """How many messages the stream has taken."""
    session = await session_of(bench)
    found = await session.js.api(f"STREAM.INFO.{session.layout.stream}")
    return found["state"]["last_seq"]


async def test_job_alone_with_its_key_starts_and_ends_without_a_word_in_its_record(
    bench: Bench,
) -> None:
    await bench.add("first")  # makes the lines of the queue
    await bench.run()
    await bench.add("a", key=K)
    assert (await record(bench)).sure == ["a"]
    before = await written(bench)
    job = await bench.start()
    assert (await bench.key(K)).active == (job,)
    done = await bench.complete(job, 7)
    assert await written(bench) == before + 3  # started, the timer of its lease, completed
    assert (await bench.job("a")) == done
    assert await bench.engine.key("svc", K.hash) is None


async def test_no_more_jobs_of_a_key_are_sure_than_may_run(bench: Bench) -> None:
    for name in "abc":
        await bench.add(name, key=PAIR)
    assert (await record(bench)).sure == []
    assert await bench.claimed_ids() == ["a", "b"]


async def test_jobs_of_a_key_with_room_for_many_are_sure_up_to_a_number(bench: Bench) -> None:
    wide = key("tenant", max_active=100)
    names = [f"j{n:02}" for n in range(SURE + 3)]
    for name in names:
        await bench.add(name, key=wide)
    assert (await record(bench)).sure == names[:SURE]
    assert await bench.claimed_ids() == names
    assert len((await bench.key(wide)).active) == len(names)


async def test_job_that_has_to_wait_is_let_in_by_one_that_was_sure_and_stood_ready(
    bench: Bench, other: Bench
) -> None:
    await bench.add("a", key=K)
    await other.add("b", key=K)
    assert (await record(bench)).sure == []
    assert await bench.claimed_ids() == ["a"]
    assert await other.claimed_ids() == []
    await bench.complete(await bench.job("a"))
    assert await other.claimed_ids() == ["b"]


async def test_job_that_has_to_wait_is_let_in_by_one_that_was_sure_and_ran(
    bench: Bench, other: Bench
) -> None:
    await bench.add("a", key=K)
    job = await bench.start()
    assert (await other.add("b", key=K)).stage is Stage.PARKED
    assert (await other.key(K)).active[0].id == "a"
    assert await other.claimed_ids() == []
    assert (await bench.complete(job)).state is State.COMPLETED
    assert await other.claimed_ids() == ["b"]


async def test_job_is_sure_again_once_the_sure_one_before_it_has_ended(
    bench: Bench, other: Bench
) -> None:
    await bench.add("a", key=K)
    await bench.run()
    assert (await other.add("b", key=K)).stage is Stage.READY
    assert (await record(bench)).sure == ["b"]
    assert (await bench.key(K)).queued == 1


async def test_jobs_of_one_key_in_two_queues_run_one_after_the_other(
    bench: Bench, other: Bench
) -> None:
    await bench.add("a", key=K, queue="one")
    await other.add("b", key=K, queue="two")
    first = await bench.start("two")
    assert first.id == "b"
    assert await other.claimed_ids(10, "one") == []
    await bench.complete(first)
    assert await other.claimed_ids(10, "one") == ["a"]


async def test_ticket_from_before_another_job_came_starts_nothing_too_many(
    bench: Bench, other: Bench
) -> None:
    """A worker that was handed the ticket of a sure job, and another that starts one beside it."""
    await bench.add("a", key=K, queue="one")
    session = await session_of(other)
    held = asyncio.Event(), asyncio.Event()
    line = session.line(Place("svc", "one"))
    gather = line.gather

    async def slowly(want: int, paused: bool):
        found = await gather(want, paused)
        held[0].set()
        await held[1].wait()
        return found

    line.gather = slowly  # pyright: ignore[reportAttributeAccessIssue]
    late = asyncio.create_task(other.claimed_ids(1, "one"))
    await held[0].wait()
    await bench.add("b", key=K, queue="two")
    assert await bench.claimed_ids(1, "two") == ["b"]
    held[1].set()
    assert await late == []


async def test_depth_counts_sure_jobs_as_they_are(bench: Bench) -> None:
    shallow = key("tenant", max_queued=1, when_full=WhenFull.REJECT)
    await bench.add("a", key=K)
    await bench.start()
    assert (await bench.submit("b", key=shallow)).taken
    assert not (await bench.submit("c", key=shallow)).taken


@pytest.mark.parametrize("starts", [False, True])
async def test_sure_job_can_be_cancelled_and_come_back(bench: Bench, starts: bool) -> None:
    job = await bench.add("a", key=K)
    if starts:
        await bench.complete(await bench.start())
        job = await bench.job("a")
    else:
        await bench.cancel(job)
        job = await bench.job("a")
    assert await bench.engine.key("svc", K.hash) is None
    await bench.retry(job)
    assert (await bench.key(K)).queued == 1
    await bench.add("b", key=K)
    assert await bench.claimed_ids() == ["a"]


async def test_sure_job_whose_worker_is_gone_is_superseded_by_one_that_waits(bench: Bench) -> None:
    stale = key("tenant", on_lost=OnLost.FAIL_STALE)
    await bench.add("a", key=stale)
    await bench.start()
    await bench.add("b", key=stale)
    bench.tick(60_000)
    await bench.rescue()
    assert (await bench.job("a")).state is State.STALE
    assert (await bench.key(stale)).takeovers == 1
    assert await bench.claimed_ids() == ["b"]


async def test_dependent_of_a_sure_job_runs_after_it(bench: Bench, other: Bench) -> None:
    await bench.add("a", key=K)
    job = await bench.start()
    await other.add("child", depends_on=("a",))
    await bench.complete(job)
    assert await bench.claimed_ids() == ["child"]


async def test_depth_counts_sure_jobs_as_they_are_beside_others_of_a_group(bench: Bench) -> None:
    shallow = key("tenant", max_active=2, max_queued=0)
    await bench.add("first")  # makes the lines of the queue
    await bench.run()
    await bench.add("a", key=PAIR)
    await bench.run()
    verdicts = await bench.insert(bench.new("b", key=PAIR), bench.new("c", key=shallow))
    assert [verdict.taken for verdict in verdicts] == [True, True]


async def test_job_that_was_made_between_two_looks_is_not_taken_for_one_that_has_ended(
    bench: Bench, other: Bench
) -> None:
    """A step asks for a job that is not there yet, and finds it in the record of its key."""
    await bench.add("first")  # makes the lines of the queue
    await bench.run()
    loader = (await session_of(bench)).loader
    load = loader._load_records  # pyright: ignore[reportPrivateUsage]

    async def late(transaction: Transaction, parts: Sequence[Part]) -> None:
        if not await bench.exists("a"):
            await other.add("a", key=K)
        await load(transaction, parts)

    loader._load_records = late  # pyright: ignore[reportPrivateUsage]
    child, beside = bench.new("child", depends_on=("a",)), bench.new("b", key=K)
    await bench.engine.insert([[child], [beside]], bench.now)
    assert await bench.claimed_ids() == ["a"]


async def test_delayed_jobs_come_into_line_though_each_makes_others_unsure(bench: Bench) -> None:
    """More than one step can tell."""
    tags = [key(f"tenant-{n}", max_active=3) for n in range(250)]
    sure = [[bench.new(key=tag, queue="busy")] for tag in tags for _ in range(3)]
    await bench.engine.insert(sure, bench.now)
    delayed = [[bench.new(f"d{n}", key=tag, delay=1_000)] for n, tag in enumerate(tags)]
    await bench.engine.insert(delayed, bench.now)
    bench.tick(1_000)
    assert len(await bench.claimed_ids(len(tags))) == len(tags)


async def test_dependents_come_into_line_though_each_makes_others_unsure(bench: Bench) -> None:
    """More than one step can tell."""
    await bench.add("parent")
    job = await bench.start()
    tags = [key(f"tenant-{n}") for n in range(300)]
    names = [f"c{n}" for n in range(len(tags))]
    sure = [[bench.new(key=tag, queue="busy")] for tag in tags]
    await bench.engine.insert(sure, bench.now)
    children = [
        [bench.new(name, key=tag, depends_on=("parent",))]
        for name, tag in zip(names, tags, strict=True)
    ]
    await bench.engine.insert(children, bench.now)
    await bench.complete(job)
    assert len(await bench.claimed_ids(len(tags))) == len(tags)


async def test_job_that_was_pruned_and_comes_again_counts_once(bench: Bench, other: Bench) -> None:
    """Who prunes has written the record of the key before, and others since."""
    await bench.set_queue(QueueSettings(retention={State.COMPLETED: Retention(age=1_000)}))
    await bench.add("before", key=PAIR)
    await bench.run()
    await other.add("first")  # makes the lines of the queue known there
    await other.run()
    await other.add("a", key=PAIR)
    await other.run()
    assert (await record(other)).sure == ["a"]
    bench.tick(60_000)
    await bench.prune()
    assert (await record(bench)).empty
    await other.add("a", key=PAIR)
    assert (await bench.key(PAIR)).queued == 1


async def test_record_of_a_key_goes_with_its_last_job(bench: Bench) -> None:
    await bench.set_queue(QueueSettings(retention={State.COMPLETED: Retention(age=1_000)}))
    await bench.add("first")  # makes the lines of the queue
    await bench.run()
    await bench.add("a", key=K)
    await bench.run()
    assert not (await record(bench)).empty
    bench.tick(60_000)
    await bench.prune()
    session = await session_of(bench)
    (left,) = await session.js.last(session.layout.stream, [session.layout.key("svc", K.hash)])
    assert left.headers
    assert b"Nats-TTL" in left.headers
    assert (await record(bench)).empty


async def test_limit_holds_whoever_adds_starts_and_ends(bench: Bench, other: Bench) -> None:
    """Two processes, two queues and few keys: the journal tells how many ran at a time."""
    chance = random.Random(5)
    limits = {f"k{n}": 1 + n % 3 for n in range(6)}
    made = 120

    async def produce(here: Bench, numbers: range) -> None:
        for n in numbers:
            name = chance.choice(list(limits))
            tag = key(name, max_active=limits[name])
            await here.add(f"{name}-{n:04}", key=tag, queue=chance.choice(["q", "r"]))

    async def work(here: Bench, worker: str) -> None:
        quiet = 0
        while quiet < 20:
            jobs = await here.claim(chance.randint(1, 4), "q", "r", worker=worker)
            quiet = 0 if jobs else quiet + 1
            await asyncio.gather(*(here.complete(job) for job in jobs))

    await asyncio.gather(
        produce(bench, range(0, made, 2)),
        produce(other, range(1, made, 2)),
        work(bench, "w1"),
        work(other, "w2"),
    )
    await work(bench, "w3")
    running: Counter[str] = Counter()
    ended = 0
    for entry in await bench.engine.journal(0, 10_000):
        name = entry.event.job_id.partition("-")[0]
        if entry.event.event is EventType.STARTED:
            running[name] += 1
            assert running[name] <= limits[name]
        elif entry.event.state in FINAL:
            running[name] -= 1
            ended += 1
    assert ended == made
