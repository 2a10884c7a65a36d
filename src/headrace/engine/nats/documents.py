"""Documents: one record each, whose sequence is its revision."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Protocol

import msgspec
from msgspec import Struct

from headrace.core.model import Document
from headrace.engine.nats.batch import ROLLUP, block, guard_lines
from headrace.engine.nats.commit import Fault
from headrace.engine.nats.errors import Conflict, translated
from headrace.engine.nats.layout import Layout, unspelled
from headrace.engine.nats.parts import Tally
from headrace.engine.nats.patience import PatientJetStream
from headrace.engine.nats.wire.errors import TooMany
from headrace.engine.nats.wire.jetstream import Pending
from headrace.engine.nats.wire.stored import Stored
from headrace.engine.protocol import QUEUE_KIND, Put


class Sheet(Struct, frozen=True, gc=False, omit_defaults=True):
    """A document as it is stored; one without a body was deleted."""

    body: msgspec.Raw = msgspec.Raw(b"null")
    expires_at: int | None = None
    deleted: bool = False


_SHEET = msgspec.json.Decoder(Sheet)


class Home(Protocol):
    """What documents need of their session."""

    js: PatientJetStream
    layout: Layout
    fault: Fault | None


async def put(home: Home, puts: Sequence[Put], now: int) -> list[Document | None]:
    """Writes documents in one step; None for each whose expected revision did not hold."""
    guarded = any(put.expected is not None for put in puts)
    signature = b"Headrace-Put: %b\r\n" % secrets.token_hex(8).encode() if guarded else b""
    while True:
        try:
            return await _put(home, puts, now, signature)
        except Conflict:
            continue


async def _put(
    home: Home, puts: Sequence[Put], now: int, signature: bytes
) -> list[Document | None]:
    """What is stored with our own signature was written by an attempt whose answer was lost."""
    subjects = [home.layout.document(put.kind, put.name) for put in puts]
    tallies = {home.layout.tally(*put.name.split("/", 1)) for put in puts if put.kind == QUEUE_KIND}
    with translated("reading documents"):
        found = await home.js.last(home.layout.stream, [*dict.fromkeys(subjects), *tallies])
    stored = {one.subject: one for one in found}
    ours = {
        one.subject: one.seq for one in found if signature and signature in (one.headers or b"")
    }
    if ours:
        return [
            _written(put, ours.get(subject)) for put, subject in zip(puts, subjects, strict=True)
        ]
    revisions: dict[bytes, int] = {}
    messages: list[Pending] = []
    places: list[int | None] = []
    for put, subject in zip(puts, subjects, strict=True):
        one = stored.get(subject)
        revision = revisions.get(subject, _revision(one, now))
        if put.expected is not None and put.expected != revision:
            places.append(None)
            continue
        places.append(len(messages))
        guard = b"" if subject in revisions else guard_lines(subject, one.seq if one else 0)
        revisions[subject] = -1
        sheet = Sheet(deleted=True) if put.body is None else Sheet(put.body, put.expires_at)
        lines = block(ROLLUP + guard + signature)
        messages.append(Pending(subject, msgspec.json.encode(sheet), lines))
    if not messages:
        return [None] * len(puts)
    for tally in tallies:
        one = stored.get(tally)
        if one is not None:  # its limits may be others now: it must be counted again
            kept = msgspec.json.decode(one.payload, type=Tally)
            kept = msgspec.structs.replace(kept, counts={}, counting=False)
            headers = block(ROLLUP + guard_lines(tally, one.seq))
            messages.append(Pending(tally, msgspec.json.encode(kept), headers))
    last = await store(home, messages)
    first = last - len(messages) + 1
    return [
        _written(put, None if place is None else first + place)
        for put, place in zip(puts, places, strict=True)
    ]


def _written(put: Put, seq: int | None) -> Document | None:
    if seq is None:
        return None
    body = msgspec.Raw(b"null") if put.body is None else put.body
    return Document(put.kind, put.name, body, seq, put.expires_at)


async def store(home: Home, messages: Sequence[Pending]) -> int:
    """Stores messages in one step, through the fault hook."""
    if home.fault:
        home.fault("before_commit")
    with translated("writing documents"):
        last = await home.js.store_batch(messages)
    home.js.saw(last)
    if home.fault:
        home.fault("after_commit")
    return last


def _revision(stored: Stored | None, now: int) -> int:
    if stored is None:
        return 0
    sheet = _SHEET.decode(stored.payload)
    expired = sheet.expires_at is not None and sheet.expires_at <= now
    return 0 if sheet.deleted or expired else stored.seq


async def scan(home: Home, kind: str, now: int) -> list[Document]:
    """The documents of a kind that have not expired, by name."""
    found = [
        document
        for document in await everything(home, kind)
        if document.expires_at is None or document.expires_at > now
    ]
    return sorted(found, key=lambda document: document.name)


async def everything(home: Home, kind: str) -> list[Document]:
    """The documents of a kind, expired ones too."""
    stream, subjects = home.layout.stream, home.layout.documents(kind)
    with translated("reading documents"):
        try:
            found = await home.js.last(stream, [subjects])
        except TooMany:
            found = await home.js.read_all(stream, subjects)
    return [document for one in found if (document := _document(kind, one))]


def _document(kind: str, stored: Stored) -> Document | None:
    sheet = _SHEET.decode(stored.payload)
    if sheet.deleted:
        return None
    name = unspelled(stored.subject.rsplit(b".", 1)[1].decode())
    return Document(kind, name, msgspec.Raw(bytes(sheet.body)), stored.seq, sheet.expires_at)
