"""An edge as a message: what a dependent keeps of a parent, under its own prefix."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from headrace.core.edges import EdgeState
from headrace.core.model import OnParentFailure
from headrace.core.states import State
from headrace.engine.records import Edge

_NULL = msgspec.Raw(b"null")


class _Kept(Struct, frozen=True, gc=False, omit_defaults=True):
    """An edge as the dependent keeps it."""

    parent_id: str
    child_id: str
    policy: OnParentFailure
    state: EdgeState = EdgeState.OPEN
    parent_state: State | None = None
    ended: bool = False
    result: msgspec.Raw = _NULL


_DECODER = msgspec.json.Decoder(_Kept)


def written(edge: Edge) -> bytes:
    """An edge as a message."""
    kept = _Kept(
        edge.parent_id,
        edge.child_id,
        edge.policy,
        edge.state,
        edge.parent_state,
        edge.result is not None,
        edge.result if edge.result is not None else _NULL,
    )
    return msgspec.json.encode(kept)


def read(payload: bytes) -> Edge:
    """An edge from its message."""
    kept = _DECODER.decode(payload)
    result = msgspec.Raw(bytes(kept.result)) if kept.ended else None
    return Edge(kept.parent_id, kept.child_id, kept.policy, kept.state, kept.parent_state, result)
