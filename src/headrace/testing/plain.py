"""Answers without the numbers that each engine gives in its own way.

Sequences, versions, tokens and revisions only have to grow; everything else must be the same.
"""

from __future__ import annotations

from typing import Any, cast

import msgspec

from headrace.core.admission import Verdict
from headrace.core.change import Applied, NotApplied
from headrace.core.claims import Claimed
from headrace.core.event import Event
from headrace.core.model import Document, Job, KeyStatus
from headrace.engine.protocol import Details, Entry

replace = msgspec.structs.replace


def plain(value: object) -> object:
    """The value with its engine's own numbers taken out."""
    match value:
        case Job():
            return replace(value, seq=0, version=0, token=0)
        case Event():
            slot = value.slot and replace(value.slot, token=value.slot.token and 1)
            return replace(value, seq=0, slot=slot)
        case Document():
            return replace(value, revision=0)
        case Verdict() | Applied() | NotApplied() | Details():
            return replace(value, job=plain(value.job))
        case Claimed():
            return replace(value, jobs=plain(value.jobs), answers=plain(value.answers))
        case Entry():
            return replace(value, event=plain(value.event))
        case KeyStatus():
            return replace(value, active=plain(value.active), next=plain(value.next))
        case list() | tuple():
            items = cast("list[Any] | tuple[Any, ...]", value)
            return tuple(plain(item) for item in items)
        case _:
            return value
