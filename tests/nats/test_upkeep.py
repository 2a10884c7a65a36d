"""Leases and settings on NATS by the real clock: the server's timers say when to look."""

from __future__ import annotations

import asyncio
import multiprocessing
from typing import Any

import pytest

from headrace.core.change import Applied, Change
from headrace.core.claims import Claimed, ClaimRequest, Share
from headrace.core.errors import AppClosed, EngineUnavailable
from headrace.core.model import KeyLimit, OnLost
from headrace.core.outcome import Completed, Detached
from headrace.core.queue import QueueSettings
from headrace.engine.nats import NatsEngine, session, upkeep
from headrace.engine.nats.layout import WATCH
from headrace.engine.nats.lines import Line
from headrace.engine.nats.session import Session
from headrace.engine.nats.tickets import Place
from headrace.engine.nats.wire.errors import Disconnected
from headrace.testing.conformance.bench import LEASE, Bench, key
from headrace.testing.nats import NatsServer
from tests.nats.real import RealBench, session_of
from tests.support import eventually

LIMIT = 20.0
"""Seconds that something may take; far more than it does."""


# Leases


async def test_limit_of_a_detached_job_is_noticed_long_before_its_first_lease(
    real: RealBench,
) -> None:
    await real.add("a")
    job = await real.start(lease=600_000)
    await real.settle(job, Detached(until=real.now + 300))
    assert await eventually(real.lapsed) == ["a"]


async def test_lease_is_noticed_though_its_timer_was_lost(
    real: RealBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "MISSED", 0)
    await real.add("a")
    await real.start(lease=50)
    home = await session_of(real)
    await home.js.purge(home.layout.stream, home.layout.timer("svc", WATCH, ">"))

    async def noticed() -> list[str]:
        await real.prune()
        return await real.lapsed()

    await eventually(noticed)


async def test_lease_that_waits_for_an_operator_is_watched_no_longer(real: RealBench) -> None:
    await real.add("a", key=key("tenant", on_lost=OnLost.BLOCK))
    await real.start(lease=50)
    home = await session_of(real)
    consumer = f"CONSUMER.INFO.{home.layout.stream}.svc~{WATCH}~due"

    async def told() -> bool:
        assert await real.lapsed() == []
        found: dict[str, Any] = await home.js.api(consumer, None)
        return found["ack_floor"]["consumer_seq"] > 0

    await eventually(told)
    assert home.watch.leases == {}


# Claims


