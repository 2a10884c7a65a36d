"""The parser: the same messages however the bytes are cut, and an error for all else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.engine.nats.wire.errors import ProtocolError
from headrace.engine.nats.wire.parser import MAX_INFO, MAX_LINE, Parser


class Reading:
    """A parser and all that came out of it."""

    def __init__(self, max_size: int = 1 << 20) -> None:
        self.got: list[object] = []
        self.faults: list[Exception] = []
        self.parser = Parser(self.got.append, self.faults.append, max_size)
        for sid in (b"1", b"2"):
            self.parser.callbacks[sid] = self.received

    def received(
        self, subject: bytes, reply: bytes | None, headers: bytes | None, payload: bytes
    ) -> None:
        self.got.append((subject, reply, headers, payload))


tokens = st.text("abcXYZ019_-$", min_size=1, max_size=12).map(str.encode)
subjects = st.lists(tokens, min_size=1, max_size=4).map(b".".join)
payloads = st.binary(max_size=300)
blocks = st.binary(max_size=60).map(lambda data: b"NATS/1.0\r\n" + data + b"\r\n\r\n")
controls = st.sampled_from([b"PING", b"PONG", b"+OK", b"-ERR 'Stale Connection'", b'INFO {"a":1}'])


@st.composite
def frames(draw: st.DrawFn) -> tuple[bytes, object]:
    """Something a server may send, and what is to come of it."""
    kind = draw(st.sampled_from(["control", "plain", "headers"]))
    if kind == "control":
        line = draw(controls)
        return line + b"\r\n", line
    subject, sid, payload = draw(subjects), draw(st.sampled_from([b"1", b"2"])), draw(payloads)
    reply = draw(st.none() | subjects)
    answer = b"" if reply is None else reply + b" "
    block = draw(blocks) if kind == "headers" else None
    if block is None:
        line = b"MSG %b %b %b%d\r\n" % (subject, sid, answer, len(payload))
        return line + payload + b"\r\n", (subject, reply, None, payload)
    sizes = len(block), len(block) + len(payload)
    line = b"HMSG %b %b %b%d %d\r\n" % (subject, sid, answer, *sizes)
    return line + block + payload + b"\r\n", (subject, reply, block, payload)


@given(st.lists(frames(), max_size=12), st.lists(st.integers(1, 200), max_size=80))
def test_messages_are_the_same_however_the_bytes_are_cut(
    sent: list[tuple[bytes, object]], cuts: list[int]
) -> None:
    data, reading = b"".join(frame for frame, _ in sent), Reading()
    for cut in [*cuts, len(data)]:
        if data:
            reading.parser.feed(data[:cut])
            data = data[cut:]
    reading.parser.feed(data)
    assert reading.got == [outcome for _, outcome in sent]
    assert reading.parser.held == 0
    assert reading.faults == []


@given(st.lists(frames(), max_size=4))
def test_byte_by_byte_is_enough(sent: list[tuple[bytes, object]]) -> None:
    reading = Reading()
    for byte in b"".join(frame for frame, _ in sent):
        reading.parser.feed(bytes([byte]))
    assert reading.got == [outcome for _, outcome in sent]


@given(st.lists(st.binary(max_size=100), max_size=20))
def test_random_bytes_are_an_error_or_wait_for_more(chunks: list[bytes]) -> None:
    reading, fed = Reading(), 0
    try:
        for chunk in chunks:
            reading.parser.feed(chunk)
            fed += len(chunk)
            assert reading.parser.held <= fed
    except ProtocolError:
        with pytest.raises(ProtocolError):
            reading.parser.feed(b"PING\r\n")


@given(st.lists(frames(), min_size=1, max_size=5), st.data())
def test_damaged_stream_is_an_error_or_other_messages(
    sent: list[tuple[bytes, object]], data: st.DataObject
) -> None:
    raw = bytearray(b"".join(frame for frame, _ in sent))
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    reading = Reading()
    try:
        reading.parser.feed(bytes(raw))
    except ProtocolError:
        return
    assert reading.parser.held <= len(raw)


@pytest.mark.parametrize(
    "line",
    [
        b"MSG a 1 -1\r\n",
        b"MSG a 1 99999999999\r\n",
        b"MSG a 1 %b\r\n" % (b"9" * 5000),
        b"MSG a 1 x\r\n",
        b"MSG a 1\r\n",
        b"MSG a 1 b c 3\r\n",
        b"HMSG a 1 9 5\r\n",
        b"HMSG a 1 -4 5\r\n",
        b"HMSG a 1 5\r\n",
        b"MSG a 1 2\r\nabcd\r\n",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"pong\r\n",
    ],
)
def test_what_is_not_the_protocol_is_an_error(line: bytes) -> None:
    with pytest.raises(ProtocolError):
        Reading().parser.feed(line)


def test_line_without_end_is_an_error_before_it_fills_the_memory() -> None:
    reading = Reading()
    for _ in range(MAX_LINE // 1024 - 1):
        reading.parser.feed(b"MSG " + b"a" * 1020)
    with pytest.raises(ProtocolError):
        reading.parser.feed(b"a" * 1024)
    assert reading.parser.held == 0


def test_info_may_be_longer_than_other_lines() -> None:
    reading = Reading()
    info = b"INFO {" + b" " * (2 * MAX_LINE) + b"}"
    for start in range(0, len(info), 10_000):
        reading.parser.feed(info[start : start + 10_000])
    reading.parser.feed(b"\r\nPING\r\n")
    assert reading.got == [info, b"PING"]


def test_info_without_end_is_an_error() -> None:
    reading = Reading()
    reading.parser.feed(b"INFO {" + b" " * (MAX_INFO - 1000))
    with pytest.raises(ProtocolError):
        reading.parser.feed(b" " * 1000)


def test_large_message_is_put_together_once() -> None:
    reading = Reading(max_size=64 << 20)
    payload = bytes(8 << 20)
    reading.parser.feed(b"MSG a 1 %d\r\n" % len(payload))
    for start in range(0, len(payload), 65_536):
        reading.parser.feed(payload[start : start + 65_536])
    reading.parser.feed(b"\r\n")
    assert reading.got == [(b"a", None, None, payload)]


def test_message_for_nobody_is_dropped() -> None:
    reading = Reading()
    reading.parser.feed(b"MSG a 3 2\r\nhi\r\nPING\r\n")
    assert reading.got == [b"PING"]


def test_callback_that_raises_does_not_stop_the_others() -> None:
    reading = Reading()

    def broken(*_: object) -> None:
        raise ZeroDivisionError

    reading.parser.callbacks[b"1"] = broken
    reading.parser.feed(b"MSG a 1 2\r\nhi\r\nMSG b 2 2\r\nho\r\n")
    assert reading.got == [(b"b", None, None, b"ho")]
    assert [type(fault) for fault in reading.faults] == [ZeroDivisionError]
