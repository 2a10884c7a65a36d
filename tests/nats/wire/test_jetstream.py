"""Storing in streams and reading from them."""

from __future__ import annotations

import asyncio
import time

import pytest

from headrace.engine.nats.wire.connection import Connection
from headrace.engine.nats.wire.errors import ApiError, NoResponders, TooMany
from headrace.engine.nats.wire.headers import build
from headrace.engine.nats.wire.jetstream import JetStream, Pending
from headrace.engine.nats.wire.options import Options
from headrace.engine.nats.wire.stored import milliseconds
from headrace.testing.nats import NatsServer
from tests.nats.wire.support import make_stream
from tests.support import within

WRONG_SEQUENCE = 10071


def expects(sequence: int) -> bytes:
    return build({b"Nats-Expected-Last-Subject-Sequence": b"%d" % sequence})


def below(stream: str, name: str) -> bytes:
    return f"{stream}.{name}".encode()


async def messages(jetstream: JetStream, stream: str) -> int:
    return (await jetstream.api(f"STREAM.INFO.{stream}"))["state"]["messages"]


class TestStoring:
    async def test_sequence_is_told(self, jetstream: JetStream, stream: str) -> None:
        assert [await jetstream.store(below(stream, "a"), b"") for _ in range(3)] == [1, 2, 3]

    async def test_expectation_that_does_not_hold_refuses(
        self, jetstream: JetStream, stream: str
    ) -> None:
        subject = below(stream, "a")
        assert await jetstream.store(subject, b"first", expects(0)) == 1
        with pytest.raises(ApiError, match="wrong last sequence") as caught:
            await jetstream.store(subject, b"second", expects(0))
        assert (caught.value.code, caught.value.err_code) == (400, WRONG_SEQUENCE)
        assert await jetstream.store(subject, b"second", expects(1)) == 2

    async def test_message_id_sent_again_has_its_first_sequence(
        self, jetstream: JetStream, stream: str
    ) -> None:
        block = build({b"Nats-Msg-Id": b"1"})
        first = await jetstream.store(below(stream, "a"), b"", block)
        assert await jetstream.store(below(stream, "a"), b"", block) == first

    async def test_thousands_may_be_on_their_way(self, jetstream: JetStream, stream: str) -> None:
        subject = below(stream, "a")
        stored = await within(
            asyncio.gather(*[jetstream.store(subject, b"%d" % n) for n in range(2000)])
        )
        assert stored == list(range(1, 2001))

    async def test_no_stream_is_said_at_once(self, jetstream: JetStream) -> None:
        with pytest.raises(NoResponders, match="no stream takes this subject"):
            await within(jetstream.store(b"nowhere.a", b""))
        with pytest.raises(ApiError, match="stream not found"):
            await jetstream.api("STREAM.INFO.nowhere")
        with pytest.raises(NoResponders):
            await jetstream.read("nowhere", 0)

    async def test_disabled_jetstream_is_said(self) -> None:
        with NatsServer(jetstream=False) as server:
            connection = await Connection.open(Options.parse(server.url))
            jetstream = JetStream(connection)
            with pytest.raises(NoResponders, match="JetStream is off"):
                await jetstream.api("INFO")
            await connection.close()

    async def test_answer_of_a_stranger_is_an_error(self, connection: Connection) -> None:
        jetstream, subject = JetStream(connection), connection.inbox()

        def answer(_: bytes, reply: bytes | None, headers: bytes | None, payload: bytes) -> None:
            assert reply is not None
            connection.publish(reply, payload)

        connection.subscribe(subject, answer)
        for said in (b"hello", b"{}", b'{"stream":"S"}', b'{"stream":"S","seq":"x"}'):
            with pytest.raises(Exception, match="not that of a stream"):
                await within(jetstream.store(subject, said))
        said = b'{"stream":"S","domain":"hub","seq":7,"duplicate":true}'
        assert await jetstream.store(subject, said) == 7


class TestBatches:
    async def test_all_are_stored_together(self, jetstream: JetStream, stream: str) -> None:
        batch = [Pending(below(stream, f"{n}"), b"", build({b"N": b"%d" % n})) for n in range(100)]
        assert await jetstream.store_batch(batch) == 100
        assert await messages(jetstream, stream) == 100

    @pytest.mark.parametrize("size", [2, 3, 50])
    async def test_one_refused_guard_refuses_all(
        self, jetstream: JetStream, stream: str, size: int
    ) -> None:
        await jetstream.store(below(stream, "0"), b"")
        for wrong in {0, 1, size - 1}:
            batch = [Pending(below(stream, f"{n}"), b"", expects(n == 0)) for n in range(size)]
            batch[wrong] = batch[wrong]._replace(headers=expects(99))
            with pytest.raises(ApiError) as caught:
                await jetstream.store_batch(batch)
            assert caught.value.err_code == WRONG_SEQUENCE
            assert await messages(jetstream, stream) == 1

    async def test_batch_of_one_is_a_message(self, jetstream: JetStream, stream: str) -> None:
        assert await jetstream.store_batch([Pending(below(stream, "a"), b"")]) == 1

    async def test_stream_without_batches_says_so(self, jetstream: JetStream, stream: str) -> None:
        other = await make_stream(jetstream, f"{stream}x", allow_atomic=False)
        with pytest.raises(ApiError, match="disabled") as caught:
            await jetstream.store_batch([Pending(below(other, "a"), b"")] * 3)
        assert caught.value.err_code != 0
        assert await messages(jetstream, other) == 0

    async def test_too_many_messages_are_refused(self, jetstream: JetStream, stream: str) -> None:
        with pytest.raises(ApiError):
            await jetstream.store_batch([Pending(below(stream, "a"), b"")] * 1001)
        assert await messages(jetstream, stream) == 0


