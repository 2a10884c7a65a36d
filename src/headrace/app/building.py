"""From a call to a NewJob: arguments, options, trace context and id put together."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any

import msgspec

from headrace.app.options import JobOptions, dedup, key_limit
from headrace.core import codec, retry
from headrace.core.errors import InvalidValue, PayloadTooLarge
from headrace.core.ids import NOISE, ulid_of_noise
from headrace.core.model import Context, Dedup, DedupMode, NewJob, OnParentFailure
from headrace.core.names import check_name
from headrace.core.values import milliseconds, moment
from headrace.runtime.context import running

_NOISE = NOISE + 24
"""Bytes of chance for one job: its id, its trace (16) and its span (8)."""
_NOT_ZERO = 1 << 191 | 1 << 63
"""Neither a trace nor a span may be all zeros."""


def assemble(
    type: str, payload: bytes, service: str, options: JobOptions, now: int, max_payload: int
) -> NewJob:
    """A job of a type with this payload. Everything is checked before anything is written."""
    if len(payload) > max_payload:
        raise PayloadTooLarge(len(payload), max_payload)
    noise = (random.getrandbits(8 * _NOISE) | _NOT_ZERO).to_bytes(_NOISE, "big")
    job_id = options["id"] if "id" in options else ulid_of_noise(now, noise[:NOISE])
    if not options:
        return NewJob(
            id=job_id,
            service=service,
            type=type,
            queue="default",
            payload=msgspec.Raw(payload),
            created_at=now,
            run_at=now,
            context=_context(job_id, noise[NOISE:].hex(), options),
        )
    unique = dedup(options, type, payload)
    fields: dict[str, Any] = {}
    for name in ("priority", "lifo", "max_tries"):
        if (value := options.get(name)) is not None:
            fields[name] = value
    if "retry" in options:
        fields["retry"] = retry.policy(options["retry"])
    if "timeout" in options:
        fields["timeout"] = milliseconds("timeout", options["timeout"])
    if "ttl" in options:
        fields["ttl"] = milliseconds("ttl", options["ttl"])
    if "depends_on" in options:
        fields["depends_on"] = _parents(job_id, options["depends_on"])
    if "on_parent_failure" in options:
        fields["on_parent_failure"] = OnParentFailure(options["on_parent_failure"])
    return NewJob(
        id=job_id,
        service=service,
        type=type,
        queue=options.get("queue", "default"),
        payload=msgspec.Raw(payload),
        created_at=now,
        run_at=_run_at(options, unique, now),
        context=_context(job_id, noise[NOISE:].hex(), options),
        deadline=_deadline(options, now),
        dedup=unique,
        key=key_limit(options, type, payload),
        metadata=_metadata(options),
        tags=tuple(options.get("tags", ())),
        **fields,
    )


def _metadata(options: JobOptions) -> dict[str, Any]:
    """As it is stored: what has a JSON form is brought into it here, on every engine."""
    given = options.get("metadata")
    return codec.decode_any(codec.encode(dict(given), "metadata")) if given else {}


def _run_at(options: JobOptions, unique: Dedup | None, now: int) -> int:
    run_at = now
    if "run_at" in options and "delay" in options:
        raise InvalidValue("run_at", "give run_at or delay, not both")
    if "run_at" in options:
        run_at = max(now, moment("run_at", options["run_at"]))
    elif "delay" in options:
        run_at = now + milliseconds("delay", options["delay"])
    if unique and unique.mode is DedupMode.DEBOUNCE:
        run_at = max(run_at, now + unique.window)
    return run_at


def _deadline(options: JobOptions, now: int) -> int | None:
    if "deadline" not in options:
        return None
    value = options["deadline"]
    if isinstance(value, datetime):
        return moment("deadline", value)
    return now + milliseconds("deadline", value)


def _parents(job_id: str, parents: Sequence[Any]) -> tuple[str, ...]:
    if isinstance(parents, str):
        raise InvalidValue("depends_on", f"{parents!r} is one id; give a list of ids or refs")
    # An iterator would be used up by the first job, and the next would have no parents.
    if not isinstance(parents, Iterable) or isinstance(parents, Iterator):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidValue("depends_on", f"{parents!r} is not a list of ids or refs")
    ids = tuple(dict.fromkeys(map(_parent, parents)))
    if job_id in ids:
        raise InvalidValue("depends_on", f"job {job_id!r} cannot depend on itself")
    return ids


def _parent(given: Any) -> str:
    job_id = given if isinstance(given, str) else getattr(given, "id", None)
    if job_id is None:
        raise InvalidValue("depends_on", f"{given!r:.200} is not an id, a ref or a prepared job")
    return check_name("depends_on", job_id)


def _context(job_id: str, fresh: str, options: JobOptions) -> Context:
    """As given; else inherited from the job that is running here; else of a fresh trace and
    span."""
    parent = running.get(None)
    if parent is None and not options:
        return Context(job_id, f"00-{fresh[:32]}-{fresh[32:]}-01")
    if "tracestate" in options and "traceparent" not in options:
        raise InvalidValue("tracestate", "belongs to a traceparent; give both")
    inherited = None if parent is None else parent.job.spec.context
    request_id = options.get("request_id") or (inherited.request_id if inherited else job_id)
    if "traceparent" in options:
        return Context(request_id, options["traceparent"], options.get("tracestate"))
    if inherited is not None:
        trace = inherited.traceparent
        traceparent = f"{trace[:36]}{fresh[32:]}{trace[52:]}"
        return Context(request_id, traceparent, inherited.tracestate)
    return Context(request_id, f"00-{fresh[:32]}-{fresh[32:]}-01")
