"""Bytes from outside: payloads, results, documents and events, schema-guided."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core import queue
from headrace.core.codec import Decoder, Parameters, decode_any, encode
from headrace.core.event import Event, wire
from headrace.core.model import Context
from headrace.core.queue import QueueSettings
from headrace.core.states import EventType, State
from tests.fuzz.values import ANYTHING, QUICK, TEXTS, refusal

JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=6), inner, max_size=4)
    ),
    max_leaves=10,
)
BYTES = st.one_of(
    st.binary(max_size=40),
    JSON.map(lambda value: msgspec.json.encode(value)),
    st.sampled_from(
        [
            b"[" * 5_000,
            b'{"a":' * 5_000,
            b"9" * 5000,
            b"1e999",
            b'"\\ud800"',
            b"\xff",
            b"nul",
            b"",
        ]
    ),
)

MOMENTS = st.integers(-62_135_596_800_000, 253_402_300_799_999)
"""Whatever a datetime can stand for, in milliseconds."""


class Line(msgspec.Struct):
    article: UUID
    price: Decimal
    at: datetime


def handler(n: int, line: Line | None = None, *rest: str, **more: float) -> list[Line]:
    return []


PARAMETERS = Parameters(handler)


def _decode_result(data: bytes) -> object:
    return PARAMETERS.result.decode(data)


READERS = [
    PARAMETERS.decode,
    _decode_result,
    Decoder(dict[str, int]).decode,
    decode_any,
    queue.decode,
]


@pytest.mark.parametrize("reader", READERS, ids=lambda r: getattr(r, "__qualname__", str(r)))
@QUICK
@given(data=BYTES)
def test_bytes_are_read_or_refused(reader: Any, data: bytes) -> None:
    assert refusal(lambda: reader(data)) != ""


@QUICK
@given(
    payload=st.fixed_dictionaries({}, optional={"n": JSON, "line": JSON, "rest": JSON, "x": JSON})
)
def test_payload_near_the_signature_is_read_or_refused(payload: dict[str, Any]) -> None:
    data = msgspec.json.encode(payload)
    assert refusal(lambda: PARAMETERS.decode(data)) != ""


@QUICK
@given(value=ANYTHING)
def test_what_is_encoded_can_be_read_and_the_rest_is_refused(value: Any) -> None:
    said = refusal(lambda: decode_any(encode(value, "the result")))
    assert said is None or "the result" in said


@QUICK
@given(
    shape=st.fixed_dictionaries({}, optional=dict.fromkeys(QueueSettings.__struct_fields__, JSON))
)
def test_document_of_settings_is_read_or_refused(shape: dict[str, Any]) -> None:
    data = msgspec.json.encode(shape)
    assert refusal(lambda: queue.check(queue.decode(data))) != ""


@QUICK
@given(
    at=MOMENTS,
    deadline=st.one_of(st.none(), MOMENTS),
    text=TEXTS.filter(lambda text: text.isprintable()),
    event=st.sampled_from(EventType),
    state=st.sampled_from(State),
)
def test_every_event_has_a_wire_shape_that_is_json(
    at: int, deadline: int | None, text: str, event: EventType, state: State
) -> None:
    shape = wire(
        Event(
            seq=1,
            at=at,
            job_id=text,
            service=text,
            queue=text,
            type=text,
            event=event,
            state=state,
            deadline=deadline,
            error=text,
            context=Context(text, f"00-{'1' * 32}-{'2' * 16}-01"),
        )
    )
    again = msgspec.json.decode(msgspec.json.encode(shape))
    assert again["jobId"] == text
    assert again["state"] == state