class TestReading:
    async def test_last_of_many_subjects(self, jetstream: JetStream, stream: str) -> None:
        subjects = [below(stream, f"{n}") for n in range(2500)]
        for text in (b"old", b"new"):
            await asyncio.gather(*[jetstream.store(subject, text) for subject in subjects])
        found = await jetstream.last(stream, [*subjects, below(stream, "missing")])
        assert [one.subject for one in found] == subjects
        assert {one.payload for one in found} == {b"new"}
        assert [one.seq for one in found] == list(range(2501, 5001))

    async def test_last_of_a_pattern(self, jetstream: JetStream, stream: str) -> None:
        await jetstream.store(below(stream, "a.1"), b"")
        await jetstream.store(below(stream, "a.2"), b"")
        await jetstream.store(below(stream, "b.1"), b"")
        assert [one.seq for one in await jetstream.last(stream, [below(stream, "a.>")])] == [1, 2]
        assert await jetstream.last(stream, [below(stream, "c.>")]) == []
        assert await jetstream.last(stream, []) == []

    async def test_pattern_with_too_many_subjects_is_refused(
        self, jetstream: JetStream, stream: str
    ) -> None:
        await asyncio.gather(*[jetstream.store(below(stream, f"{n}"), b"") for n in range(1025)])
        with pytest.raises(TooMany, match="1024"):
            await jetstream.last(stream, [below(stream, ">")])

    async def test_large_answers_are_followed_over_pages(
        self, jetstream: JetStream, stream: str
    ) -> None:
        """The server cuts an answer at some tens of megabytes."""
        subjects = [below(stream, f"{n}") for n in range(100)]
        for subject in subjects:
            await jetstream.store(subject, bytes(1_000_000))
        found = await jetstream.last(stream, subjects, timeout=30)
        assert [one.subject for one in found] == subjects

    async def test_pages_follow_each_other(self, jetstream: JetStream, stream: str) -> None:
        await asyncio.gather(
            *[jetstream.store(below(stream, "ab"[n % 2]), b"%d" % n) for n in range(700)]
        )
        after, seen = 0, list[int]()
        while page := await jetstream.read(stream, after, below(stream, "a")):
            assert len(page) <= 256
            after = page[-1].seq
            seen += [int(one.payload) for one in page]
        assert seen == list(range(0, 700, 2))
        assert await jetstream.read(stream, 700) == []
        assert len(await jetstream.read(stream, 0, limit=1000)) == 700

    async def test_message_is_as_it_was_stored(self, jetstream: JetStream, stream: str) -> None:
        block = build({b"A": b"1", b"Nats-Stream": b"forged", b"Nats-Sequence": b"9"})
        before = int(time.time() * 1000)
        await jetstream.store(below(stream, "a"), b"\x00\r\n", block)
        await jetstream.store(below(stream, "a"), b"")
        first, second = await jetstream.read(stream, 0)
        assert first == await jetstream.message(stream, 1)
        assert first[:4] == (1, below(stream, "a"), block, b"\x00\r\n")
        assert second[:4] == (2, below(stream, "a"), None, b"")
        assert before - 1 <= first.time_ms <= time.time() * 1000 + 1

    async def test_deleted_message_is_not_found(self, jetstream: JetStream, stream: str) -> None:
        for _ in range(3):
            await jetstream.store(below(stream, "a"), b"")
        for seq in (2, 1, 3):
            assert await jetstream.delete(stream, seq)
            assert not await jetstream.delete(stream, seq)
            assert await jetstream.message(stream, seq) is None

    async def test_purge_takes_only_what_matches(self, jetstream: JetStream, stream: str) -> None:
        for name in ("a", "b", "a", "a", "b"):
            await jetstream.store(below(stream, name), b"")
        assert await jetstream.purge(stream, below(stream, "a"), keep=1) == 2
        assert await jetstream.purge(stream, below(stream, "b"), upto_seq=5) == 1
        assert [one.seq for one in await jetstream.read(stream, 0)] == [4, 5]

    @pytest.mark.parametrize(
        ("stamp", "expected"),
        [
            (b"2026-01-31T12:00:00.123456789Z", 1769860800123),
            (b"2026-01-31T12:00:00.1Z", 1769860800100),
            (b"2026-01-31T12:00:00.05Z", 1769860800050),
            (b"2026-01-31T12:00:00Z", 1769860800000),
        ],
    )
    def test_time_is_read_in_each_form(self, stamp: bytes, expected: int) -> None:
        assert milliseconds(stamp) == expected
