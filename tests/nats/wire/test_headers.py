"""Header blocks."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.engine.nats.wire import headers
from headrace.engine.nats.wire.errors import ProtocolError

names = st.text("abcABC-_09", min_size=1, max_size=20).map(str.encode)
values = st.text(st.characters(exclude_characters="\r\n", codec="utf-8")).map(
    lambda text: text.encode().strip()
)


@given(st.dictionaries(names, values))
def test_what_is_built_is_parsed_again(fields: dict[bytes, bytes]) -> None:
    block = headers.build(fields)
    assert headers.parse(block) == fields
    for name, value in fields.items():
        assert headers.value(block, name) == value


@given(st.dictionaries(st.binary(), st.binary(), max_size=4))
def test_no_field_can_be_forged(fields: dict[bytes, bytes]) -> None:
    try:
        block = headers.build(fields)
    except ProtocolError:
        return
    assert set(headers.parse(block)) == set(fields)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (b"A", b"1\r\nNats-Msg-Id: 2"),
        (b"A", b"1\n"),
        (b"A\r\nB", b"1"),
        (b"A:B", b"1"),
        (b"", b"1"),
        (b"A B", b"1"),
    ],
)
def test_line_break_or_bad_name_is_refused(name: bytes, value: bytes) -> None:
    with pytest.raises(ProtocolError):
        headers.build({name: value})


def test_status_is_read_from_the_first_line() -> None:
    block = b"NATS/1.0 409 Consumer Deleted\r\nNats-Pending-Messages: 5\r\n\r\n"
    assert headers.status(block) == 409
    assert headers.description(block) == "Consumer Deleted"
    assert headers.value(block, b"Nats-Pending-Messages") == b"5"
    assert headers.status(b"NATS/1.0\r\nA: 1\r\n\r\n") == 0
    assert headers.status(b"NATS/1.0 503\r\n\r\n") == 503
    assert headers.status(None) == 0


def test_lines_are_added_to_a_block_or_begin_one() -> None:
    assert headers.extend(b"", b"B: 2\r\n") == headers.build({b"B": b"2"})
    one = headers.build({b"A": b"1"})
    assert headers.extend(one, b"B: 2\r\n") == headers.build({b"A": b"1", b"B": b"2"})


@given(st.binary(max_size=100))
def test_random_block_is_fields_or_an_error(block: bytes) -> None:
    headers.status(block)
    headers.value(block, b"A")
    with contextlib.suppress(ProtocolError):
        headers.parse(block)
