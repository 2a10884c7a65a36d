"""Which jobs a filter means: the one definition; engines may only be quicker at it."""

from __future__ import annotations

import msgspec

from headrace.core.errors import InvalidValue
from headrace.core.model import Filter, Job


def matches(job: Job, wanted: Filter) -> bool:
    """Whether `job` is one of the wanted."""
    return (
        (not wanted.ids or job.id in wanted.ids)
        and (wanted.service is None or job.service == wanted.service)
        and (wanted.queue is None or job.queue == wanted.queue)
        and (wanted.type is None or job.type == wanted.type)
        and (not wanted.states or job.state in wanted.states)
        and (
            wanted.key is None
            or (job.key is not None and wanted.key in (job.key.name, job.key.hash))
        )
        and (wanted.tag is None or wanted.tag in job.spec.tags)
        and (wanted.created_from is None or job.spec.created_at >= wanted.created_from)
        and (wanted.created_until is None or job.spec.created_at < wanted.created_until)
        and (
            wanted.expires_until is None
            or (job.expires_at is not None and job.expires_at <= wanted.expires_until)
        )
        and (
            wanted.lease_until is None
            or (job.lease_until is not None and job.lease_until <= wanted.lease_until)
        )
        and (wanted.worker is None or job.worker == wanted.worker)
        and (wanted.parent is None or wanted.parent in job.spec.depends_on)
        and (wanted.text is None or _contains(job, wanted.text))
    )


def _contains(job: Job, text: str) -> bool:
    if text in job.id or text.encode() in bytes(job.spec.payload):
        return True
    if msgspec.json.encode(text)[1:-1] in bytes(job.spec.payload):
        return True
    return job.error is not None and (text in job.error.message or text in job.error.type)


def parse_cursor(cursor: str | None) -> int | None:
    """The sequence that a cursor stands for."""
    if cursor is None:
        return None
    if not cursor.isascii() or not cursor.isdigit() or len(cursor) > 18:
        shown = cursor if len(cursor) <= 40 else f"{cursor[:40]}…"
        raise InvalidValue("cursor", f"{shown!r} is not a cursor; pass on the one a page gave")
    return int(cursor)
