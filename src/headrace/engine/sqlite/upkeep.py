"""Documents and pruning: what the writer does beside the ledger."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import msgspec

from headrace.core.model import Document, Job
from headrace.core.retention import Cutoff
from headrace.engine.ledger import Ledger
from headrace.engine.protocol import QUEUE_KIND, Prune, Put
from headrace.engine.sqlite.records import SqlRecords
from headrace.engine.sqlite.sql import statement
from headrace.engine.sqlite.store import Store
from headrace.engine.sqlite.wanted import Wanted


def put(store: Store, puts: Sequence[Put], now: int) -> list[Document | None]:
    """Writes documents; None for each whose expected revision did not hold."""
    return [_put(store, one, now) for one in puts]


def _put(store: Store, put: Put, now: int) -> Document | None:
    if put.expected is not None:
        row = store.fetch(statement("document"), (put.kind, put.name, now))
        if put.expected != (row[0] if row else 0):
            return None
    row = store.fetch(statement("next_revision"))
    assert row
    revision = cast(int, row[0])
    if put.body is None:
        store.execute(statement("delete_document"), (put.kind, put.name))
    else:
        values = (put.kind, put.name, bytes(put.body), revision, put.expires_at)
        store.execute(statement("put_document"), values)
    if put.kind == QUEUE_KIND:
        store.execute(statement("settings_revision"), (revision,))
    body = msgspec.Raw(b"null") if put.body is None else put.body
    return Document(put.kind, put.name, body, revision, put.expires_at)


def prune(records: SqlRecords, ledger: Ledger, order: Prune) -> int:
    """Deletes what the cut-offs allow; returns how many jobs and journal entries went."""
    gone = 0
    for cutoff in order.cutoffs:
        jobs = _ended(records, cutoff, order.limit)
        for job in jobs:
            ledger.discard(job, order.now)
        gone += len(jobs)
    with records.bypassed() as store:
        gone += _prune_journal(store, order.journal_before, order.limit)
        store.execute(statement("delete_lapsed_holders"), (order.now,))
        store.execute(statement("delete_expired_documents"), (order.now,))
    return gone


def _ended(records: SqlRecords, cutoff: Cutoff, limit: int) -> list[Job]:
    """The jobs that a cut-off lets go, oldest first."""
    service, queue, state = cutoff.service, cutoff.queue, cutoff.state
    total = 0 if cutoff.keep is None else records.counted(service, queue, state)
    if cutoff.ended_before is None and total <= (cutoff.keep or 0):
        return []
    found = records.ended(service, queue, state, limit)
    old = [
        seq
        for place, (seq, ended_at) in enumerate(found, 1)
        if cutoff.lets_go(ended_at, total - place)
    ]
    jobs = records.by_seq(old)
    wanted = Wanted()
    wanted.discard(jobs)
    records.prepare(wanted)
    return jobs


_OLDEST = msgspec.json.Decoder(list[tuple[int, int]])


def _prune_journal(store: Store, before: int, limit: int) -> int:
    """The oldest entries, but never the newest of all: it remembers the sequence."""
    gone = last = 0
    for seq, at in _OLDEST.decode(store.text(statement("oldest_journal"), (limit,))):
        if at > before:
            break
        gone, last = gone + 1, seq
    if gone:
        store.execute(statement("delete_journal"), (last,))
        store.execute(statement("delete_graves"), (last,))
    return gone
