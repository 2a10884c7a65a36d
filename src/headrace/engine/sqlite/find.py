"""Finding jobs by filter.

First the sequences of candidates from the index that serves the filter best, newest first; then
the jobs among them that match. What no index serves is looked for among a bounded number of
candidates per page, and the page's cursor goes on from there.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from headrace.core.model import Filter, Job, Page
from headrace.core.search import matches
from headrace.core.states import WAITING, State
from headrace.engine.sqlite.rows import fetch_jobs
from headrace.engine.sqlite.sql import statement
from headrace.engine.sqlite.store import Bound, Store, Value, texts
from headrace.engine.sqlite.store import seqs as bound_seqs
from headrace.engine.statements import LARGEST

log = logging.getLogger("headrace.sqlite")

SCAN = 10_000
"""A page looks at no more candidates than this."""

_CHUNK = 1000
_NEWEST = (1 << 63) - 1
_SEQS = msgspec.json.Decoder(list[int])
_ACTIVE = frozenset({State.ACTIVE})
_COMMON = frozenset({State.PENDING, State.ACTIVE})
"""States that the index of states leaves out: they have lines of their own."""


@dataclass(slots=True)
class _Source:
    """Statements that name candidates, and the conditions that they see to themselves.

    `ordered` ones give the newest first and can be cut anywhere; of others all are needed.
    """

    lookups: Sequence[tuple[str, Sequence[Value | Bound]]]
    serves: frozenset[str]
    ordered: bool = True


_ALL = _Source([("find_all", [])], frozenset())


def _conditions(wanted: Filter) -> dict[str, tuple[str, list[Value | Bound]]]:
    """What a job must fulfil, in SQL; `core.search.matches` has the last word."""
    found: dict[str, tuple[str, list[Value | Bound]]] = {}
    simple = {
        "service": ("service = ?", wanted.service),
        "queue": ("queue = ?", wanted.queue),
        "type": ("type = ?", wanted.type),
        "tag": ("EXISTS (SELECT 1 FROM tags WHERE tag = ? AND job = jobs.seq)", wanted.tag),
        "created_from": ("created_at >= ?", wanted.created_from),
        "created_until": ("created_at < ?", wanted.created_until),
        "expires_until": ("expires_at <= ?", wanted.expires_until),
        "lease_until": ("lease_until <= ?", wanted.lease_until),
        "worker": ("worker = ?", wanted.worker),
        "parent": ("id IN (SELECT child_id FROM edges WHERE parent_id = ?)", wanted.parent),
    }
    for name, (sql, value) in simple.items():
        if value is not None:
            found[name] = (sql, [value])
    if wanted.ids:
        found["ids"] = ("id IN carray(?)", [texts(wanted.ids)])
    if wanted.states:
        found["states"] = ("state IN carray(?)", [texts(map(str, wanted.states))])
    if wanted.key is not None:
        found["key"] = ("(key = ? OR key_name = ?)", [wanted.key, wanted.key])
    if wanted.text is not None:
        raw, escaped = wanted.text.encode(), msgspec.json.encode(wanted.text)[1:-1]
        found["text"] = (
            "(instr(id, ?) OR instr(error, ?)"
            " OR EXISTS (SELECT 1 FROM specs WHERE job = seq"
            " AND (instr(body, ?) OR instr(body, ?))))",
            [wanted.text, escaped, raw, escaped],
        )
    return found


def _source(wanted: Filter) -> _Source:
    """The index that leaves the fewest candidates."""
    states = wanted.states
    if wanted.ids:
        return _Source([("find_ids", [texts(wanted.ids)])], frozenset({"ids"}), ordered=False)
    if wanted.parent is not None:
        return _Source([("find_children", [wanted.parent])], frozenset({"parent"}), ordered=False)
    if wanted.lease_until is not None or wanted.worker is not None or states == _ACTIVE:
        # Only an active job has a lease and a worker.
        until = _NEWEST if wanted.lease_until is None else wanted.lease_until
        served = {"lease_until"} | ({"states"} if State.ACTIVE in states else set[str]())
        return _Source([("find_active", [until])], frozenset(served), ordered=False)
    if wanted.expires_until is not None and states and states <= WAITING:
        served = {"expires_until"} | ({"states"} if states == WAITING else set[str]())
        lookup = ("find_expiring", [wanted.expires_until])
        return _Source([lookup], frozenset(served), ordered=False)
    if wanted.key is not None:
        lookups = [("find_key", [wanted.key]), ("find_key_name", [wanted.key])]
        return _Source(lookups, frozenset({"key"}))
    if wanted.tag is not None:
        return _Source([("find_tag", [wanted.tag])], frozenset({"tag"}))
    if states and not states & _COMMON:
        lookups = [("find_state", [str(state)]) for state in sorted(states)]
        return _Source(lookups, frozenset({"states"}))
    if states and states <= WAITING and wanted.service is not None and wanted.queue is not None:
        served = {"service", "queue"} | ({"states"} if states == WAITING else set[str]())
        lookup = ("find_waiting", [wanted.service, wanted.queue])
        return _Source([lookup], frozenset(served))
    return _ALL


def find(store: Store, wanted: Filter, before: int | None, limit: int) -> Page:
    """One page."""
    conditions = _conditions(wanted)
    source = _source(wanted)
    before = _NEWEST if before is None else before
    first: tuple[list[int], bool] | None = None
    if not source.ordered:
        first = _candidates(store, source, before, SCAN + 1), False
        if len(first[0]) > SCAN:
            source, first = _ALL, None
    rest = [condition for name, condition in conditions.items() if name not in source.serves]
    jobs: list[Job] = []
    looked, window = 0, limit + 1
    while True:
        left, more = first or _newest(store, source, before, min(window, SCAN - looked))
        looked, window, first = looked + len(left), window * 4, None
        before = left[-1] if left else before
        while left and len(jobs) < limit:
            at_most = min(limit - len(jobs), LARGEST)
            part = left[:_CHUNK]
            found = _fetch(store, part, rest, at_most)
            jobs += [job for job in found if matches(job, wanted)]
            left = left[len(part) :] if len(found) < at_most else _below(left, found[-1].seq)
        if len(jobs) >= limit and (left or more):
            return Page(tuple(jobs), str(jobs[-1].seq))
        if not more:
            return Page(tuple(jobs))
        if looked >= SCAN:
            return Page(tuple(jobs), str(before))


def _newest(store: Store, source: _Source, before: int, window: int) -> tuple[list[int], bool]:
    """The next sequences of a source that has an order, and whether there are more below."""
    found: set[int] = set()
    cut = 0
    for lookup in source.lookups:
        numbers = _looked_up(store, lookup, before, window)
        if len(numbers) == window:
            cut = max(cut, numbers[-1])  # below this, another lookup may know what this does not
        found.update(numbers)
    return sorted((seq for seq in found if seq >= cut), reverse=True), cut > 0


def _candidates(store: Store, source: _Source, before: int, limit: int) -> list[int]:
    """All sequences of a source that has no order, newest first; at most `limit` of a lookup."""
    found = {seq for one in source.lookups for seq in _looked_up(store, one, before, limit)}
    return sorted(found, reverse=True)


def _looked_up(
    store: Store, lookup: tuple[str, Sequence[Value | Bound]], before: int, limit: int
) -> list[int]:
    name, values = lookup
    last = [] if name == "find_ids" else [limit]
    return _SEQS.decode(store.text(statement(name), [*values, before, *last]))


def _fetch(
    store: Store,
    part: list[int],
    conditions: list[tuple[str, list[Value | Bound]]],
    at_most: int,
) -> list[Job]:
    where = "".join(f" AND {sql}" for sql, _ in conditions)
    values = [value for _, bound in conditions for value in bound]
    sql = f"{statement('find_jobs')}{where} ORDER BY seq DESC LIMIT ?)"
    try:
        found = fetch_jobs(store, sql, [bound_seqs(part), *values, at_most])
    except msgspec.DecodeError:
        return _readable(store, part, (sql, values), at_most)
    return sorted(found, key=lambda job: -job.seq)


def _readable(
    store: Store, part: list[int], query: tuple[str, list[Value | Bound]], at_most: int
) -> list[Job]:
    """One by one: a job that cannot be read must not hide the others, from upkeep least of all."""
    sql, values = query
    found: list[Job] = []
    for seq in part:
        try:
            found += fetch_jobs(store, sql, [bound_seqs([seq]), *values, 1])
        except msgspec.DecodeError as error:
            log.error("the job with sequence %d cannot be read and is left out: %s", seq, error)
        if len(found) == at_most:
            break
    return found


def _below(numbers: list[int], seq: int) -> list[int]:
    return [number for number in numbers if number < seq]
