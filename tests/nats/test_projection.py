"""The projection beside the reference: a memory engine that writes what it does to a stream."""

from __future__ import annotations

import asyncio
import fcntl
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import apsw
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from headrace.core.model import Filter, Job, Page
from headrace.core.retention import Cutoff
from headrace.core.states import FINAL, WAITING, EventType, State
from headrace.engine.memory import MemoryEngine
from headrace.engine.nats.layout import Layout
from headrace.engine.nats.projection import Damaged, Gone, Projection, finding, following
from headrace.engine.nats.projection.sql import STATEMENTS
from headrace.engine.nats.wire.jetstream import JetStream, Pending
from headrace.engine.protocol import Prune
from headrace.engine.statements import for_rows
from headrace.testing.conformance import Bench, EngineConformance
from headrace.testing.conformance.bench import failed, key
from headrace.testing.machine import engine_machine
from headrace.testing.nats import NatsServer
from tests.nats.recording import ProjectedEngine

FEW = settings(
    max_examples=25,
    stateful_step_count=40,
    deadline=None,
    phases=(Phase.reuse, Phase.generate, Phase.shrink),
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    with NatsServer() as server:
        yield server


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "projection.db"


@pytest.fixture
async def engine(server: NatsServer, path: Path) -> AsyncIterator[ProjectedEngine]:
    engine = ProjectedEngine(server.url, str(path))
    await engine.open()
    yield engine
    await engine.close()


@pytest.fixture
def bench(engine: ProjectedEngine) -> Bench:
    return Bench(engine)


# What it holds


class TestProjected(EngineConformance):
    """An engine that looks at its jobs through a projection does what every engine does."""

    @pytest.fixture
    async def engine(self, server: NatsServer, path: Path) -> AsyncIterator[ProjectedEngine]:
        engine = ProjectedEngine(server.url, str(path))
        await engine.open()
        yield engine
        await engine.close()


@pytest.mark.timeout(600)  # shrinking a failure takes its time
def test_projection_holds_what_the_reference_holds(server: NatsServer) -> None:
    run_state_machine_as_test(engine_machine(lambda: ProjectedEngine(server.url)), settings=FEW)


async def some_of_everything(bench: Bench) -> None:
    """Jobs in most states, in two services and three queues."""
    for number in range(40):
        await bench.add(
            f"a{number}",
            queue=("q", "q2", "q3")[number % 3],
            type=("work", "email")[number % 2],
            tags=("red",) if number % 4 == 0 else ("blue", "red") if number % 5 == 0 else (),
            key=key(f"k{number % 3}", 2) if number % 7 == 0 else None,
            depends_on=("a0",) if number in (9, 12) else (),
            ttl=100 * number if number % 6 == 0 else None,
            delay=500 if number % 8 == 0 else 0,
            payload={"n": number, "text": f"grüße {number}"},
            max_tries=1 + number % 3,
        )
        bench.tick(7)
    await bench.add("b0", service="other", queue="q")
    for number in range(18):
        worker = f"w{number % 2}"
        for job in await bench.claim(1, ("q", "q2", "q3")[number % 3], worker=worker):
            match number % 4:
                case 0:
                    await bench.complete(job, {"n": number})
                case 1:
                    await bench.fail(job)
                case 2:
                    await bench.settle(job, failed("very bad luck", after=50))
                case _:
                    await bench.extend(job, lease=1000 * number)
        bench.tick(11)


FILTERS = [
    Filter(),
    Filter(ids=("a1", "a5", "b0", "none")),
    Filter(service="other"),
    Filter(service="svc", queue="q2"),
    Filter(queue="q"),
    Filter(queue="elsewhere"),
    Filter(type="email"),
    Filter(states=frozenset({State.ACTIVE})),
    Filter(states=WAITING),
    Filter(states=FINAL),
    Filter(states=frozenset({State.PENDING, State.ACTIVE}), queue="q3"),
    Filter(service="svc", queue="q", states=frozenset({State.COMPLETED}), type="work"),
    Filter(key="k0"),
    Filter(key=key("k1").hash, states=WAITING),
    Filter(tag="red"),
    Filter(tag="red", type="email"),
    Filter(parent="a0"),
    Filter(parent="a0", tag="blue"),
    Filter(text="grüße 1"),
    Filter(text="a3"),
    Filter(text="bad luck"),
    Filter(text="nowhere"),
    Filter(created_from=1_700_000_000_100, created_until=1_700_000_000_200),
    Filter(expires_until=1_700_000_001_000, states=WAITING),
    Filter(expires_until=1_700_000_001_000),
    Filter(lease_until=1_700_000_031_000),
    Filter(worker="w1"),
    Filter(worker="w1", queue="q3", states=frozenset({State.ACTIVE})),
]


async def walked(find: object, filter: Filter, limit: int) -> list[Job]:
    """All jobs of a filter, page by page."""
    jobs: list[Job] = []
    cursor: str | None = None
    while True:
        page: Page = await find(filter, cursor, limit)  # type: ignore[operator]
        assert len(page.jobs) <= limit
        jobs += page.jobs
        cursor = page.cursor
        if cursor is None:
            return jobs


@pytest.mark.parametrize("limit", [1, 3, 100])
@pytest.mark.parametrize(("scan", "places"), [(4, 100), (10_000, 0), (10_000, 100)])
async def test_pages_of_every_filter_hold_what_the_reference_holds(
    engine: ProjectedEngine,
    bench: Bench,
    monkeypatch: pytest.MonkeyPatch,
    limit: int,
    scan: int,
    places: int,
) -> None:
    await some_of_everything(bench)
    monkeypatch.setattr(finding, "SCAN", scan)
    monkeypatch.setattr(finding, "PLACES", places)
    for filter in FILTERS:
        found = await walked(engine.find, filter, limit)
        wanted = await walked(lambda *args: MemoryEngine.find(engine, *args), filter, 100)
        assert found == wanted, filter


async def test_oldest_due_and_oldest_waiting_are_those_of_the_reference(
    engine: ProjectedEngine, bench: Bench
) -> None:
    await some_of_everything(bench)
    projection = await engine.look()
    for now in (0, bench.now, bench.now + 10_000):
        wanted = (await MemoryEngine.checkup(engine, now)).oldest
        assert sorted(map(str, projection.oldest_due(now))) == sorted(map(str, wanted))
    for queue in ("q", "q2", "q3", "elsewhere"):
        oldest = engine.records.oldest_waiting("svc", queue)
        assert projection.waiting("svc", queue, 1) == ([oldest] if oldest else [])


@pytest.mark.parametrize("keep", [None, 0, 1, 3])
@pytest.mark.parametrize("before", [None, 40, 80])
@pytest.mark.parametrize("limit", [1, 2, 100])
async def test_ended_jobs_that_may_go_are_those_of_the_reference(
    engine: ProjectedEngine, bench: Bench, keep: int | None, before: int | None, limit: int
) -> None:
    start = bench.now
    for number in range(6):
        await bench.add(f"j{number}")
    jobs = await bench.claim(6)
    for job in (jobs[3], *jobs[:3], *jobs[4:]):
        await bench.complete(job)
        bench.tick(20)
    ended_before = None if before is None else start + before
    cutoff = Cutoff("svc", "q", State.COMPLETED, ended_before, keep, start + 90)
    chosen = (await engine.look()).ended(cutoff, limit)
    order = Prune(now=bench.now, cutoffs=(cutoff,), journal_before=0, limit=limit)
    assert len(chosen) == await MemoryEngine.prune(engine, order)
    assert not engine.records.jobs.keys() & {job.id for job in chosen}


async def test_messages_that_are_no_letters_are_passed_over(
    engine: ProjectedEngine, bench: Bench
) -> None:
    job = await bench.add("a")
    prefix = engine.layout.prefix(job.spec)
    await engine.flush(engine.js)
    for rest, body in (
        (b"edges.0", b'["b"]'),
        (b"parent.b", b"{}"),
        (b"created", b"not JSON"),
        (b"created", b"{}"),
        (b"created", b'{"headrace": 7}'),
        (b"created", b'{"headrace": {"stand": {}}}'),
    ):
        engine.last = await engine.js.store_batch([Pending(prefix + rest, body)])
    foreign = b"%b.jobs.short" % engine.layout.namespace.encode()
    engine.last = await engine.js.store_batch([Pending(foreign, b"")])
    assert await bench.found(Filter()) == ["a"]
    assert [event.event for event in await bench.events()] == [EventType.CREATED]


# Removed jobs


async def test_removed_job_is_told_of_until_the_floor_passes_it(
    engine: ProjectedEngine, bench: Bench
) -> None:
    await bench.add("a")
    await bench.delete(await bench.run())
    await bench.add("b")
    projection = await engine.look()
    assert await bench.found(Filter()) == ["b"]
    told = await bench.story("a")
    assert told[0] is EventType.CREATED
    assert EventType.DELETED in told
    assert projection.gone(10) == []
    last = projection.journal(0, job_id="a")[-1].event.seq
    engine.last = await engine.set_floor(engine.js, last + 1)
    projection = await engine.look()
    assert projection.journal(0, job_id="a") == []
    assert [entry.event.job_id for entry in projection.journal(0)] == ["b"]
    assert projection.gone(10) == [Gone("a", "svc", "work", last + 1)]
    projection.forget(["a"])
    assert projection.gone(10) == []


async def test_job_that_comes_again_is_not_gone_and_has_one_story(
    engine: ProjectedEngine, bench: Bench
) -> None:
    await bench.add("a", payload=1)
    await bench.delete(await bench.run())
    await engine.look()
    await bench.add("a", payload=2, type="second", tags=("new",))
    await bench.add("b")
    assert await bench.found(Filter(tag="new")) == ["a"]
    assert (await bench.story("a")).count(EventType.CREATED) == 2
    engine.last = await engine.set_floor(engine.js, engine.last + 100)
    projection = await engine.look()
    assert projection.gone(10) == []
    assert [job.id for job in projection.find(Filter()).jobs] == ["b", "a"]


async def test_removed_job_is_gone_only_with_its_last_message_of_any_kind(
    engine: ProjectedEngine, bench: Bench
) -> None:
    job = await bench.add("a")
    await bench.delete(await bench.run())
    removed = await engine.flush(engine.js)
    edges = engine.layout.prefix(job.spec) + b"edges.0"
    trailing = await engine.js.store_batch([Pending(edges, b"[]")])
    await engine.set_floor(engine.js, removed)
    await engine.projection.catch_up(engine.js, engine.layout.stream, trailing)
    assert engine.projection.gone(10) == []
    await engine.set_floor(engine.js, trailing)
    await engine.projection.catch_up(engine.js, engine.layout.stream, trailing + 2)
    assert engine.projection.gone(10) == [Gone("a", "svc", "work", trailing)]


@pytest.mark.parametrize("known", [True, False])
async def test_removal_that_was_purged_before_it_was_read_is_found_out(
    engine: ProjectedEngine, bench: Bench, monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    """A projection that is behind reads of the job, and the rest is purged meanwhile."""
    await bench.add("stays")
    await bench.add("goes", tags=("red",), key=key("k"))
    if known:
        await engine.look()
    await bench.start()
    await bench.run()
    await bench.delete(await bench.job("goes"))
    last = await engine.flush(engine.js)
    await bench.add("new")
    engine.last = await engine.flush(engine.js)
    layout, js = engine.layout, engine.js
    read = js.read

    async def purging(*args: object, **options: object) -> object:
        found = await read(*args, **options)  # type: ignore[arg-type]
        if not known and len(found) == 2:
            await js.purge(layout.stream, layout.domain("goes"), upto_seq=last + 1)
        return found

    await engine.set_floor(js, last)
    if known:
        await js.purge(layout.stream, layout.domain("goes"), upto_seq=last + 1)
    else:
        monkeypatch.setattr(following, "AT_ONCE", 2)
        monkeypatch.setattr(js, "read", purging)
    projection = engine.projection
    await projection.catch_up(js, layout.stream, engine.last + 1)
    assert [job.id for job in projection.find(Filter()).jobs] == ["new", "stays"]
    assert projection.find(Filter(tag="red")).jobs == ()
    assert [(c.state, c.jobs) for c in projection.count()] == [("active", 1), ("pending", 1)]
    assert [entry.event.job_id for entry in projection.journal(0)] == ["new"]


# Its file


async def test_deleted_while_open_it_is_built_anew(
    engine: ProjectedEngine, bench: Bench, path: Path
) -> None:
    await some_of_everything(bench)
    await engine.look()
    os.unlink(path)
    await bench.add("new")
    await engine.compare_with_fresh()
    assert os.stat(path).st_size


async def test_deleted_while_two_have_it_open_it_is_shared_again(
    engine: ProjectedEngine, bench: Bench, path: Path
) -> None:
    await some_of_everything(bench)
    first = await engine.look()
    second = Projection(str(path), engine.layout)
    second.open(engine.identity)
    await second.catch_up(engine.js, engine.layout.stream, engine.last)
    for file in path.parent.iterdir():
        file.unlink()
    for number in range(4):
        await bench.add(f"new-{number}")
        engine.last = await engine.flush(engine.js)
        for one in (first, second) if number % 2 else (second, first):
            await one.catch_up(engine.js, engine.layout.stream, engine.last)
        assert first.find(Filter()) == second.find(Filter())
    await engine.compare_with_fresh()
    second.close()


def damage(path: Path, kind: str) -> None:
    """Makes the file one that is of no use."""
    match kind:
        case "text":
            path.write_text("this is no database\n" * 500)
        case "empty":
            path.write_bytes(b"")
        case "truncated":
            os.truncate(path, path.stat().st_size // 2 + 100)
        case "scribbled":
            body = bytearray(path.read_bytes())
            body[4096:] = b"\xa5" * (len(body) - 4096)
            path.write_bytes(body)
        case "other":
            path.unlink()
            connection = apsw.Connection(str(path))
            connection.execute("CREATE TABLE mine (x)")
            connection.close()
        case _:
            connection = apsw.Connection(str(path))
            connection.execute("PRAGMA user_version = 999")
            connection.close()


@pytest.mark.parametrize("kind", ["text", "empty", "truncated", "scribbled", "other", "version"])
async def test_file_that_is_damaged_or_not_ours_is_replaced(
    engine: ProjectedEngine, bench: Bench, path: Path, kind: str
) -> None:
    await some_of_everything(bench)
    (await engine.look()).close()
    damage(path, kind)
    await bench.add("new")
    await engine.compare_with_fresh()


async def test_damage_that_reading_finds_is_said_and_mended(
    engine: ProjectedEngine, bench: Bench, path: Path
) -> None:
    await some_of_everything(bench)
    projection = await engine.look()
    projection.close()
    projection.open(engine.identity)
    with path.open("r+b") as file:  # all but what opening reads
        size = file.seek(0, os.SEEK_END)
        file.seek(8 * 4096)
        file.write(b"\xa5" * (size - 8 * 4096))
    with pytest.raises(Damaged):
        projection.journal(0)
    await engine.compare_with_fresh()


async def test_projection_of_another_stream_is_thrown_away(
    engine: ProjectedEngine, bench: Bench, path: Path
) -> None:
    await some_of_everything(bench)
    (await engine.look()).close()
    other = Projection(str(path), engine.layout)
    other.open("another stream, or the same one created later")
    assert other.position == 0
    assert other.count() == []
    other.close()


async def test_stream_that_lost_its_end_is_noticed(engine: ProjectedEngine, bench: Bench) -> None:
    """After a loss of power the stream may give the same sequences to other messages."""
    js, stream = engine.js, engine.layout.stream
    await bench.add("a")
    await bench.add("lost")
    await engine.look()
    kept = await js.message(stream, 1)
    assert kept
    await js.api(f"STREAM.DELETE.{stream}")
    await engine.create(js)
    await js.store_batch([Pending(kept.subject, kept.payload)])
    projection = engine.projection
    await projection.catch_up(js, stream, 3)
    assert [job.id for job in projection.find(Filter()).jobs] == ["a"]
    body = kept.payload.replace(b'"a"', b'"b"')
    await js.store_batch([Pending(kept.subject.replace(b".a.", b".b."), body)])
    await projection.catch_up(js, stream, 4)
    assert [job.id for job in projection.find(Filter()).jobs] == ["b", "a"]


async def test_last_message_that_was_purged_is_no_loss(
    engine: ProjectedEngine, bench: Bench
) -> None:
    await bench.add("a")
    await bench.add("b")
    await bench.delete(await bench.run())
    await engine.look()
    built = engine.projection.size
    await engine.js.purge(engine.layout.stream, engine.layout.domain("a"))
    await bench.add("c")
    await engine.look()
    assert [job.id for job in engine.projection.find(Filter()).jobs] == ["c", "b"]
    assert "a" in [entry.event.job_id for entry in engine.projection.journal(0)]
    assert engine.projection.size >= built


async def test_answer_of_a_replica_that_lags_is_not_taken_for_the_end(
    engine: ProjectedEngine, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await some_of_everything(bench)
    engine.last = await engine.flush(engine.js)
    read = engine.js.read
    calls = 0

    async def lagging(*args: object, **options: object) -> object:
        nonlocal calls
        calls += 1
        found = await read(*args, **options)  # type: ignore[arg-type]
        return found[: calls // 2]

    monkeypatch.setattr(following, "_PAUSE", 0.0)
    monkeypatch.setattr(engine.js, "read", lagging)
    await engine.projection.catch_up(engine.js, engine.layout.stream, engine.last)
    monkeypatch.undo()
    await engine.compare_with_fresh()


async def test_far_behind_it_catches_up(engine: ProjectedEngine, bench: Bench) -> None:
    for start in range(0, 4000, 500):
        group = [[bench.new(f"job-{start + n}", tags=("red",))] for n in range(500)]
        await engine.insert(group, bench.now)
    for job in await bench.claim(1500):
        await bench.complete(job)
    await bench.rescue()
    await engine.compare_with_fresh()
    assert sum(counted.jobs for counted in engine.projection.count()) == 4000


async def test_caught_up_asks_nobody(
    engine: ProjectedEngine, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.add("a")
    await engine.look()
    monkeypatch.setattr(JetStream, "read", None)
    monkeypatch.setattr(JetStream, "api", None)
    await engine.projection.catch_up(engine.js, engine.layout.stream, engine.last)


CATCH_UP = """
import asyncio, sys
from headrace.engine.nats.layout import Layout
from headrace.engine.nats.projection import Projection
from headrace.engine.nats.wire.connection import Connection
from headrace.engine.nats.wire.jetstream import JetStream
from headrace.engine.nats.wire.options import Options

async def main(url, path, namespace, identity, upto):
    connection = await Connection.open(Options.parse(url))
    layout = Layout(namespace)
    projection = Projection(path, layout)
    projection.open(identity)
    print("ready", flush=True)
    sys.stdin.readline()
    await projection.catch_up(JetStream(connection), layout.stream, int(upto))
    print(sum(counted.jobs for counted in projection.count()), flush=True)
    projection.close()
    await connection.close()

asyncio.run(main(*sys.argv[1:]))
"""


def started(arguments: list[str]) -> subprocess.Popen[str]:
    """A process that catches up as soon as it is told to."""
    return subprocess.Popen(
        [sys.executable, "-c", CATCH_UP, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("deleted", [False, True])
async def test_processes_catch_up_on_one_file_at_once(
    server: NatsServer, engine: ProjectedEngine, bench: Bench, path: Path, deleted: bool
) -> None:
    for start in range(0, 3000, 500):
        await engine.insert([[bench.new(f"job-{start + n}")] for n in range(500)], bench.now)
    engine.last = await engine.flush(engine.js)
    engine.projection.close()
    arguments = [server.url, str(path), engine.layout.namespace, engine.identity, str(engine.last)]
    processes = [started(arguments) for _ in range(3)]
    try:
        for process in processes:
            assert process.stdout
            assert await asyncio.to_thread(process.stdout.readline) == "ready\n"
        for process in processes:
            assert process.stdin
            process.stdin.write("go\n")
            process.stdin.flush()
        if deleted:
            for file in path.parent.iterdir():
                file.unlink(missing_ok=True)
        for process in processes:
            assert process.stdout
            assert await asyncio.to_thread(process.stdout.readline) == "3000\n"
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    await engine.compare_with_fresh()


async def test_file_that_cannot_be_written_is_done_without(
    engine: ProjectedEngine, bench: Bench, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await bench.add("a")
    await engine.look()
    for place in ("/proc/none/projection.db", str(tmp_path)):
        projection = Projection(place, engine.layout)
        projection.open(engine.identity)
        assert projection.path is None
        assert place in caplog.text
        await projection.catch_up(engine.js, engine.layout.stream, engine.last)
        assert [job.id for job in projection.find(Filter()).jobs] == ["a"]
        projection.close()


@pytest.mark.timeout(30)
async def test_lock_of_a_process_that_was_stopped_is_not_waited_for_for_ever(
    engine: ProjectedEngine,
    bench: Bench,
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("headrace.engine.nats.projection.database.PATIENCE", 0.1)
    await bench.add("a")
    projection = await engine.look()
    with path.with_name(f"{path.name}-lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        projection.discard()
        await projection.catch_up(engine.js, engine.layout.stream, engine.last)
    assert projection.path is None
    assert "another process holds the projection's lock" in caplog.text
    assert [job.id for job in projection.find(Filter()).jobs] == ["a"]


# Query plans

INDEXES = {
    "known": "sqlite_autoindex_job_1 (id=?)",
    "graves": "PRIMARY KEY (id=?)",
    "jobs": "INTEGER PRIMARY KEY (rowid=?)",
    "heads": "sqlite_autoindex_job_1 (id=?)",
    "delete_entries": "INTEGER PRIMARY KEY (rowid>? AND rowid<?)",
    "journal": "INTEGER PRIMARY KEY (rowid>?)",
    "journal_of": "INTEGER PRIMARY KEY (rowid=?)",
    "ended": "COVERING INDEX job_ended (service=? AND queue=? AND state=? AND ended_at>?)",
    "oldest_of_place": "job_place (service=? AND queue=? AND state=?)",
    "gone": "grave_last (last<?)",
    "find_ids": "sqlite_autoindex_job_1 (id=? AND rowid<?)",
    "find_label": "PRIMARY KEY (kind=? AND name=? AND job<?)",
    "find_place": "COVERING INDEX job_place (service=? AND queue=? AND state=? AND seq<?)",
    "find_active": "COVERING INDEX job_active (lease_until<?)",
    "find_expiring": "job_expiring (expires_at>? AND expires_at<?)",
}


@pytest.fixture
def database(path: Path) -> Iterator[apsw.Connection]:
    projection = Projection(str(path), Layout())
    projection.open("x")
    projection.close()
    connection = apsw.Connection(str(path))
    yield connection
    connection.close()


@pytest.mark.parametrize("name", sorted(INDEXES))
def test_statement_uses_the_index_meant_for_it(database: apsw.Connection, name: str) -> None:
    sql = for_rows(STATEMENTS[name], 2)
    assert name in STATEMENTS
    for bindings in range(20):
        try:
            rows = database.execute(f"EXPLAIN QUERY PLAN {sql}", [None] * bindings).fetchall()
        except apsw.BindingsError:
            continue
        assert any(INDEXES[name] in str(row[3]) for row in rows), rows
        return
