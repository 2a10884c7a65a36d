"""`headrace key`: a concurrency key, looked into, and released where its owner is gone."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

import click
import msgspec
from click.exceptions import Exit

from headrace.cli import shapes
from headrace.cli.command import Desk, Group, on_app
from headrace.cli.output import Cell, Column, Styled, say
from headrace.cli.text import ago, moment, plural, span
from headrace.core import keys
from headrace.core.errors import HeadraceError
from headrace.core.model import Job, KeyStatus, OnLost

key = Group("key", help="Look into concurrency keys, and release them.")

segments_argument = click.argument("segments", metavar="SEGMENT...", nargs=-1, required=True)

_HASH = re.compile("[0-9a-f]{64}")
_MOST = 256
"""So many readings of the segments are looked up at most."""


def readings(segments: Sequence[str]) -> list[str]:
    """The hashes that segments may stand for: `42` is text or a number, `"42"` only text.

    A single hash, as `job view` shows it, stands for itself.
    """
    if len(segments) == 1 and _HASH.fullmatch(segments[0]):
        return [segments[0]]
    choices = itertools.product(*(_scalars(segment) for segment in segments))
    return [keys.hash_of(chosen) for chosen in itertools.islice(choices, _MOST)]


def _scalars(segment: str) -> list[keys.Scalar]:
    try:
        value = msgspec.json.decode(segment.encode("utf-8", "surrogateescape"))
    except msgspec.DecodeError:
        return [segment]
    if isinstance(value, str):
        return [value]
    return [segment, value] if isinstance(value, bool | int | float) else [segment]


async def _found(desk: Desk, segments: Sequence[str]) -> list[KeyStatus]:
    statuses = [await desk.app.key(hash=hash) for hash in readings(segments)]
    found = [status for status in statuses if status is not None]
    if not found:
        raise HeadraceError(
            f"no living job of service {desk.app.service!r} has the key {keys.name_of(segments)!r};"
            " give its segments as separate words, or its hash from `job view`"
        )
    return found


@key.command("show")
@segments_argument
@on_app()
async def show(desk: Desk, /, segments: tuple[str, ...]) -> None:
    """Show who holds a key and who waits for it.

    \b
    headrace key show tenant 42
    """
    found, now = await _found(desk, segments), desk.now()
    if desk.out.json:
        desk.out.value([shapes.key(status, now) for status in found])
        return
    for status in found:
        _status(desk, status, now)


def _status(desk: Desk, status: KeyStatus, now: int) -> None:
    limit = next((job.key for job in (*status.active, *status.next) if job.key), None)
    most = f" of {limit.max_active}" if limit else ""
    desk.out.line(Styled(f"key {status.name}", "bold"), f" of service {status.service}")
    desk.out.fields(
        [
            ("hash", status.hash),
            ("active", f"{len(status.active)}{most}"),
            ("queued", str(status.queued)),
            ("takeovers", str(status.takeovers)),
        ]
    )
    if status.active:
        desk.out.title("Active")
        columns = [Column(name) for name in _OWNER]
        owners = zip(status.active, status.heartbeats, strict=True)
        desk.out.table(columns, [_owner(job, beat, now) for job, beat in owners])
    if status.next:
        desk.out.title("Next")
        for job in status.next:
            desk.out.line(f"  {job.id}  {job.shown(now)}  {job.queue}  {job.type}")


_OWNER = ("ID", "TYPE", "WORKER", "RUNS FOR", "HEARTBEAT", "LEASE UNTIL")


def _owner(job: Job, heartbeat: int | None, now: int) -> list[Cell]:
    runs = span(now - job.started_at) if job.started_at else ""
    lease = moment(job.lease_until, now) if job.lease_until else ""
    lapsed = job.lease_until is not None and job.lease_until <= now
    beat = "none" if heartbeat is None else ago(heartbeat, now)
    until = Styled(lease, "red") if lapsed else lease
    return [job.id, job.type, job.worker or "", runs, beat, until]


@key.command("release")
@segments_argument
@click.option("--reason", default="released by an operator", help="Kept with the job.")
@on_app()
async def release(desk: Desk, /, segments: tuple[str, ...], reason: str) -> None:
    """Take the slots of a key from owners whose lease has run out; their jobs end stale."""
    found = await _found(desk, segments)
    if len(found) > 1:
        hashes = " or ".join(status.hash for status in found)
        raise HeadraceError(f"{found[0].name!r} may be several keys; give a hash: {hashes}")
    (status,) = found
    released = await desk.app.release_key(hash=status.hash, reason=reason)
    if desk.out.json:
        desk.out.value({"key": status.name, "hash": status.hash, "released": released})
    elif released:
        desk.out.line(f"released {plural(released, 'slot')} of key {status.name}")
    if not released:
        say(f"Error: {_unreleased(status, desk.now())}")
        raise Exit(1)


def _unreleased(status: KeyStatus, now: int) -> str:
    held = [job for job in status.active if (job.lease_until or 0) > now]
    if not held:
        return f"key {status.name!r} has no owner: nothing to release"
    who = ", ".join(f"{job.id} on {job.worker}" for job in held)
    blocks = any(job.key and job.key.on_lost is OnLost.BLOCK for job in held)
    wait = "" if blocks else "; a lease that runs out is taken without this"
    return f"key {status.name!r} is held by living owners ({who}); cancel their jobs{wait}"
