"""`headrace doctor`: is everything well, and what to do where it is not."""

from __future__ import annotations

import asyncio
import time
from collections import Counter

import click
from click.exceptions import Exit

from headrace.app import bulk
from headrace.app.app import App
from headrace.app.queues import QueueInfo
from headrace.cli import shapes
from headrace.cli.command import Command, shared
from headrace.cli.observing import newest
from headrace.cli.output import Output, Styled
from headrace.cli.target import chosen_app, missing_file
from headrace.cli.text import plural, span
from headrace.core.errors import HeadraceError
from headrace.core.event import rfc3339
from headrace.core.model import Filter, OnLost
from headrace.core.states import WAITING, State
from headrace.engine.protocol import Check, Checkup, Engine, Examinable, Health
from headrace.runtime.presence import Presence

OK, WARN, FAIL = Health.OK, Health.WARN, Health.FAIL

LONG_WAIT = 5 * 60_000
"""A job that could have started so long ago is worth a warning."""
LAPSED = 10_000
"""Rescue comes within seconds of a lease's end; after so long it has not come."""
SKEW = 5_000
"""Clocks may differ by so much."""
SANE_SINCE = 1_704_067_200_000
"""2024-01-01: a clock before that was never set."""

_STYLES = {OK: "green", WARN: "yellow", FAIL: "bold red"}


@click.command("doctor", cls=Command)
def doctor() -> None:
    """Check the store, the workers and the queues. Exit code 1 if something is broken."""
    common = shared()
    out = Output(common.json)
    checks = asyncio.run(examine(chosen_app(common)))
    if common.json:
        out.value([shapes.check(check) for check in checks])
    else:
        _show(out, checks)
    if any(check.health is FAIL for check in checks):
        raise Exit(1)


def _show(out: Output, checks: list[Check]) -> None:
    width = max(len(check.name) for check in checks)
    for check in checks:
        out.line(
            Styled(f"{check.health:<4}", _STYLES[check.health]),
            f"  {check.name:<{width}}  {check.message}",
        )
        if check.remedy:
            out.line(" " * (width + 8), Styled(f"→ {check.remedy}", "bold"))


async def examine(app: App) -> list[Check]:
    """All checks; what cannot be reached ends them."""
    if path := missing_file(app):
        remedy = "name another with --url, $HEADRACE_URL or --app, or add a job to make it"
        return [Check("engine", FAIL, f"{path} does not exist", remedy)]
    began = time.perf_counter()
    try:
        engine = await app.engine()
        await app.count()
    except HeadraceError as error:
        message, _, remedy = str(error).partition("; ")
        await app.close()
        return [Check("engine", FAIL, message, remedy)]
    took = (time.perf_counter() - began) * 1000
    checks = [Check("engine", OK, f"{app.url} answers in {took:.0f} ms")]
    try:
        checkup = await _checkup(engine, app.clock.now())
        present = [worker for worker in await app.workers() if worker.service == app.service]
        checks += checkup.checks
        checks += await _clock(app, engine, present)
        checks += await _queues(app, checkup, present)
        checks += await _leases(app, engine, bool(present))
    except HeadraceError as error:
        message, _, remedy = str(error).partition("; ")
        checks.append(Check("engine", FAIL, message, remedy))
    finally:
        await app.close()
    return checks


async def _checkup(engine: Engine, now: int) -> Checkup:
    return await engine.checkup(now) if isinstance(engine, Examinable) else Checkup()


async def _clock(app: App, engine: Engine, present: list[Presence]) -> list[Check]:
    now, remedy = app.clock.now(), "set the clocks of all machines by NTP"
    if now < SANE_SINCE:
        return [Check("clock", FAIL, f"this machine's clock says {rfc3339(now)}", remedy)]
    entries = await engine.journal(max(0, await newest(engine) - 1), 1)
    ahead = max((entry.event.at for entry in entries), default=now) - now
    if ahead > SKEW:
        text = f"the newest event is {span(ahead)} in the future: some machine's clock is wrong"
        return [Check("clock", FAIL, text, remedy)]
    for worker in present:
        if worker.beat_at - now > SKEW:
            text = f"the clock of {worker.host} is {span(worker.beat_at - now)} ahead of this one"
            return [Check("clock", WARN, text, remedy)]
    return [Check("clock", OK, rfc3339(now))]


