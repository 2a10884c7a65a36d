"""The show: the story, the view of it, and the summary that checks it."""

from __future__ import annotations

import asyncio
import signal
import time
from pathlib import Path

import diary
import tasks
from board import Board
from checks import Records, checks
from crew import Crew, WorkerDied
from rich.console import Console
from rich.text import Text
from story import Facts, Story, TookTooLong
from view import LiveView, PlainView

from headrace import App

INTERRUPTED = 130
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Show:
    """Everything that runs in the demo's own process."""

    def __init__(self, app: App, crew: Crew, folder: Path, console: Console) -> None:
        self._app, self._crew, self._folder, self._console = app, crew, folder, console
        live = console.is_terminal and not console.is_dumb_terminal
        self._began = time.monotonic()
        self._board = Board(time.time())
        view = LiveView(self._board, self._crew, console) if live else PlainView(self._board)
        self._view = view
        # Nobody reads along where there is no terminal.
        self._story = Story(app, self._crew, self._board, view, pace=1.0 if live else 0.3)

    async def run(self) -> int:
        """The exit code."""
        try:
            with self._view.shown():
                facts = await self._play()
        except (WorkerDied, TookTooLong) as error:
            self._print(f"\n{error}", "red")
            return 1
        return self._summary(facts)

    async def _play(self) -> Facts:
        story = asyncio.create_task(self._story.play())
        chores = [asyncio.create_task(self._follow()), asyncio.create_task(self._look())]
        try:
            await asyncio.wait([story, *chores], return_when=asyncio.FIRST_COMPLETED)
            for chore in chores:
                if chore.done():
                    chore.result()  # it ends only by an error
            facts = await story
            chores[1].cancel()
            await asyncio.to_thread(self._crew.stop)
            return facts
        finally:
            for task in (story, *chores):
                task.cancel()
            await asyncio.gather(story, *chores, return_exceptions=True)

    async def _follow(self) -> None:
        """Reads the journal as it is written."""
        async for entry in self._app.events(follow=True):
            self._board.fold(entry)
            self._story.changed.set()

    async def _look(self) -> None:
        """Sees who is there, and draws."""
        while True:
            for presence in await self._app.workers():
                worker = self._crew.by_pid(presence.pid)
                if worker and presence.id not in self._board.names:
                    self._board.names[presence.id] = worker.name
                    self._story.changed.set()
            self._crew.check()
            self._view.refresh()
            await asyncio.sleep(0.1)

    def _summary(self, facts: Facts) -> int:
        """Says what was found, and whether it is as it should be."""
        notes = diary.read(self._folder / "diary.txt")
        found = list(checks(Records(self._board, notes, facts)))
        spent = time.monotonic() - self._began
        self._print(f"\n{len(self._crew.workers)} workers, one killed, {spent:.0f} s\n", "bold")
        good, bad = ("✓", "✗") if self._console.encoding.startswith("utf") else ("ok", "NO")
        for check in found:
            mark = (good, "green") if check.holds else (bad, "bold red")
            self._print(Text.assemble("  ", mark, f" {check.text}"))
        if all(check.holds for check in found):
            self._print("\nAll as it should be. Read on in demo/tasks.py, README.md and docs/.")
            return 0
        self._print("\nNot all is as it should be. Please report it.", "bold red")
        return 1

    def _print(self, text: str | Text, style: str = "") -> None:
        self._console.print(text, style=style, soft_wrap=not self._console.is_terminal)


async def watched(crew: Crew, folder: Path) -> int:
    """Runs the show until its end, or until the first signal."""
    loop = asyncio.get_running_loop()
    async with tasks.app as app:
        console = Console(highlight=False)
        running = asyncio.create_task(Show(app, crew, folder, console).run())
        for number in SIGNALS:
            loop.add_signal_handler(number, running.cancel)
        try:
            return await running
        except asyncio.CancelledError:
            console.print("Stopped. The workers and the store go too.")
            return INTERRUPTED
