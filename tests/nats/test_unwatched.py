"""Jobs that run without a timer: their tickets bring somebody who looks, whatever happens."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import time
from collections.abc import AsyncIterator, Sequence

import msgspec
import pytest

from headrace.core.claims import ClaimRequest
from headrace.core.model import Job, Progress
from headrace.core.outcome import Completed, Detached
from headrace.core.queue import QueueSettings
from headrace.engine.nats import NatsEngine, claiming, lines, plain, unwatched, upkeep
from headrace.engine.nats.layout import WATCH
from headrace.engine.nats.lines import ACK_WAIT
from headrace.engine.nats.tickets import Ticket
from headrace.engine.nats.wire.errors import TimedOut
from headrace.testing.nats import NatsServer
from tests.nats.real import RealBench, session_of
from tests.support import LIMIT, eventually

SHORT = ACK_WAIT // 1_000_000 - 1
"""A lease that is over before a ticket comes to somebody else."""


async def timers(bench: RealBench) -> list[set[str]]:
    """The jobs that each timer of leases names."""
    home = await session_of(bench)
    found = await home.js.read_all(home.layout.stream, home.layout.timer("svc", WATCH, "lease.*"))
    return [set(msgspec.json.decode(one.payload, type=list[str])) for one in found]


async def kept(bench: RealBench) -> set[str]:
    """The jobs that are watched by tickets here."""
    home = await session_of(bench)
    return set(home.unwatched._kept)  # pyright: ignore[reportPrivateUsage]


async def given_up(bench: RealBench) -> None:
    """Returns when the server knows that nobody has a ticket."""
    home = await session_of(bench)
    consumer = f"CONSUMER.INFO.{home.layout.stream}.svc~q~5"

    async def none_left() -> bool:
        return (await home.js.api(consumer))["num_ack_pending"] == 0

    await eventually(none_left)


async def running(bench: RealBench, *ids: str) -> list[Job]:
    """Jobs that are started on their own, without a transaction."""
    await bench.add("first")  # the queue is known from now on
    await bench.complete(await bench.start(lease=SHORT))
    await bench.add("warm")
    await bench.complete(await bench.start())
    for id in ids:
        await bench.add(id)
    jobs = await bench.claim(len(ids))
    assert [job.id for job in jobs] == list(ids)
    return jobs


@pytest.fixture
async def other(real: RealBench, plain_server: NatsServer) -> AsyncIterator[RealBench]:
    """Another worker of the same queue."""
    assert isinstance(real.engine, NatsEngine)
    engine = NatsEngine(f"{plain_server.url}?namespace={real.engine.namespace}")
    await engine.open()
    yield RealBench(engine)
    await engine.close()


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No job ever runs for long."""
    monkeypatch.setattr(unwatched, "MOMENT", LIMIT * 10)


# While nothing goes wrong


async def test_job_that_ends_soon_needs_no_timer(real: RealBench, patient: None) -> None:
    jobs = await running(real, "a", "b")
    before = await timers(real)
    assert await kept(real) == {"a", "b"}
    for job in jobs:
        await real.complete(job)
    await given_up(real)
    assert await timers(real) == before
    assert not any({"warm", "a", "b"} & ids for ids in before)


async def test_jobs_that_go_on_running_get_a_timer_together(real: RealBench) -> None:
    await running(real, "a", "b")

    async def watched() -> bool:
        return {"a", "b"} in await timers(real)

    await eventually(watched)
    await given_up(real)


async def test_many_jobs_get_several_timers(
    real: RealBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unwatched, "TOGETHER", 2)
    await running(real, "a", "b", "c")

    async def watched() -> bool:
        found = await timers(real)
        return {"a", "b"} in found and {"c"} in found

    await eventually(watched)


async def test_short_lease_has_a_timer_before_the_job_starts(
    real: RealBench, patient: None
) -> None:
    await running(real)
    await real.add("a")
    await real.start(lease=SHORT)
    assert {"a"} in await timers(real)
    await given_up(real)


@pytest.mark.parametrize("how", ["reports", "detaches"])
async def test_job_that_says_something_of_itself_is_watched_still(
    real: RealBench, patient: None, how: str
) -> None:
    (job,) = await running(real, "a")
    if how == "reports":
        await real.report(job, Progress(1, 2))
    else:
        await real.settle(job, Detached(until=real.now + 60_000))
    assert await kept(real) == {"a"}


async def test_failed_job_needs_no_timer(real: RealBench, patient: None) -> None:
    (job,) = await running(real, "a")
    before = len(await timers(real))
    await real.fail(job, after=60_000)
    await given_up(real)
    assert len(await timers(real)) == before


# When something does


def _start_and_die(engine: NatsEngine) -> None:
    async def main() -> None:
        await engine.open()
        bench = RealBench(engine)
        await bench.complete(await bench.start())  # in a transaction: not all is known yet
        assert (await bench.start()).id == "a"
        os.kill(os.getpid(), signal.SIGKILL)

    asyncio.run(main())


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
async def test_job_of_a_worker_that_was_killed_is_watched_by_another(
    real: RealBench, plain_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "ACK_WAIT", 500_000_000)  # of the consumers that are made here
    await running(real)
    for id in ("warm2", "a"):
        await real.add(id)
    assert isinstance(real.engine, NatsEngine)
    doomed = NatsEngine(f"{plain_server.url}?namespace={real.engine.namespace}")
    child = multiprocessing.get_context("fork").Process(target=_start_and_die, args=(doomed,))
    child.start()
    await asyncio.to_thread(child.join, LIMIT)
    assert child.exitcode == -signal.SIGKILL
    assert await real.state("a") == "active"
    assert not any("a" in ids for ids in await timers(real))

    async def watched() -> bool:
        assert await real.claim() == []
        return {"a"} in await timers(real)

    await eventually(watched)