async def _queues(app: App, checkup: Checkup, present: list[Presence]) -> list[Check]:
    queues = await app.queues()
    served = Counter(name for worker in present if not worker.stopping for name in worker.queues)
    oldest = {due.queue: due.since for due in checkup.oldest if due.service == app.service}
    waiting = sum(_waiting(info) for info in queues)
    checks = [_workers(present, waiting)]
    now = app.clock.now()
    checks += [_queue(info, served[info.name], oldest.get(info.name), now) for info in queues]
    dead = sum(info.counts.get(State.DEAD, 0) for info in queues)
    if dead:
        remedy = "look with `headrace dead list`, then `dead replay` or `dead dismiss`"
        checks.append(Check("dead letters", WARN, plural(dead, "dead job"), remedy))
    else:
        checks.append(Check("dead letters", OK, "none"))
    return checks


def _waiting(info: QueueInfo) -> int:
    return sum(info.counts.get(state, 0) for state in WAITING)


def _workers(present: list[Presence], waiting: int) -> Check:
    if present:
        busy = sum(len(worker.jobs) for worker in present)
        text = f"{plural(len(present), 'worker')}, {plural(busy, 'running job')}"
        return Check("workers", OK, text)
    if waiting:
        text = f"none, and {plural(waiting, 'job')} waiting"
        return Check("workers", WARN, text, "start one: `headrace worker MODULE:APP`")
    return Check("workers", OK, "none, and nothing to do")


def _queue(info: QueueInfo, workers: int, oldest: int | None, now: int) -> Check:
    name, waiting = f"queue {info.name}", _waiting(info)
    age = None if oldest is None else now - oldest
    text = f"{waiting:,} waiting, {info.counts.get(State.ACTIVE, 0):,} running"
    if age is not None and age > 0:
        text += f"; the oldest due job waits for {span(age)}"
    if info.settings.paused:
        text, remedy = f"is paused; {text}", f"`headrace queue resume {info.name}`"
        return Check(name, WARN if waiting else OK, text, remedy if waiting else "")
    if waiting and not workers:
        remedy = f"start one with `headrace worker MODULE:APP --queue {info.name}`"
        return Check(name, WARN, f"no worker serves it; {text}", remedy)
    if age is not None and age > LONG_WAIT:
        remedy = "start more workers, raise --concurrency, or look for a max_active or rate limit"
        return Check(name, WARN, text, remedy)
    return Check(name, OK, f"is draining; {text}" if info.settings.draining else text)


async def _leases(app: App, engine: Engine, workers: bool) -> list[Check]:
    """Active jobs whose owner stopped renewing, and that nobody has rescued."""
    now = app.clock.now()
    active = frozenset({State.ACTIVE})
    wanted = Filter(service=app.service, states=active, lease_until=now - LAPSED)
    lapsed = [job async for jobs in bulk.pages(engine, wanted) for job in jobs]
    blocked = [job for job in lapsed if job.key and job.key.on_lost is OnLost.BLOCK]
    stuck = len(lapsed) - len(blocked)
    checks: list[Check] = []
    if stuck:
        text = f"{plural(stuck, 'active job')} with a lease that ran out"
        remedy = (
            "a worker should have rescued them: look at the workers' logs"
            if workers
            else "start a worker: it rescues them within seconds"
        )
        checks.append(Check("leases", FAIL if workers else WARN, text, remedy))
    if blocked:
        names = ", ".join(sorted({job.key.name for job in blocked if job.key})[:5])
        text = f"{plural(len(blocked), 'key')} held by an owner that is gone: {names}"
        checks.append(Check("keys", WARN, text, "`headrace key release SEGMENT…`"))
    return checks or [Check("leases", OK, "all held")]
