"""Real processes, really killed, over one SQLite file (FEATURES 8.2, 8.3, 5.7, 7.1)."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from headrace import App, State
from headrace.core.states import EventType
from tests.crash.program import MAX_ACTIVE, Diary
from tests.support import eventually, story

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(90)]


class Crew:
    """The processes of a test, by role; those that die are started again."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.store, self.diary_path = folder / "jobs.db", folder / "diary"
        self.diary = Diary(self.diary_path)
        self.chance = random.Random(seed)
        self._errors = (folder / "errors").open("wb")
        self.processes: dict[int, tuple[str, subprocess.Popen[bytes]]] = {}
        self.deaths = 0

    def start(self, role: str) -> subprocess.Popen[bytes]:
        seed = str(self.chance.randrange(10**9))
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.program", role, self.store, self.diary_path, seed],
            cwd=ROOT,
            stderr=self._errors,
        )
        self.processes[process.pid] = (role, process)
        return process

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        process.kill()
        self._bury(process)

    def _bury(self, process: subprocess.Popen[bytes]) -> str:
        """Says in the diary that a process is dead, well before its leases run out."""
        process.wait()
        self.diary.note("dead", process.pid)
        self.deaths += 1
        return self.processes.pop(process.pid)[0]

    def replace_the_dead(self) -> None:
        for role, process in list(self.processes.values()):
            if process.poll() is not None:
                self._bury(process)
                self.start(role)

    def of(self, role: str) -> list[subprocess.Popen[bytes]]:
        return [process for one, process in self.processes.values() if one.endswith(role)]

    def end(self, role: str = "") -> None:
        for process in self.of(role):
            self.kill(process)

    async def stop_in_order(self) -> None:
        workers = self.of("worker")
        await eventually(lambda: all(self._is_ready(process.pid) for process in workers))
        for process in workers:
            process.terminate()
        for process in workers:
            assert process.wait(20) == 0

    def _is_ready(self, pid: int) -> bool:
        """Whether the worker listens to signals."""
        return ["ready", str(pid)] in self.lines()

    def close(self) -> None:
        self.end()
        self._errors.close()

    def lines(self) -> list[list[str]]:
        return [line.split() for line in self.diary_path.read_text().splitlines()]


@pytest.fixture
def crew(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Crew]:
    crew = Crew(tmp_path, 20_300_101)
    yield crew
    crew.close()


@pytest.fixture
async def app(crew: Crew) -> AsyncIterator[App]:
    async with App(crew.store) as app:
        yield app


async def all_completed(app: App, accepted: set[str]) -> bool:
    counts = {counted.state: counted.jobs for counted in await app.count()}
    return counts.keys() == {State.COMPLETED} and counts[State.COMPLETED] >= len(accepted)


async def check(app: App, crew: Crew) -> None:
    """What must hold, whatever died when."""
    lines = crew.lines()
    accepted = {line[1] for line in lines if line[0] == "accepted"}
    assert len(accepted) > 100, "too little happened to prove anything"
    await eventually(lambda: all_completed(app, accepted), limit=30)
    jobs = {job.id: job async for job in app.find(limit=None)}
    assert accepted <= jobs.keys(), "a confirmed job is gone"
    for job in jobs.values():
        assert job.state is State.COMPLETED
        events = Counter(await story(app, job.id))
        assert events[EventType.COMPLETED] == 1
        assert events[EventType.STARTED] == events[EventType.RETRY] + 1
    check_diary(crew.lines())


def check_diary(lines: list[list[str]]) -> None:
    running: defaultdict[str, set[tuple[str, str]]] = defaultdict(set)
    done: set[str] = set()
    for words in lines:
        match words:
            case ["start", job_id, pid, key]:
                assert job_id not in done, f"{job_id} ran again after it was confirmed"
                assert all(job_id != one for one, _ in running[key]), f"{job_id} ran twice at once"
                running[key].add((job_id, pid))
                assert len(running[key]) <= MAX_ACTIVE, f"key {key} runs {running[key]}"
            case ["end", job_id, pid, key]:
                running[key].discard((job_id, pid))
            case ["done", job_id, _]:
                assert job_id not in done
                done.add(job_id)
            case ["dead", pid]:
                for runs in running.values():
                    runs -= {run for run in runs if run[1] == pid}
            case _:
                assert words[0] in ("accepted", "ready")
    assert not any(running.values())


async def test_nothing_is_lost_or_done_twice_when_processes_are_killed(
    app: App, crew: Crew
) -> None:
    for role in ("producer", "producer", "worker", "worker", "worker"):
        crew.start(role)
    await eventually(lambda: any(line[0] == "done" for line in crew.lines()))
    end = time.monotonic() + 8
    while time.monotonic() < end:
        await asyncio.sleep(crew.chance.uniform(0.05, 0.5))
        role, process = crew.chance.choice(list(crew.processes.values()))
        crew.kill(process)
        crew.start(role)
    crew.end("producer")
    await check(app, crew)
    assert crew.deaths > 10
    await crew.stop_in_order()


async def test_nothing_is_lost_when_processes_die_within_their_commits(
    app: App, crew: Crew
) -> None:
    """Before the transaction, with it open, and after it but before anybody was told."""
    for role in ("deadly-producer", "deadly-producer", "deadly-worker", "deadly-worker", "worker"):
        crew.start(role)
    end = time.monotonic() + 9
    while time.monotonic() < end:
        crew.replace_the_dead()
        await asyncio.sleep(0.02)
    crew.end("producer")
    for process in crew.of("deadly-worker"):
        crew.kill(process)
    crew.start("worker")
    await check(app, crew)
    assert crew.deaths > 5
    await crew.stop_in_order()


async def test_worker_that_was_stopped_past_its_lease_cannot_finish(
    app: App, crew: Crew, tmp_path: Path
) -> None:
    frozen = crew.start("worker")
    (answer,) = await app.enqueue_many([app.prepare("slow", {"folder": str(tmp_path)})])
    assert answer.ref
    ref = answer.ref
    await eventually((tmp_path / "try-1").exists)
    first = (await ref.get()).worker
    os.kill(frozen.pid, signal.SIGSTOP)
    crew.start("worker")
    await eventually((tmp_path / "try-2").exists)
    second = await ref.get()
    assert (second.state, second.tries) == (State.ACTIVE, 2)
    assert second.worker != first
    (tmp_path / "go-1").touch()
    os.kill(frozen.pid, signal.SIGCONT)
    await eventually(lambda: _ignored(app, ref.id))
    late = await ref.get()
    assert (late.state, late.token, late.result) == (State.ACTIVE, second.token, None)
    (tmp_path / "go-2").touch()
    assert await ref.result(20) == "try 2"
    (error,) = (await ref.details()).errors
    assert error.message == f"worker {first} stopped renewing its lease"
    await crew.stop_in_order()


async def _ignored(app: App, job_id: str) -> bool:
    return EventType.STALE_COMPLETION_IGNORED in await story(app, job_id)
