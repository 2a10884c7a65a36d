"""What `--json` writes. These shapes are stable: fields are added, never renamed or dropped.

Every field is always there, null where there is nothing. Times are RFC 3339 in UTC, durations
are seconds; payloads and results are the job's own JSON, digit for digit. docs/cli.md lists them.
"""

from __future__ import annotations

from typing import Any

import msgspec

from headrace.app.jobref import Snapshot
from headrace.app.queues import QueueInfo
from headrace.cli.text import retry_policy
from headrace.core.event import rfc3339, wire
from headrace.core.model import Job, KeyStatus, LogEntry, Parent, Progress, TryError
from headrace.core.queue import QueueSettings
from headrace.core.retry import RetryPolicy
from headrace.core.states import FINAL
from headrace.engine.protocol import Check, Details, Entry
from headrace.runtime.presence import Presence

Shape = dict[str, Any]


def _time(at: int | None) -> str | None:
    return None if at is None else rfc3339(at)


def _seconds(milliseconds: int | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000


def job(job: Job, now: int, paused: bool) -> Shape:
    """A job as it stands."""
    spec = job.spec
    return {
        "id": job.id,
        "service": job.service,
        "queue": job.queue,
        "type": job.type,
        "state": str(job.state),
        "shown": job.shown(now, paused),
        "priority": job.priority,
        "tries": job.tries,
        "max_tries": job.max_tries,
        "created_at": _time(spec.created_at),
        "run_at": _time(job.run_at),
        "started_at": _time(job.started_at),
        "finished_at": _time(job.finished_at),
        "updated_at": _time(job.updated_at),
        "expires_at": _time(job.expires_at),
        "deadline": _time(job.deadline),
        "timeout": _seconds(spec.timeout),
        "ttl": _seconds(spec.ttl),
        "worker": job.worker,
        "lease_until": _time(job.lease_until),
        "cancelling": job.cancelling,
        "key": spec.key and {"name": spec.key.name, "hash": spec.key.hash},
        "unique": spec.dedup and spec.dedup.key,
        "depends_on": list(spec.depends_on),
        "tags": list(spec.tags),
        "metadata": spec.metadata,
        "request_id": spec.context.request_id,
        "trace_id": spec.context.trace_id,
        "progress": _progress(job.progress),
        "error": job.error and _error(job.error),
        "payload": spec.payload,
        "result": job.result,
        "cursor": str(job.seq),
    }


def details(found: Details, now: int, paused: bool, entries: list[Entry], why: list[str]) -> Shape:
    """A job with everything that is kept beside it."""
    return {
        **job(found.job, now, paused),
        "why": why,
        "parents": [_parent(parent) for parent in found.parents],
        "errors": [_error(error) for error in found.errors],
        "logs": [_log(entry) for entry in found.logs],
        "events": [event(entry) for entry in entries],
    }


def _progress(progress: Progress | None) -> Shape | None:
    if progress is None:
        return None
    return {name: getattr(progress, name) for name in Progress.__struct_fields__}


def _error(error: TryError) -> Shape:
    return {
        "try": error.number,
        "at": rfc3339(error.at),
        "type": error.type,
        "message": error.message,
        "traceback": error.traceback,
    }


def _log(entry: LogEntry) -> Shape:
    return {"at": rfc3339(entry.at), "level": entry.level, "message": entry.message}


def _parent(parent: Parent) -> Shape:
    return {"id": parent.id, "state": parent.state and str(parent.state), "result": parent.result}


def event(entry: Entry) -> Shape:
    """A journal entry: the event on the wire, and its place in the journal."""
    return {"seq": entry.event.seq, **wire(entry.event, entry.payload, entry.result)}


def snapshot(one: Snapshot) -> Shape:
    """A line of `job watch`."""
    return {
        "id": one.id,
        "state": str(one.state),
        "event": str(one.event),
        "at": rfc3339(one.at),
        "tries": one.tries,
        "progress": _progress(one.progress),
        "error": one.error,
        "final": one.final,
    }


def queue(info: QueueInfo, service: str, workers: int) -> Shape:
    """A queue with its settings and counts."""
    return {
        "name": info.name,
        "service": service,
        "paused": info.settings.paused,
        "draining": info.settings.draining,
        "workers": workers,
        "counts": {str(state): count for state, count in sorted(info.counts.items())},
        "settings": settings(info.settings),
    }


def settings(chosen: QueueSettings) -> Shape:
    """Queue settings; durations in seconds."""
    rate = chosen.rate
    return {
        "max_active": chosen.max_active,
        "max_runtime": _seconds(chosen.max_runtime),
        "max_tries": chosen.max_tries,
        "retry": _retry(chosen.retry),
        "weight": chosen.weight,
        "max_age": _seconds(chosen.max_age),
        "max_entries": chosen.max_entries,
        "discard": str(chosen.discard),
        "rate": rate
        and {"count": rate.count, "period": _seconds(rate.period), "burst": rate.burst},
        "dead_letters": chosen.dead_letters,
        "retention": {
            str(state): {
                "age": _seconds(chosen.kept(state).age),
                "count": chosen.kept(state).count,
            }
            for state in sorted(FINAL)
        },
    }


def _retry(policy: RetryPolicy) -> Shape:
    """The policy as text, and its numbers."""
    shape: Shape = {"text": retry_policy(policy), **msgspec.to_builtins(policy)}
    for name in ("first", "last", "cap"):
        if name in shape:
            shape[name] = shape[name] / 1000
    if "delays" in shape:
        shape["delays"] = [delay / 1000 for delay in shape["delays"]]
    return shape


def worker(presence: Presence, now: int) -> Shape:
    """A worker as it was last heard of."""
    return {
        "id": presence.id,
        "service": presence.service,
        "host": presence.host,
        "pid": presence.pid,
        "version": presence.version,
        "queues": list(presence.queues),
        "concurrency": presence.concurrency,
        "jobs": list(presence.jobs),
        "stopping": presence.stopping,
        "started_at": rfc3339(presence.started_at),
        "beat_at": rfc3339(presence.beat_at),
        "beat_age": (now - presence.beat_at) / 1000,
    }


def key(status: KeyStatus, now: int) -> Shape:
    """A concurrency key, looked into."""
    return {
        "service": status.service,
        "name": status.name,
        "hash": status.hash,
        "queued": status.queued,
        "takeovers": status.takeovers,
        "active": [
            job(one, now, False)
            | {
                "heartbeat_at": beat and rfc3339(beat),
                "heartbeat_age": None if beat is None else (now - beat) / 1000,
            }
            for one, beat in zip(status.active, status.heartbeats, strict=True)
        ],
        "next": [job(one, now, False) for one in status.next],
    }


def check(one: Check) -> Shape:
    """A line of `doctor`."""
    return {
        "name": one.name,
        "health": str(one.health),
        "message": one.message,
        "remedy": one.remedy,
    }
