"""Detached jobs, from outside: whoever holds the token settles the job, from any process."""

from __future__ import annotations

import random
from datetime import timedelta
from typing import TYPE_CHECKING

import msgspec

from headrace.core import codec, outcome
from headrace.core.change import Applied, NotApplied
from headrace.core.errors import InvalidValue, JobNotFound, PayloadTooLarge, Refused
from headrace.core.model import MAX_RESULT, Job
from headrace.core.names import check_name
from headrace.core.outcome import Outcome, Problem, settle
from headrace.core.values import milliseconds, positive, text
from headrace.runtime.context import parse_token

if TYPE_CHECKING:
    from headrace.app.app import App


class DetachedJob:
    """`app.detached(token)`: the first call wins, later ones raise Refused."""

    def __init__(self, app: App, token: str) -> None:
        self._app = app
        if not isinstance(token, str) or len(token) > 150:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidValue("token", f"{str(token)[:40]!r} is not a token of a detached job")
        self.id, self._token = parse_token(token)

    async def complete(self, result: object = None) -> Job:
        """The job completed with this result."""
        raw = msgspec.Raw(codec.encode(result, "the result"))
        if len(bytes(raw)) > MAX_RESULT:
            raise PayloadTooLarge(len(bytes(raw)), MAX_RESULT, "result")
        return await self._settle(outcome.Completed(raw))

    async def fail(self, message: str, *, type: str = "Failed", retry: bool = True) -> Job:
        """The try failed; without `retry`, the job fails at once."""
        problem = Problem(text("type", type), text("message", message))
        return await self._settle(outcome.Failed(problem) if retry else outcome.Terminated(problem))

    async def move_to(
        self, queue: str, type: str | None = None, *, delay: float | timedelta = 0
    ) -> Job:
        """The job goes on in another queue."""
        check_name("queue", queue)
        if type is not None:
            check_name("type", type)
        run_at = self._app.clock.now() + milliseconds("delay", delay)
        return await self._settle(outcome.Moved(queue, type, run_at))

    async def renew(self, timeout: float | timedelta) -> Job:
        """Gives the job so much more time from now."""
        until = self._app.clock.now() + positive("timeout", timeout)
        return await self._settle(outcome.Detached(until))

    async def _settle(self, result: Outcome) -> Job:
        engine = await self._app.engine()
        details = (await engine.get([self.id]))[0]
        if details is None:
            raise JobNotFound(self.id)
        job = msgspec.structs.replace(details.job, token=self._token)
        settings = await self._app.queue(job.queue).settings()
        change = settle(job, result, self._app.clock.now(), random.random(), settings)
        change = msgspec.structs.replace(change, job=details.job)
        answer = (await engine.apply([change]))[0]
        match answer:
            case Applied(job=after):
                return after
            case NotApplied(reason=reason):
                raise Refused(f"detached job {self.id} was settled already: {reason}")
