"""What helps to test.

For users, importable from here: a clock that moves by hand, a worker that runs until nothing is
due, assertions on what was enqueued, and a way to run a handler without a worker.
`headrace.testing.plugin` makes pytest fixtures of them.

For engines: `headrace.testing.conformance` holds an engine to the behaviour that every engine
has; `headrace.testing.machine` drives it beside the memory engine with random interleavings.
Both need pytest and Hypothesis. `headrace.testing.lab` tries to break it with real processes and
real faults, and judges what happened.

Nothing is imported before it is used: pytest loads the plugin in every run.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.testing.clock import ManualClock
    from headrace.testing.direct import Setup, TaskRun, run_task
    from headrace.testing.expect import arguments, assert_enqueued, assert_not_enqueued, jobs
    from headrace.testing.kit import Summary, run_until_idle, running

_HOMES = {
    "ManualClock": "clock",
    "Setup": "direct",
    "Summary": "kit",
    "TaskRun": "direct",
    "arguments": "expect",
    "assert_enqueued": "expect",
    "assert_not_enqueued": "expect",
    "jobs": "expect",
    "run_task": "direct",
    "run_until_idle": "kit",
    "running": "kit",
}

__all__ = [
    "ManualClock",
    "Setup",
    "Summary",
    "TaskRun",
    "arguments",
    "assert_enqueued",
    "assert_not_enqueued",
    "jobs",
    "run_task",
    "run_until_idle",
    "running",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"headrace.testing.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
