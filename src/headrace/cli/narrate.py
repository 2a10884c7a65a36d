"""A worker's log tells what became of jobs: failures always, successes at level debug."""

from __future__ import annotations

import logging
import os
from collections.abc import Awaitable, Callable
from typing import Any

from headrace import runtime
from headrace.cli.text import one_line, span
from headrace.core.change import Answer, Applied
from headrace.core.model import Job
from headrace.core.states import EventType
from headrace.runtime.context import JobContext

log = logging.getLogger("headrace.jobs")


def narrator(ctx: JobContext, proceed: Callable[[], Awaitable[Any]]) -> Awaitable[Any]:
    """A middleware that lets the handler be, and listens for the outcome."""
    ctx.call_after(_told)
    return proceed()


def _told(_: JobContext, answer: Answer) -> None:
    if isinstance(answer, Applied):
        tell(answer.job)


def tell(job: Job) -> None:
    """One line on an outcome; a failure with its traceback."""
    level = _LEVELS.get(job.event, logging.INFO)
    if not log.isEnabledFor(level):
        return
    text = f"{job.type} {job.id} {_WORDS.get(job.event, job.event)}"
    if job.started_at is not None and job.event is EventType.COMPLETED:
        text += f" after {span(job.updated_at - job.started_at)}"
    if job.error is not None and job.event in _FAILED:
        text += f": {job.error.type}: {one_line(job.error.message)}"
    if job.event is EventType.RETRY:
        text += f"; again in {span(job.run_at - job.updated_at)}"
    if job.event in _FAILED and job.error is not None and job.error.traceback:
        text += "\n" + frames(job.error.traceback)
    log.log(level, "%s", text)


def frames(traceback: str) -> str:
    """The traceback without the frames of the worker itself, which are the same for every job."""
    kept: list[str] = []
    ours = False
    for line in traceback.rstrip().splitlines():
        if line.startswith("  File "):
            ours = line.startswith(f'  File "{_RUNTIME}')
        elif not line.startswith("    "):
            ours = False
        if not ours:
            kept.append(line)
    return "\n".join(kept)


_RUNTIME = os.path.dirname(runtime.__file__) + os.sep

_FAILED = frozenset({EventType.RETRY, EventType.FAILED, EventType.DEAD})
_WORDS = {EventType.RETRY: "failed its try", EventType.DEAD: "is dead", EventType.MOVED: "moved on"}
_LEVELS = {
    EventType.COMPLETED: logging.DEBUG,
    EventType.RETRY: logging.WARNING,
    EventType.EXPIRED: logging.WARNING,
    EventType.FAILED: logging.ERROR,
    EventType.DEAD: logging.ERROR,
}
