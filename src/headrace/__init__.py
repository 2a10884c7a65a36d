"""Durable background jobs for Python: one SQLite file on a laptop, a cluster for scale.

from headrace import App

app = App("sqlite:jobs.db")

@app.task(queue="mail")
async def welcome(address: str) -> str:
    return f"sent to {address}"

ref = await welcome.enqueue("ada@example.org")
print(await ref.result(timeout=10))
"""

import typing as _typing

from headrace.app.app import App
from headrace.app.jobref import JobRef, Snapshot
from headrace.app.options import Debounce, JobOptions, KeepLast, Throttle
from headrace.app.policies import exponential, keep, linear, steps
from headrace.app.queues import Queue, QueueInfo
from headrace.app.task import Prepared, Submission, Task
from headrace.core.admission import Outcome
from headrace.core.errors import (
    AppClosed,
    DuplicateJob,
    EngineError,
    EngineUnavailable,
    EnqueueRefused,
    HeadraceError,
    InvalidValue,
    JobFailed,
    JobNotFound,
    KeyBusy,
    MigrationNeeded,
    PartlyEnqueued,
    PayloadTooLarge,
    QueueFull,
    Refused,
    StoreBusy,
    StoreCorrupt,
    StoreFull,
    StoreReadOnly,
    StoreTooNew,
    UndecodablePayload,
    UnencodableValue,
    UnknownParent,
    UnknownTask,
)
from headrace.core.model import Job, OnLost, OnParentFailure, WhenFull
from headrace.core.queue import QueueSettings
from headrace.core.signals import Cancel, Retry, Snooze, Terminate
from headrace.core.states import State
from headrace.core.version import VERSION as _VERSION
from headrace.runtime.context import Detached, JobContext, current_job
from headrace.runtime.handler import Middleware, chain, provided

if _typing.TYPE_CHECKING:
    from headrace.runtime.worker import Worker, WorkerOptions

__version__ = _VERSION

__all__ = [
    "App",
    "AppClosed",
    "Cancel",
    "Debounce",
    "Detached",
    "DuplicateJob",
    "EngineError",
    "EngineUnavailable",
    "EnqueueRefused",
    "HeadraceError",
    "InvalidValue",
    "Job",
    "JobContext",
    "JobFailed",
    "JobNotFound",
    "JobOptions",
    "JobRef",
    "KeepLast",
    "KeyBusy",
    "Middleware",
    "MigrationNeeded",
    "OnLost",
    "OnParentFailure",
    "Outcome",
    "PartlyEnqueued",
    "PayloadTooLarge",
    "Prepared",
    "Queue",
    "QueueFull",
    "QueueInfo",
    "QueueSettings",
    "Refused",
    "Retry",
    "Snapshot",
    "Snooze",
    "State",
    "StoreBusy",
    "StoreCorrupt",
    "StoreFull",
    "StoreReadOnly",
    "StoreTooNew",
    "Submission",
    "Task",
    "Terminate",
    "Throttle",
    "UndecodablePayload",
    "UnencodableValue",
    "UnknownParent",
    "UnknownTask",
    "WhenFull",
    "Worker",
    "WorkerOptions",
    "chain",
    "current_job",
    "exponential",
    "keep",
    "linear",
    "provided",
    "steps",
]


def __getattr__(name: str) -> _typing.Any:
    """What only workers need is imported when it is asked for."""
    if name in ("Worker", "WorkerOptions"):
        from headrace.runtime import worker

        return getattr(worker, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
