"""The app of the lab and its handlers."""

from __future__ import annotations

import logging
from collections.abc import Callable
from importlib import import_module
from typing import Any

from headrace.app.app import App
from headrace.app.engines import engine_for
from headrace.engine.protocol import Engine
from headrace.runtime.context import JobContext
from headrace.runtime.handler import Next
from headrace.testing.lab.children import crunch
from headrace.testing.lab.conduct import Conduct, NotCounted
from headrace.testing.lab.history import Plan
from headrace.testing.lab.notes import Notes, Surprise
from headrace.testing.lab.panel import LabClock, Panel


def open_app(plan: Plan, panel: Panel) -> App:
    """The app of a run, by its clock; without tasks."""
    engine = engine_for(plan.url)
    if plan.equip is not None:
        module, _, name = plan.equip.partition(":")
        equip: Callable[[Engine], Engine] = getattr(import_module(module), name)
        engine = equip(engine)
    return App(engine, service="lab", clock=LabClock(plan, panel))


class Handlers:
    """The tasks of the lab on an app: in the event loop, in a thread, and in a child process."""

    def __init__(self, app: App, conduct: Conduct) -> None:
        self._conduct = conduct
        for type, function in (("step", self.step), ("plod", self.plod)):
            app.task(type=type, is_failure=_counts, middleware=[self._told])(function)
        app.task(type="crunch", cpu=True, middleware=[self._told])(crunch)

    async def step(self, ctx: JobContext, mood: str = "easy", tenant: str = "") -> Any:
        return await self._conduct.step(ctx, mood)

    def plod(self, ctx: JobContext, mood: str = "easy", tenant: str = "") -> Any:
        return self._conduct.plod(ctx, mood)

    async def _told(self, ctx: JobContext, proceed: Next) -> Any:
        ctx.call_after(self._conduct.settled)
        return await proceed()


def _counts(error: BaseException) -> bool:
    return not isinstance(error, NotCounted)


class Eavesdropper(logging.Handler):
    """Writes down what workers log as an unexpected exception."""

    def __init__(self, notes: Notes) -> None:
        super().__init__(logging.ERROR)
        self._notes = notes

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            text = f"{record.getMessage()}: {type(error).__name__}: {error}"
            self._notes.write(Surprise(where=record.name, error=text[:2000]))