async def test_tickets_of_a_session_that_ends_come_to_another_at_once(
    real: RealBench, other: RealBench, patient: None
) -> None:
    (job,) = await running(other, "a")
    await other.engine.close()

    async def handed_on() -> bool:
        assert await real.claim() == []
        return job.id in await kept(real)

    await eventually(handed_on)


async def test_ticket_that_comes_again_while_the_job_runs_does_no_harm(
    real: RealBench, patient: None
) -> None:
    (job,) = await running(real, "a")
    home = await session_of(real)
    first = home.unwatched._kept["a"]  # pyright: ignore[reportPrivateUsage]
    first.line.give_back([first.ticket])

    async def came() -> bool:
        assert await real.claim() == []
        return home.unwatched._kept["a"].ticket.delivered > 1  # pyright: ignore[reportPrivateUsage]

    await eventually(came)
    assert (await real.complete(job)).state == "completed"
    await given_up(real)


async def test_timer_that_cannot_be_stored_is_stored_later(
    real: RealBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    (job,) = await running(real, "a")
    home = await session_of(real)
    store, refused = home.js.store_batch, list[object]()

    async def failing(*given: object) -> int:
        refused.append(given)
        if len(refused) < 3:
            raise TimedOut("no answer")
        return await store(*given)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(home.js, "store_batch", failing)

    async def watched() -> bool:
        return {"a"} in await timers(real)

    await eventually(watched)
    assert len(refused) >= 3
    assert await real.apply(await real.settled(job, Completed()))


@pytest.mark.parametrize("jumps", [False, True])
async def test_start_that_takes_long_leaves_its_job_watched(
    real: RealBench, patient: None, monkeypatch: pytest.MonkeyPatch, jumps: bool
) -> None:
    """The event loop stood still, the server did, or somebody set the machine's clock."""
    await running(real)
    await real.add("a")
    assert isinstance(real.engine, NatsEngine)
    started: list[str] = []

    def after(point: str) -> None:
        if point == "after_commit":
            started.append(point)

    real.engine.fault = after
    # The time at which the claim was asked for is, or is not, that of the clock any more.
    monkeypatch.setattr(claiming, "punctual", lambda _now: bool(started) != jumps)
    assert (await real.start()).id == "a"
    assert started
    assert (await kept(real) == {"a"}) != ({"a"} in await timers(real))


async def test_timer_counts_from_the_claim_and_not_from_its_end(
    real: RealBench, patient: None
) -> None:
    await running(real)
    await real.add("a")
    assert isinstance(real.engine, NatsEngine)
    real.engine.fault = lambda _point: time.sleep(0.5)  # before and after the start
    job = await real.start()
    home = await session_of(real)
    ends = home.unwatched._kept["a"].ends  # pyright: ignore[reportPrivateUsage]
    assert job.lease_until
    assert abs(ends - home.server_time() - (job.lease_until - real.now)) < 500


class SlowStart:
    """Starts of a job are stored, and their claims go on when they may."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, job_id: str) -> None:
        self._start, self._job_id = plain.start, job_id
        self.stored, self.told = asyncio.Event(), asyncio.Event()
        monkeypatch.setattr(plain, "start", self._slowly)

    async def _slowly(
        self,
        home: plain.Home,
        request: ClaimRequest,
        chosen: Sequence[tuple[Ticket, Job]],
        *more: dict[str, Job],
    ) -> list[Job | None]:
        found = await self._start(home, request, chosen, *more)  # pyright: ignore[reportArgumentType]
        if any(job.id == self._job_id for _, job in chosen):
            self.stored.set()
            await self.told.wait()
        return found


async def test_end_of_a_job_does_not_leave_its_successor_of_the_same_id_unwatched(
    real: RealBench, patient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ended with a claim that goes on while the id is used again."""
    (job,) = await running(real, "a")
    await real.add("b")
    slow = SlowStart(monkeypatch, "b")
    change = await real.settled(job, Completed())
    claim = asyncio.create_task(asyncio.wait_for(real.engine.claim(real.request(1), [change]), 20))
    await slow.stored.wait()
    await real.delete(await real.job("a"))
    await real.add("a")
    assert (await real.start()).id == "a"
    slow.told.set()
    await claim
    assert await real.state("a") == "active"
    assert await kept(real) == {"a", "b"}


async def test_start_that_outlasts_its_session_is_left_to_others(
    other: RealBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await running(other)
    await other.add("a")
    slow = SlowStart(monkeypatch, "a")
    home = await session_of(other)
    claim = asyncio.create_task(other.claim())
    await slow.stored.wait()
    await other.engine.close()
    slow.told.set()
    await asyncio.wait([claim])
    assert not home.unwatched._kept  # pyright: ignore[reportPrivateUsage]
    assert home.unwatched._rounds is None  # pyright: ignore[reportPrivateUsage]


async def test_jobs_that_nobody_may_rescue_do_not_hide_others_from_the_round(
    real: RealBench, other: RealBench, patient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queue is paused, so that no ticket comes; another service has no workers any more."""
    monkeypatch.setattr(unwatched, "ACK_WAIT", 0)
    monkeypatch.setattr(upkeep, "MISSED", 0)
    monkeypatch.setattr(upkeep, "MOST", 1)
    await running(other)
    await other.add("a")
    await other.start(lease=100)
    other.service = "another"
    await other.add("c")
    await other.start(lease=100)
    assert not any("a" in ids for ids in await timers(real))
    await real.set_queue(QueueSettings(paused=True))
    await (await session_of(other)).connection.close()  # as if it was killed

    async def noticed() -> list[str]:
        await real.prune()
        return await real.lapsed()

    assert await eventually(noticed) == ["a"]
