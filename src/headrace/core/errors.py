"""Every error Headrace raises, in one tree.

HeadraceError
├── InvalidValue                 a value from outside that is refused (also a ValueError)
│   └── PayloadTooLarge
├── UnknownTask                  a type that no handler of this worker takes
├── UnencodableValue             an argument or a result that has no JSON form (also a TypeError)
├── UndecodablePayload           a payload that does not fit the handler's signature
├── EnqueueRefused               the engine did not take the job; nothing was written
│   ├── DuplicateJob
│   ├── KeyBusy
│   ├── QueueFull
│   └── UnknownParent
├── PartlyEnqueued               `enqueue_many` failed midway; carries what was confirmed
├── JobNotFound
├── Refused                      an action that the job's present state does not allow
├── MigrationNeeded              a change of queue settings that needs `force`
├── JobFailed                    raised by `JobRef.result()`; carries the remote error
├── AppClosed
└── EngineError
    ├── EngineUnavailable        try again: nothing was written, or its confirmation was lost
    │   ├── StoreBusy            a stranger holds the store's lock
    │   ├── StoreFull
    │   └── StoreReadOnly
    ├── StoreTooNew              written by a newer Headrace
    └── StoreCorrupt
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class HeadraceError(Exception):
    """The root of the tree."""


class InvalidValue(HeadraceError, ValueError):
    """A value from outside was refused before anything was written."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field


class PayloadTooLarge(InvalidValue):
    """The encoded payload is over the limit."""

    def __init__(self, size: int, limit: int, field: str = "payload") -> None:
        super().__init__(
            field,
            f"{size:,} bytes is over the limit of {limit:,}; store the data elsewhere and pass"
            " a reference to it",
        )
        self.size, self.limit = size, limit


class UnknownTask(HeadraceError):
    """No handler takes this type."""


class UnencodableValue(HeadraceError, TypeError):
    """A value has no JSON form."""


class UndecodablePayload(HeadraceError):
    """A payload does not fit the handler's signature."""


class EnqueueRefused(HeadraceError):
    """The engine did not take the job. `existing_id` is the job in the way, where there is one."""

    def __init__(self, message: str, *, job_id: str, existing_id: str | None = None) -> None:
        super().__init__(message)
        self.job_id, self.existing_id = job_id, existing_id


class DuplicateJob(EnqueueRefused):
    """A job with this id or dedup key exists."""


class KeyBusy(EnqueueRefused):
    """The concurrency key takes no more jobs."""


class QueueFull(EnqueueRefused):
    """The queue holds `max_entries` waiting jobs and discards new ones."""


class UnknownParent(EnqueueRefused):
    """A job in `depends_on` does not exist."""


class PartlyEnqueued(HeadraceError):
    """`enqueue_many` failed after some jobs were confirmed: `confirmed` are their submissions, the
    cause is what went wrong. Enqueuing the others again is safe: prepared jobs keep their ids."""

    def __init__(self, confirmed: Sequence[Any], cause: BaseException) -> None:
        super().__init__(f"{len(confirmed):,} jobs were confirmed, then: {cause}")
        self.confirmed = tuple(confirmed)


class JobNotFound(HeadraceError):
    """No job has this id."""

    def __init__(self, job_id: str) -> None:
        super().__init__(
            f"job {job_id!r} does not exist; it may have been deleted or pruned by retention"
        )
        self.job_id = job_id


class Refused(HeadraceError):
    """The job's present state does not allow this action; nothing was changed."""


class MigrationNeeded(HeadraceError):
    """The change may reject, skip or repeat work that was fine before: it needs `force`."""


class JobFailed(HeadraceError):
    """The job ended without success. `type`, `message` and `traceback` are the remote error's;
    `reason` is why it was cancelled, expired or ended otherwise, where somebody said so."""

    def __init__(
        self,
        job_id: str,
        state: str,
        type: str | None = None,
        message: str | None = None,
        traceback: str | None = None,
        reason: str | None = None,
    ) -> None:
        detail = f": {type}: {message}" if type else f": {reason}" if reason else ""
        super().__init__(f"job {job_id} ended {state}{detail}")
        self.job_id, self.state = job_id, state
        self.type, self.message, self.traceback = type, message, traceback
        self.reason = reason


class AppClosed(HeadraceError):
    """The app is closed; open it with `async with app:` or `await app.open()`."""


class EngineError(HeadraceError):
    """The store cannot do what was asked."""


class EngineUnavailable(EngineError):
    """The store cannot be reached or written now. Trying again is safe: nothing was written, or,
    where a server's answer was lost, what was written is known again."""


class StoreBusy(EngineUnavailable):
    """Another program holds the store's lock."""


class StoreFull(EngineUnavailable):
    """The disk is full."""


class StoreReadOnly(EngineUnavailable):
    """The store may not be written with these permissions."""


class StoreTooNew(EngineError):
    """The store was written by a newer version of Headrace."""


class StoreCorrupt(EngineError):
    """The store is damaged, or is not a Headrace store."""
