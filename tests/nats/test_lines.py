"""Lines of a queue: when a worker asks for tickets, when it lets them come, and when it waits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import pytest

from headrace.core.change import Change
from headrace.core.errors import EngineUnavailable
from headrace.core.model import Job
from headrace.core.outcome import Completed, settle
from headrace.core.queue import DEFAULTS
from headrace.engine.nats import lines, plain
from headrace.engine.nats.claiming import BUSY
from headrace.engine.nats.tickets import Place
from headrace.engine.nats.wire import pull
from headrace.engine.nats.wire.pull import Puller
from headrace.testing.conformance.bench import Bench
from tests.nats.real import RealBench, session_of
from tests.support import eventually

LONG = 30.0
"""Seconds that no test takes."""


class Request(NamedTuple):
    """A request for tickets."""

    batch: int
    lingers: bool
    """Whether it waits for tickets that are not there yet."""


class Pulls:
    """The requests for tickets. What comes can be kept on its way until somebody asks for what is
    there."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.requests: list[Request] = []
        self.under_way: list[Callable[[], None]] = []
        self.slow = False
        ask = Puller.ask
        receive = pull._Slot._received  # pyright: ignore[reportPrivateUsage]

        def noted(puller: Puller, batch: int, expires: float = 30, no_wait: bool = False) -> None:
            self.requests.append(Request(batch, not no_wait))
            ask(puller, batch, expires, no_wait)
            if no_wait:
                self._arrive()

        def slowly(*message: Any) -> None:
            self.under_way.append(partial(receive, *message))
            if not self.slow:
                self._arrive()

        monkeypatch.setattr(Puller, "ask", noted)
        monkeypatch.setattr(pull._Slot, "_received", slowly)  # pyright: ignore[reportPrivateUsage]

    def _arrive(self) -> None:
        self.slow = False
        arriving, self.under_way = self.under_way, []
        for receive in arriving:
            receive()


@pytest.fixture
def pulls(monkeypatch: pytest.MonkeyPatch) -> Pulls:
    return Pulls(monkeypatch)


@pytest.fixture
async def empty(pulls: Pulls, real: RealBench, monkeypatch: pytest.MonkeyPatch) -> RealBench:
    """A queue that was found empty just now, and whose tickets come by themselves."""
    monkeypatch.setattr(lines, "TRUST", LONG)
    await real.add("first")
    await real.run()
    assert await real.claimed_ids(5) == []
    assert pulls.requests[-1].lingers
    pulls.requests.clear()
    return real


async def add_many(bench: RealBench, count: int) -> None:
    await bench.engine.insert([[bench.new(f"j{n:03}")] for n in range(count)], bench.now)


def ends(bench: RealBench, jobs: Sequence[Job]) -> list[Change]:
    """Their outcomes, made without asking the store."""
    return [settle(job, Completed(), bench.now, 0.5, DEFAULTS) for job in jobs]


# Asked for ahead


async def test_worker_that_hands_in_many_outcomes_asks_for_its_next_tickets_ahead(
    real: RealBench, pulls: Pulls
) -> None:
    await add_many(real, 4 * BUSY)
    jobs = (await real.engine.claim(real.request(BUSY))).jobs
    assert not any(request.lingers for request in pulls.requests)  # it may be long until the next
    few = (await real.engine.claim(real.request(BUSY - 1), ends(real, jobs[1:]))).jobs
    assert not any(request.lingers for request in pulls.requests)
    jobs = (jobs[0], *few)
    jobs = (await real.engine.claim(real.request(BUSY), ends(real, jobs))).jobs
    assert len(jobs) == BUSY
    assert Request(BUSY, lingers=True) in pulls.requests
    line = (await session_of(real)).line(Place("svc", "q"))
    await eventually(lambda: len(line.kept) == BUSY)
    pulls.requests.clear()
    assert len((await real.engine.claim(real.request(BUSY), ends(real, jobs))).jobs) == BUSY
    assert all(request.lingers for request in pulls.requests)


async def test_claim_waits_for_tickets_that_were_asked_for_ahead(
    real: RealBench, pulls: Pulls
) -> None:
    await add_many(real, 4 * BUSY)
    jobs = (await real.engine.claim(real.request(BUSY))).jobs
    jobs = (await real.engine.claim(real.request(BUSY), ends(real, jobs))).jobs
    pulls.slow = True
    await eventually(lambda: len(pulls.under_way) == BUSY)
    assert len((await real.engine.claim(real.request(BUSY), ends(real, jobs))).jobs) == BUSY


# Empty lines


async def test_line_that_was_empty_just_now_is_not_asked_again(
    empty: RealBench, pulls: Pulls, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await empty.claimed_ids(5) == []
    assert pulls.requests == []
    monkeypatch.setattr(lines, "TRUST", 0.0)
    assert await empty.claimed_ids(5) == []
    assert not all(request.lingers for request in pulls.requests)


async def test_line_from_which_nothing_comes_by_itself_is_asked_each_time(
    bench: Bench, pulls: Pulls
) -> None:
    """As by a clock that is moved by hand."""
    await bench.add("first")
    await bench.run()
    for _ in range(2):
        pulls.requests.clear()
        assert await bench.claimed_ids(5) == []
        assert {request.lingers for request in pulls.requests} == {False}


async def test_job_that_was_added_here_is_claimed_though_its_ticket_is_on_its_way(
    empty: RealBench, pulls: Pulls
) -> None:
    pulls.slow = True
    await empty.add("a")
    await eventually(lambda: pulls.under_way)
    assert await empty.claimed_ids(5) == ["a"]


async def test_job_whose_ticket_was_given_back_is_claimed_though_that_is_on_its_way(
    empty: RealBench, pulls: Pulls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "LAG", LONG)
    pulls.slow = True
    await empty.add("a")
    await eventually(lambda: pulls.under_way)

    async def failing(*_: object) -> None:
        pulls.slow = True
        raise EngineUnavailable("the server is away")

    with monkeypatch.context() as patch:
        patch.setattr(plain, "start", failing)
        with pytest.raises(EngineUnavailable):
            await empty.claimed_ids(5)
    await eventually(lambda: pulls.under_way)
    assert await empty.claimed_ids(5) == ["a"]
