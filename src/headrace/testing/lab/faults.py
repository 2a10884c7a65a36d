"""What the nemesis does to processes and to the clock, on any engine.

What it does to a store is with the deployment of that store.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

from headrace.testing.lab.crew import Member
from headrace.testing.lab.notes import Jump
from headrace.testing.lab.scene import Kind, Scene

FARTHEST = 10_000
"""Milliseconds that the clock is ever off."""


async def kill_worker(scene: Scene) -> str | None:
    """SIGKILL, and another worker in its place some moments later."""
    return await _kill(scene, "worker")


async def kill_producer(scene: Scene) -> str | None:
    """SIGKILL of a producer."""
    return await _kill(scene, "producer")


async def _kill(scene: Scene, role: str) -> str | None:
    member = _pick(scene, role)
    if member is None:
        return None
    scene.crew.kill(member)
    try:
        await asyncio.sleep(scene.chance.uniform(0.0, 0.5))
    finally:
        scene.crew.replace(member)
    return member.name


async def dismiss_worker(scene: Scene) -> str | None:
    """SIGTERM: the worker gives back what it cannot finish."""
    member = _pick(scene, "worker")
    if member is None:
        return None
    scene.crew.dismiss(member)
    await asyncio.to_thread(member.process.wait)
    return member.name


async def stall_worker(scene: Scene) -> str | None:
    """SIGSTOP for a moment: leases hold."""
    return await _freeze(scene, "worker", scene.chance.uniform(0.05, 0.5))


async def outlive_lease(scene: Scene) -> str | None:
    """SIGSTOP for longer than a lease: its jobs are taken away while it lives."""
    lease = scene.plan.lease / 1000
    return await _freeze(scene, "worker", scene.chance.uniform(lease * 1.2, lease * 2))


async def freeze_producer(scene: Scene) -> str | None:
    """SIGSTOP of a producer."""
    return await _freeze(scene, "producer", scene.chance.uniform(0.1, 2.0))


async def _freeze(scene: Scene, role: str, seconds: float) -> str | None:
    member = _pick(scene, role)
    if member is None:
        return None
    process = member.process
    scene.crew.freeze(member)
    try:
        await asyncio.sleep(seconds)
    finally:
        scene.crew.thaw(member, process)
    return member.name


async def jump_clock(scene: Scene) -> str | None:
    """The wall clock of all processes jumps, ahead or back."""
    by = scene.chance.choice((-1, 1)) * scene.chance.randint(100, 5000)
    offset = max(-FARTHEST, min(FARTHEST, scene.panel.offset + by))
    before = time.monotonic_ns()
    scene.panel.offset = offset
    scene.notes.write(Jump(mono=before, offset=offset, until=time.monotonic_ns()))
    return f"{by:+} ms"


def _pick(scene: Scene, role: str) -> Member | None:
    """A member of the role that no other fault has in its hands."""
    free = [m for m in scene.crew.of(role) if not m.frozen and not m.leaving]
    return scene.chance.choice(free) if free else None


FAULTS: Mapping[str, Kind] = {
    "kill-worker": Kind(20, kill_worker),
    "kill-producer": Kind(8, kill_producer),
    "dismiss-worker": Kind(6, dismiss_worker),
    "stall-worker": Kind(10, stall_worker),
    "outlive-lease": Kind(10, outlive_lease),
    "freeze-producer": Kind(5, freeze_producer),
    "jump-clock": Kind(8, jump_clock),
}
