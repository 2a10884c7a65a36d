"""Finding jobs by filter.

First the sequences of candidates from the index that serves the filter best, newest first; then
the jobs among them that match. What no index serves is looked for among a bounded number of
candidates per page, and the page's cursor goes on from there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import msgspec

from headrace.core.model import Counted, Filter, Job, Page
from headrace.core.search import matches
from headrace.core.states import WAITING, State
from headrace.engine.nats import message
from headrace.engine.nats.projection.applying import KEY, PARENT, TAG
from headrace.engine.nats.projection.database import Bound, Database, Value, seqs, texts
from headrace.engine.nats.projection.sql import STATEMENTS

SCAN = 10_000
"""A page looks at no more candidates than this."""

PLACES = 100
"""A filter that means more places than this is served by a walk over all jobs."""

_CHUNK = 500
_NEWEST = (1 << 63) - 1
_SEQS = msgspec.json.Decoder(list[int])
_COUNTED = msgspec.json.Decoder(list[tuple[str, str, State, int]])
_ACTIVE = frozenset({State.ACTIVE})

_Values = list[Value | Bound]


@dataclass(slots=True)
class _Source:
    """Statements that name candidates, and the conditions that they see to themselves.

    `ordered` ones give the newest first and can be cut anywhere; of others all are needed.
    """

    lookups: Sequence[tuple[str, Sequence[Value | Bound]]]
    serves: frozenset[str]
    ordered: bool = True


_ALL = _Source([("find_all", [])], frozenset())


def count(database: Database, service: str | None) -> list[Counted]:
    """Jobs by queue and state; only what is there."""
    rows = database.decoded(_COUNTED, STATEMENTS["count"], [service])
    return [Counted(*row) for row in rows]


def fetch_jobs(database: Database, numbers: Sequence[int]) -> dict[int, Job]:
    """The jobs with these sequences."""
    rows = database.fetch_all(STATEMENTS["jobs"], [seqs(numbers)])
    jobs: dict[int, Job] = {}
    for row in rows:
        job = _job(cast("tuple[int, int, bytes, bytes | None]", row))
        if job is not None:
            jobs[job.seq] = job
    return jobs


def _job(row: tuple[int, int, bytes, bytes | None]) -> Job | None:
    """A job from its `created` and its newest message; None where somebody else wrote those."""
    seq, newest, created, standing = row
    try:
        first = message.read(seq, created)
        last = first if standing is None else message.read(newest, standing)
        return msgspec.structs.replace(last.job(first.spec()), seq=seq)
    except msgspec.DecodeError:
        return None


def _conditions(wanted: Filter) -> dict[str, tuple[str, _Values]]:
    """What a job must fulfil, in SQL; `core.search.matches` has the last word."""
    found: dict[str, tuple[str, _Values]] = {}
    labelled = "EXISTS (SELECT 1 FROM label WHERE kind = ? AND name = ? AND job = job.seq)"
    simple: dict[str, tuple[str, Sequence[Value]]] = {
        "service": ("service = ?", [wanted.service]),
        "queue": ("queue = ?", [wanted.queue]),
        "type": ("type = ?", [wanted.type]),
        "created_from": ("created_at >= ?", [wanted.created_from]),
        "created_until": ("created_at < ?", [wanted.created_until]),
        "expires_until": ("expires_at <= ?", [wanted.expires_until]),
        "lease_until": ("lease_until <= ?", [wanted.lease_until]),
        "worker": ("worker = ?", [wanted.worker]),
        "key": (labelled, [KEY, wanted.key]),
        "tag": (labelled, [TAG, wanted.tag]),
        "parent": (labelled, [PARENT, wanted.parent]),
    }
    for name, (sql, values) in simple.items():
        if values[-1] is not None:
            found[name] = (sql, list(values))
    if wanted.ids:
        found["ids"] = ("id IN carray(?)", [texts(wanted.ids)])
    if wanted.states:
        found["states"] = ("state IN carray(?)", [texts(map(str, wanted.states))])
    if wanted.text is not None:
        # Id and error are in the messages too, as JSON has them.
        raw, escaped = wanted.text.encode(), msgspec.json.encode(wanted.text)[1:-1]
        found["text"] = (
            "EXISTS (SELECT 1 FROM message WHERE message.seq IN (job.seq, job.newest)"
            " AND (instr(body, ?) OR instr(body, ?)))",
            [raw, escaped],
        )
    return found


def _source(database: Database, wanted: Filter) -> _Source:
    """The index that leaves the fewest candidates."""
    states = wanted.states
    if wanted.ids:
        return _Source([("find_ids", [texts(wanted.ids)])], frozenset({"ids"}), ordered=False)
    for kind, name in ((PARENT, wanted.parent), (KEY, wanted.key), (TAG, wanted.tag)):
        if name is not None:
            return _Source([("find_label", [kind, name])], frozenset({kind}))
    if wanted.lease_until is not None or wanted.worker is not None:
        # Only an active job has a lease and a worker.
        until = _NEWEST if wanted.lease_until is None else wanted.lease_until
        served = {"lease_until"} | ({"states"} if State.ACTIVE in states else set[str]())
        return _Source([("find_active", [until])], frozenset(served), ordered=False)
    if wanted.expires_until is not None and states and states <= WAITING:
        served = {"expires_until"} | ({"states"} if states == WAITING else set[str]())
        lookup = ("find_expiring", [wanted.expires_until])
        return _Source([lookup], frozenset(served), ordered=False)
    if wanted.service is not None or wanted.queue is not None or states:
        return _places(database, wanted)
    return _ALL


def _places(database: Database, wanted: Filter) -> _Source:
    """The lists of the places that the filter means."""
    places = [
        (place.service, place.queue, str(place.state))
        for place in count(database, wanted.service)
        if wanted.queue in (None, place.queue)
        and (not wanted.states or place.state in wanted.states)
    ]
    if len(places) > PLACES:
        return _ALL
    lookups = [("find_place", place) for place in places]
    return _Source(lookups, frozenset({"service", "queue", "states"}))


def find(database: Database, wanted: Filter, before: int | None, limit: int) -> Page:
    """One page."""
    conditions = _conditions(wanted)
    source = _source(database, wanted)
    before = _NEWEST if before is None else before
    exact = not conditions.keys() - source.serves
    candidates = _candidates(database, source, before, limit, exact)
    if candidates is None:
        source = _ALL
        candidates = _candidates(database, source, before, limit, False) or ([], False)
    left, more = candidates
    bottom = left[-1] if left else 0
    rest = [condition for name, condition in conditions.items() if name not in source.serves]
    jobs: list[Job] = []
    while left and len(jobs) < limit:
        part, left = left[:_CHUNK], left[_CHUNK:]
        if rest:
            part = _among(database, part, rest)
        found, passed = _matching(database, part, wanted, limit - len(jobs))
        jobs += found
        left = part[passed:] + left
    if left and jobs:
        return Page(tuple(jobs), str(jobs[-1].seq))
    return Page(tuple(jobs), str(bottom) if more else None)


def _candidates(
    database: Database, source: _Source, before: int, limit: int, exact: bool
) -> tuple[list[int], bool] | None:
    """Sequences, newest first, and whether there are more below; None where a source that has no
    order has more than may be looked at."""
    room = min(limit + 1, SCAN) if exact and source.ordered else SCAN
    found: set[int] = set()
    cut = 0
    for name, values in source.lookups:
        last = [] if name == "find_ids" else [room + 1]
        numbers = database.decoded(_SEQS, STATEMENTS[name], [*values, before, *last])
        if len(numbers) > room:
            if not source.ordered:
                return None
            cut = max(cut, numbers[-1] + 1)  # below, another lookup may know what this does not
        found.update(numbers)
    ordered = sorted((seq for seq in found if seq >= cut), reverse=True)
    return ordered[:room], cut > 0 or len(ordered) > room


def _among(
    database: Database, part: Sequence[int], conditions: Sequence[tuple[str, _Values]]
) -> list[int]:
    """The candidates that fulfil the conditions."""
    where = "".join(f" AND {sql}" for sql, _ in conditions)
    values = [value for _, bound in conditions for value in bound]
    sql = f"{STATEMENTS['find_among']}{where})"
    return sorted(database.decoded(_SEQS, sql, [seqs(part), *values]), reverse=True)


def _matching(
    database: Database, part: Sequence[int], wanted: Filter, limit: int
) -> tuple[list[Job], int]:
    """The first matching jobs among the candidates, and how many of those were looked at."""
    found: list[Job] = []
    passed = 0
    while passed < len(part) and len(found) < limit:
        some = part[passed : passed + max(limit - len(found), 16)]
        jobs = fetch_jobs(database, some)
        for seq in some:
            passed += 1
            job = jobs.get(seq)
            if job is not None and matches(job, wanted):
                found.append(job)
                if len(found) == limit:
                    break
    return found, passed
