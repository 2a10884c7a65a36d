"""The runs of a worker: the jobs that it holds, from their claim until their outcome is stored."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from headrace.core.model import Job
from headrace.runtime.context import JobContext
from headrace.runtime.handler import Handler


class Claimant(NamedTuple):
    """For whom jobs are claimed, and for how many milliseconds."""

    service: str
    worker: str
    lease: int


class Run:
    """One job in the hands of a worker."""

    __slots__ = ("begun", "ctx", "ended", "handler", "job", "limit", "task")

    def __init__(self, job: Job, ctx: JobContext, handler: Handler | None, limit: int) -> None:
        self.job, self.ctx, self.handler = job, ctx, handler
        self.limit: int | None = limit
        """When it must be done."""
        self.begun = self.ended = False
        self.task: asyncio.Task[None] | None = None


Runs = dict[int, Run]
"""By fencing token, which no two of them share."""