async def test_jobs_whose_claim_failed_after_they_started_come_with_the_next(
    real: RealBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    for id in ("warm", "a", "b"):
        await real.add(id)
    await real.run()  # from here on the queue is known
    ending = await real.settled(await real.start(), Completed())
    home = await session_of(real)
    finish = home.committer.finish

    async def failing() -> None:
        if "b" in home.held:
            monkeypatch.undo()
            raise EngineUnavailable("the answer is lost")
        await finish()

    monkeypatch.setattr(home.committer, "finish", failing)
    with pytest.raises(EngineUnavailable):
        await settle_and_claim(real, ending)
    claimed = await settle_and_claim(real, ending)
    assert [type(answer) for answer in claimed.answers] == [Applied]
    assert [(job.id, job.tries) for job in claimed.jobs] == [("b", 1)]


@pytest.mark.parametrize("limit", [key("tenant"), None], ids=["keyed", "plain"])
async def test_outcomes_are_stored_though_nothing_can_be_claimed(
    real: RealBench, monkeypatch: pytest.MonkeyPatch, limit: KeyLimit | None
) -> None:
    await real.add("warm")
    await real.run()
    await real.add("a", key=limit)
    ending = await real.settled(await real.start(), Completed())

    async def failing(*_: object, **__: object) -> None:
        raise EngineUnavailable("the consumer does not answer")

    monkeypatch.setattr(Line, "gather", failing)
    claimed = await settle_and_claim(real, ending)
    assert [type(answer) for answer in claimed.answers] == [Applied]
    assert await real.state("a") == "completed"
    with pytest.raises(EngineUnavailable):
        await settle_and_claim(real)


async def settle_and_claim(bench: Bench, *changes: Change) -> Claimed:
    request = ClaimRequest(
        service="svc", worker="w1", shares=(Share("q", 5),), limit=5, lease=LEASE, now=bench.now
    )
    return await bench.engine.claim(request, changes)


# Settings


async def test_settings_are_noticed_though_their_bell_was_not_heard(
    real: RealBench, plain_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "FRESH", 0.1)
    await real.add("warm")
    await real.run()
    home = await session_of(real)
    assert home.known_settings("svc", "q")
    monkeypatch.setattr(Session, "tell_documents", lambda *_: None)
    assert isinstance(real.engine, NatsEngine)
    other = NatsEngine(f"{plain_server.url}?namespace={real.engine.namespace}")
    await other.open()
    try:
        await RealBench(other).set_queue(QueueSettings(paused=True))
    finally:
        await other.close()

    async def paused() -> bool:
        settings = home.known_settings("svc", "q")
        return settings is not None and settings.paused

    await eventually(paused)


# Forks


def _in_child(engine: NatsEngine, said: Any) -> None:
    async def main() -> None:
        try:
            await Bench(engine).add("refused")
        except AppClosed as error:
            said.put(str(error))
        await engine.open()
        said.put((await Bench(engine).add("reopened")).id)
        await engine.close()

    asyncio.run(main())


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
async def test_forked_child_opens_the_engine_for_itself(bench: Bench) -> None:
    await bench.add("a")
    context = multiprocessing.get_context("fork")
    said = context.Queue()
    child = context.Process(target=_in_child, args=(bench.engine, said))

    child.start()
    refusal = await asyncio.to_thread(said.get, True, LIMIT)
    id = await asyncio.to_thread(said.get, True, LIMIT)
    await asyncio.to_thread(child.join)

    assert "open it first" in refusal
    assert id == "reopened"
    assert await bench.exists("reopened")
    assert (await bench.add("b")).id == "b"


# Tickets


@pytest.mark.parametrize("delay", [0, 1])
async def test_job_without_a_ticket_is_lined_up_again(
    real: RealBench, monkeypatch: pytest.MonkeyPatch, delay: int
) -> None:
    monkeypatch.setattr(upkeep, "MISSED", 0)
    await real.add("warm")
    await real.run()
    await real.add("a", delay=delay)
    home = await session_of(real)
    line = home.line(Place("svc", "q"))

    async def lose() -> bool:
        tickets, _ = await line.gather(10, paused=False)
        line.give_up(tickets)
        return bool(tickets)

    await eventually(lose)
    await home.connection.flush()
    assert await real.claim() == []

    async def claimed() -> list[str]:
        await real.prune()
        return await real.claimed_ids()

    assert await eventually(claimed) == ["a"]


async def test_jobs_that_stand_in_line_are_not_lined_up_again(
    real: RealBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "MISSED", 0)
    for id in ("a", "b"):
        await real.add(id)
    home = await session_of(real)
    before = home.js.highest
    await real.prune()
    assert home.js.highest == before
    assert await real.claimed_ids() == ["a", "b"]


async def test_no_job_starts_before_the_slot_that_it_takes_was_left(real: RealBench) -> None:
    """The connection breaks off after the outcome was sent, and before the next start is."""
    for id in ("warm", "a", "b"):
        await real.add(id)
    await real.run()
    done = await real.start()
    ending = await real.settled(done, Completed())
    home = await session_of(real)
    store, subjects = home.js.store, list[bytes]()

    def losing(subject: bytes, payload: bytes, headers: bytes = b"") -> asyncio.Future[int]:
        subjects.append(subject)
        if subject.endswith(b".completed") and len(subjects) == 1:
            lost = asyncio.get_running_loop().create_future()
            lost.set_exception(Disconnected("the connection was lost"))
            return lost
        return store(subject, payload, headers)

    home.js.store = losing  # pyright: ignore[reportAttributeAccessIssue]
    claimed = await settle_and_claim(real, ending)
    assert [job.id for job in claimed.jobs] == ["b"]
    (answer,) = claimed.answers
    assert isinstance(answer, Applied)
    assert answer.job.version < claimed.jobs[0].version


async def test_what_timers_left_is_deleted_once_it_was_seen_to(real: RealBench) -> None:
    session = await session_of(real)
    due = f"{session.layout.namespace}.due.>".encode()

    async def left() -> int:
        return len(await session.js.read_all(session.layout.stream, due))

    for n in range(5):
        await real.add(f"a{n}")
        await real.complete(await real.start(lease=300))
    for n in range(5):
        await real.add(f"b{n}", delay=300)

    async def fired() -> bool:
        return await left() >= 10

    await eventually(fired, LIMIT)
    assert sorted(await real.claimed_ids()) == [f"b{n}" for n in range(5)]

    async def deleted() -> bool:
        assert await real.lapsed() == []
        await real.prune()
        return await left() == 0

    await eventually(deleted, LIMIT)


async def test_timers_are_right_again_after_the_clock_of_the_server_was_moved(
    real: RealBench,
) -> None:
    session = await session_of(real)
    session._server_ahead += 3_600_000  # pyright: ignore[reportPrivateUsage]  # as if back by an hour
    await real.prune()
    await real.add("a", delay=100)

    async def claimed() -> bool:
        return await real.claimed_ids() == ["a"]

    await eventually(claimed, LIMIT)
