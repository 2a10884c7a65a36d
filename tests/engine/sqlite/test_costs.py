"""What an operation costs is the same however many jobs there are that it does not concern.

Counted in steps of SQLite's virtual machine, which are the same on every machine and every day.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw
import pytest

from headrace.core.model import Dedup, DedupMode, Filter
from headrace.core.outcome import Completed
from headrace.core.queue import QueueSettings, Retention
from headrace.core.states import State
from headrace.engine.sqlite import SqliteEngine
from headrace.testing.conformance import Bench
from headrace.testing.conformance.bench import key, raw

FEW, MANY = 20, 1_500
WINDOW = 10**9

Deed = Callable[[Bench], Awaitable[object]]


class Steps:
    """Counts the steps of an engine's two connections."""

    def __init__(self, engine: SqliteEngine) -> None:
        session = engine._home.session()  # pyright: ignore[reportPrivateUsage]
        stores = (session.writer._store, session.reader._store)  # pyright: ignore[reportPrivateUsage]
        self._connections = [store.connection for store in stores if store is not None]
        self.taken = 0

    @contextmanager
    def counted(self) -> Iterator[None]:
        for connection in self._connections:
            connection.trace_v2(apsw.SQLITE_TRACE_PROFILE, self._profiled)
        yield
        for connection in self._connections:
            connection.trace_v2(0, None)

    def _profiled(self, profile: dict[str, dict[str, int]]) -> None:
        self.taken += profile["stmt_status"]["SQLITE_STMTSTATUS_VM_STEP"]


@pytest.fixture
async def bench(path: Path) -> AsyncIterator[Bench]:
    engine = SqliteEngine(path)
    await engine.open()
    yield Bench(engine)
    await engine.close()


async def cost(bench: Bench, deed: Deed) -> int:
    """The steps of a deed; its statements are compiled by a first one."""
    assert isinstance(bench.engine, SqliteEngine)
    await deed(bench)
    await bench.engine.count()
    steps = Steps(bench.engine)
    with steps.counted():
        await deed(bench)
    assert steps.taken
    return steps.taken


async def finished(bench: Bench, count: int) -> None:
    """Completed jobs, each with a dedup key of its own; of every second the window still lasts."""
    rules = (DedupMode.SIMPLE, 0), (DedupMode.THROTTLE, WINDOW)
    jobs = [
        bench.new(queue="past", dedup=Dedup(f"past-{bench.now}-{n}", *rules[n % 2]))
        for n in range(count)
    ]
    await bench.engine.insert([[job] for job in jobs], bench.now)
    bench.tick(1)
    claimed = await bench.claim(count, "past")
    assert len(claimed) == count
    await bench.engine.apply([await bench.settled(job, Completed(raw(None))) for job in claimed])


def duplicate(mode: DedupMode, window: int = 0) -> Deed:
    async def deed(bench: Bench) -> None:
        await bench.submit(dedup=Dedup("taken", mode, window))

    return deed


async def life_of_a_job_with_a_fresh_dedup_key(bench: Bench) -> None:
    await bench.add(queue="life", dedup=Dedup(f"fresh-{bench.tick(1)}"))
    await bench.run("life")


async def same_id_again(bench: Bench) -> None:
    await bench.submit("one")


async def page_of_dead_jobs(bench: Bench) -> None:
    await bench.engine.find(Filter(states=frozenset({State.DEAD})))


async def page_of_waiting_jobs_of_a_queue(bench: Bench) -> None:
    waiting = frozenset({State.PENDING})
    await bench.engine.find(Filter(service="svc", queue="q", states=waiting))


async def newest_page(bench: Bench) -> None:
    await bench.engine.find(Filter(), limit=10)


async def counts(bench: Bench) -> None:
    await bench.engine.count()


async def retention_with_nothing_to_delete(bench: Bench) -> None:
    await bench.prune(limit=10)


@pytest.mark.parametrize(
    "deed",
    [
        pytest.param(duplicate(DedupMode.SIMPLE), id="duplicate"),
        pytest.param(duplicate(DedupMode.THROTTLE, WINDOW), id="throttled"),
        pytest.param(duplicate(DedupMode.DEBOUNCE), id="debounced"),
        pytest.param(duplicate(DedupMode.KEEP_LAST), id="keep_last"),
        same_id_again,
        life_of_a_job_with_a_fresh_dedup_key,
        page_of_dead_jobs,
        page_of_waiting_jobs_of_a_queue,
        newest_page,
        counts,
        retention_with_nothing_to_delete,
    ],
)
async def test_cost_is_the_same_with_very_many_finished_jobs(bench: Bench, deed: Deed) -> None:
    await bench.set_queue(
        QueueSettings(retention={State.COMPLETED: Retention(count=10**6)}), "past"
    )
    await finished(bench, FEW)
    before = await cost(bench, deed)

    await finished(bench, MANY)

    assert await cost(bench, deed) <= before * 1.05


async def test_first_job_of_a_tenant_costs_the_same_behind_another_s_backlog(bench: Bench) -> None:
    """Added, claimed and completed beside jobs of a busy key."""

    async def first_of_another(bench: Bench) -> None:
        id = f"small-{bench.tick(1)}"
        await bench.add(id, key=key("small"))
        (job,) = await bench.claim()
        assert job.id == id
        await bench.complete(job)

    await bench.add("running", key=key("large"))
    await bench.start()
    for _ in range(FEW):
        await bench.add(key=key("large"))
    before = await cost(bench, first_of_another)

    backlog = [bench.new(key=key("large")) for _ in range(MANY)]
    await bench.engine.insert([[job] for job in backlog], bench.now)

    assert await cost(bench, first_of_another) <= before * 1.05
