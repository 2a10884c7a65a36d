"""Deployments: where the store of a run is, and what can go wrong with it.

An engine gets its place in the lab by a small class: `start` says where the store is, `faults` what
the nemesis can do to it.
"""

# pyright: reportUnknownMemberType=false
# apsw's stubs do not name their types on Python 3.11.

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

import apsw

from headrace.core.errors import InvalidValue
from headrace.testing.lab.scene import Kind, Scene


class Deployment(Protocol):
    """A store for one run."""

    name: str
    unavailable_is_unwritten: bool
    """Whether `EngineUnavailable` says for certain that nothing was written."""

    @property
    def faults(self) -> Mapping[str, Kind]:
        """What can be done to the store."""
        ...

    async def start(self, folder: Path) -> str:
        """Makes an empty store with its data in the folder; returns its URL."""
        ...

    async def stop(self) -> None: ...


class SqliteDeployment:
    """A file. Its disk can be full or slow, and a stranger can hold the write lock."""

    name = "sqlite"
    unavailable_is_unwritten = True

    def __init__(self) -> None:
        self._path: Path | None = None

    @property
    def faults(self) -> Mapping[str, Kind]:
        return {
            "full-disk": Kind(8, _full_disk),
            "slow-disk": Kind(5, _slow_disk),
            "hold-lock": Kind(6, self._hold_lock),
        }

    async def start(self, folder: Path) -> str:
        self._path = folder / "jobs.db"
        # No fault here takes the power away, so nothing is lost by not waiting for the disk.
        return f"sqlite:{self._path}?synchronous=normal&busy_timeout=5"

    async def stop(self) -> None:
        self._path = None

    async def _hold_lock(self, scene: Scene) -> str | None:
        """A stranger writes, and takes its time."""
        seconds = scene.chance.uniform(0.1, 0.8)
        await asyncio.to_thread(self._write_slowly, seconds)
        return f"{seconds:.1f} s"

    def _write_slowly(self, seconds: float) -> None:
        connection = apsw.Connection(str(self._path))
        try:
            connection.set_busy_timeout(5000)
            connection.execute("BEGIN IMMEDIATE")
            time.sleep(seconds)
            connection.execute("ROLLBACK")
        except apsw.BusyError:
            return  # a frozen process has the lock: long enough
        finally:
            connection.close()


async def _slow_disk(scene: Scene) -> str | None:
    """Every write of every process takes some milliseconds longer."""
    scene.panel.lag = scene.chance.uniform(0.001, 0.02)
    try:
        await asyncio.sleep(scene.chance.uniform(0.3, 1.5))
    finally:
        scene.panel.lag = 0.0
    return "all processes"


async def _full_disk(scene: Scene) -> str | None:
    """Every write of some processes fails, as it does when nothing is left to write on.

    By a limit on the size of their files, which needs no privileges: SQLite's writes end with
    EFBIG in the middle of commits, and so do the processes' notes.
    """
    members = [m for m in scene.crew.members if scene.chance.random() < 0.7]
    for member in members:
        scene.crew.limit_files(member, 0)
    try:
        await asyncio.sleep(scene.chance.uniform(0.2, 1.5))
    finally:
        for member in members:
            scene.crew.limit_files(member, None)
    return f"{len(members)} processes" if members else None


def _nats(nodes: int) -> Callable[[], Deployment]:
    def make() -> Deployment:
        from headrace.testing.lab.nats import NatsDeployment

        return NatsDeployment(nodes)

    return make


DEPLOYMENTS: dict[str, Callable[[], Deployment]] = {
    "sqlite": SqliteDeployment,
    "nats": _nats(1),
    "nats3": _nats(3),
}
"""Every engine that the lab can drive, by its name."""


def deployment(name: str) -> Deployment:
    """The deployment of an engine."""
    if name not in DEPLOYMENTS:
        raise InvalidValue("engine", f"{name!r} is none of {', '.join(DEPLOYMENTS)}")
    return DEPLOYMENTS[name]()
