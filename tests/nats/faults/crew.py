"""Real processes on a real server, and what must hold whatever was done to them."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from headrace import App, EngineUnavailable, State
from headrace.core.states import EventType
from tests.nats.faults.program import Diary
from tests.support import eventually

ROOT = Path(__file__).parents[3]
LIMIT = 45.0
"""Seconds for things that must come in the end: a lease may have to run out first."""


class Note(NamedTuple):
    """A line of the diary."""

    at: int
    what: str
    words: list[str]


class Crew:
    """The processes of a test."""

    def __init__(self, url: str, folder: Path) -> None:
        mark = "&" if "?" in url else "?"
        self.url = f"{url}{mark}projection={folder / 'projection.db'}"
        self._folder = folder
        self._diary_path = folder / "diary"
        self.diary = Diary(self._diary_path)
        self._errors = (folder / "errors").open("wb")
        self._processes: dict[int, tuple[str, subprocess.Popen[bytes]]] = {}

    def start(self, role: str, url: str | None = None) -> subprocess.Popen[bytes]:
        order = ["-m", "tests.nats.faults.program", role, url or self.url, self._diary_path]
        process = subprocess.Popen([sys.executable, *order], cwd=ROOT, stderr=self._errors)
        self._processes[process.pid] = role, process
        return process

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        process.kill()
        process.wait()
        self.diary.note("dead", process.pid)
        del self._processes[process.pid]

    def kill_all(self, role: str) -> None:
        for process in self.of(role):
            self.kill(process)

    def of(self, role: str) -> list[subprocess.Popen[bytes]]:
        return [process for one, process in self._processes.values() if one == role]

    def stop_workers(self) -> None:
        """In an orderly way: they must end well."""
        for process in self.of("worker"):
            process.terminate()
        for process in self.of("worker"):
            assert process.wait(20) == 0, self.said()
            del self._processes[process.pid]

    def close(self) -> None:
        for _, process in list(self._processes.values()):
            self.kill(process)
        self._errors.close()

    # What they wrote

    def notes(self, what: str | None = None) -> list[Note]:
        found: list[Note] = []
        complete, _, _ = self._diary_path.read_text().rpartition("\n")  # one may be half read
        for line in complete.splitlines():
            at, kind, *words = line.split(" ")
            if what in (None, kind):
                found.append(Note(int(at), kind, words))
        return found

    def said(self) -> str:
        """The end of what they logged."""
        return (self._folder / "errors").read_text()[-4000:]

    @property
    def done(self) -> int:
        return len(self.notes("done"))

    async def progress(self, more: int = 40) -> None:
        """Waits until so many more jobs are done."""
        goal = self.done + more
        await self.until(lambda: self.done >= goal)

    async def until(self, check: Callable[[], object]) -> None:
        try:
            await eventually(check, LIMIT)
        except AssertionError as error:
            error.add_note(self.said())
            raise

    # What must hold

    async def check(self, least: int = 50) -> None:
        """Every confirmed job has ended exactly once, no job is stuck, no key ran too often."""
        accepted = {note.words[0] for note in self.notes("accepted")}
        assert len(accepted) >= least, f"too little happened to prove anything\n{self.said()}"
        async with App(self.url) as app:
            try:
                await self.until(lambda: _all_completed(app, accepted))
            except AssertionError as error:
                error.add_note(await _stuck(app))
                raise
            ids = {job.id async for job in app.find(limit=None)}
            assert accepted <= ids, "a confirmed job is gone"
            check_stories(await _stories(app))
        check_diary(self.notes())


async def _all_completed(app: App, accepted: set[str]) -> bool:
    try:
        counts = {counted.state: counted.jobs for counted in await app.count()}
    except EngineUnavailable:
        return False
    return counts.keys() == {State.COMPLETED} and counts[State.COMPLETED] >= len(accepted)


async def _stuck(app: App) -> str:
    """The first jobs that have not ended, for whoever reads the failure."""
    lines: list[str] = []
    engine = await app.engine()
    async for job in app.find(limit=None):
        if job.state is not State.COMPLETED and len(lines) < 5:
            events = [entry.event.event for entry in await engine.journal(0, 1000, job.id)]
            lines.append(f"{job} at {time.time() * 1000:.0f}: {events}")
    return "\n".join(lines)


async def _stories(app: App) -> dict[str, Counter[EventType]]:
    """What happened to each job, by the journal."""
    engine = await app.engine()
    stories: defaultdict[str, Counter[EventType]] = defaultdict(Counter)
    after = 0
    while entries := await engine.journal(after, 1000):
        for entry in entries:
            stories[entry.event.job_id][entry.event.event] += 1
        after = entries[-1].event.seq
        await asyncio.sleep(0)
    return stories


def check_stories(stories: dict[str, Counter[EventType]]) -> None:
    for job_id, story in stories.items():
        assert story[EventType.CREATED] == 1, f"{job_id} was made twice: {story}"
        assert story[EventType.COMPLETED] == 1, f"{job_id} has not ended exactly once: {story}"
        assert story[EventType.STARTED] == story[EventType.RETRY] + 1, f"{job_id}: {story}"


def check_diary(notes: list[Note]) -> None:
    """By what the handlers saw: no key ran twice at once, tokens only grew, nothing ran again."""
    running: dict[str, tuple[str, str]] = {}
    token_of: defaultdict[str, int] = defaultdict(int)
    done: set[str] = set()
    for note in sorted(notes):
        match note.what, note.words:
            case "start", [job_id, pid, key, token]:
                assert job_id not in done, f"{job_id} ran again after it was confirmed"
                for scope in (job_id, f"key {key}") if key != "-" else (job_id,):
                    assert int(token) > token_of[scope], f"{scope}: token {token} did not grow"
                    token_of[scope] = int(token)
                if key != "-":
                    assert key not in running, f"key {key}: {job_id} beside {running[key]}"
                    running[key] = job_id, pid
            case "end", [job_id, pid, key]:
                if running.get(key) == (job_id, pid):
                    del running[key]
            case "done", [job_id, _]:
                assert job_id not in done, f"{job_id} was confirmed twice"
                done.add(job_id)
            case "dead", [pid]:
                running = {key: run for key, run in running.items() if run[1] != pid}
            case what, _:
                assert what in ("accepted", "unsure")
    assert not running
