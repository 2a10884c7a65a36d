"""The nemesis: chooses faults by chance and sees to it that each is undone in the end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

from headrace.testing.lab.notes import Fault
from headrace.testing.lab.scene import Kind, Scene

AT_ONCE = 3
"""So many faults are under way at one time, at most."""


class Nemesis:
    """Acts while a run is under way."""

    def __init__(self, scene: Scene, kinds: Mapping[str, Kind]) -> None:
        self._scene, self._kinds = scene, kinds
        self._tasks: set[asyncio.Task[None]] = set()
        self.done = 0

    async def run(self, seconds: float) -> None:
        """Does one thing after the other for so long; returns when everything is undone."""
        names, weights = list(self._kinds), [kind.weight for kind in self._kinds.values()]
        end = time.monotonic() + seconds
        try:
            while time.monotonic() < end:
                await asyncio.sleep(self._scene.chance.uniform(0.1, 0.8))
                self._scene.crew.tend()
                if len(self._tasks) < AT_ONCE:
                    name = self._scene.chance.choices(names, weights)[0]
                    task = asyncio.create_task(self._do(name))
                    self._tasks.add(task)
                    task.add_done_callback(self._tasks.discard)
            await asyncio.gather(*self._tasks)
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _do(self, name: str) -> None:
        began = time.monotonic_ns()
        target = await self._kinds[name].fault(self._scene)
        if target is not None:
            self.done += 1
            note = Fault(mono=began, kind=name, target=target, until=time.monotonic_ns())
            self._scene.notes.write(note)
