"""JetStream on a connection: storing, reading, deleting and pulling."""

from __future__ import annotations

import asyncio
import secrets
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from headrace.engine.nats.wire.connection import Connection
from headrace.engine.nats.wire.errors import (
    ApiError,
    Behind,
    ProtocolError,
    TimedOut,
    TooMany,
    WireError,
)
from headrace.engine.nats.wire.headers import description, extend, status, value
from headrace.engine.nats.wire.mux import Message, Mux
from headrace.engine.nats.wire.pull import Deliver, Puller
from headrace.engine.nats.wire.stored import Stored, stored

PAGE = 1000
"""Messages read at a time."""

MOST_SUBJECTS = 1024
"""The server looks up at most so many subjects at once."""

_NO_SUCH_SEQUENCE = 10043


class Pending(NamedTuple):
    """A message to store; headers are a complete block, or empty."""

    subject: bytes
    payload: bytes
    headers: bytes = b""


class Fresh(NamedTuple):
    """How far a replica must have come for its answer to count. It says so only where it has
    something to answer with: `anchor` is a subject that surely has a message."""

    since: int
    anchor: bytes


class JetStream:
    """The streams of one account, or of one domain of it."""

    def __init__(self, connection: Connection, domain: str | None = None) -> None:
        self._connection = connection
        self._prefix = f"$JS.{domain}.API." if domain else "$JS.API."
        self._acks = _Acks(connection)
        self.store = self._acks.ask

    async def api(self, verb: str, body: object = None, timeout: float = 5.0) -> dict[str, Any]:
        """One call of the API: `api("STREAM.INFO.jobs")`."""
        payload = b"" if body is None else msgspec.json.encode(body)
        answer = await self._connection.call(self._subject(verb), payload, timeout=timeout)
        try:
            found = msgspec.json.decode(answer.payload, type=dict[str, Any])
        except msgspec.DecodeError as error:
            raise ProtocolError(f"{verb}: the answer is no JSON object ({error})") from None
        if "error" in found:
            raise _api_error(found["error"], verb)
        return found

    # storing

    async def store_batch(self, messages: Sequence[Pending], timeout: float = 10.0) -> int:
        """Stores all of the messages in one step, or none. The sequence of the last."""
        for subject, payload, headers in messages:
            self._connection.check_size(subject, len(payload) + len(headers))
        single = len(messages) == 1
        futures = [self.store(*messages[0])] if single else self._send_batch(messages)
        try:
            async with asyncio.timeout(timeout):
                return (await asyncio.gather(*futures))[-1]
        except TimeoutError:
            raise TimedOut(f"a batch of {len(messages)}: no answer in {timeout:g} s") from None

    def _send_batch(self, messages: Sequence[Pending]) -> list[asyncio.Future[int]]:
        """The first message asks for an answer too: if it was refused, the commit would only say
        that the batch is incomplete."""
        batch = b"Nats-Batch-Id: %b\r\nNats-Batch-Sequence: " % secrets.token_hex(8).encode()
        last = len(messages)
        futures: list[asyncio.Future[int]] = []
        for number, (subject, payload, headers) in enumerate(messages, 1):
            lines = b"%b%d\r\n" % (batch, number)
            if number == last:
                block = extend(headers, lines + b"Nats-Batch-Commit: 1\r\n")
                futures.append(self.store(subject, payload, block))
            elif number == 1:
                futures.append(self.store(subject, payload, extend(headers, lines)))
                if futures[0].done():
                    break  # it could not be sent, and neither can the rest
            else:
                try:
                    self._connection.send(subject, payload, b"", extend(headers, lines))
                except WireError:
                    futures[0].cancel()  # nobody waits for it any more
                    raise
        return futures

    # reading

    async def last(
        self,
        stream: str,
        subjects: Sequence[bytes],
        timeout: float = 5.0,
        fresh: Fresh | None = None,
    ) -> list[Stored]:
        """The newest message of each subject, by sequence within some thousand subjects. Any
        replica of the stream may answer; raises `Behind` where it is not `fresh`."""
        found: list[Stored] = []
        for start in range(0, len(subjects), MOST_SUBJECTS - 1):
            names = subjects[start : start + MOST_SUBJECTS - 1]
            if fresh is None:
                found += (await self._get_newest(stream, names, timeout))[0]
                continue
            some, upto = await self._get_newest(stream, [*names, fresh.anchor], timeout)
            if upto < fresh.since:
                raise Behind(f"{stream}: the replica is at {upto}, not yet at {fresh.since}")
            found += some if fresh.anchor in names else _without(some, fresh.anchor)
        return found

    async def read(
        self,
        stream: str,
        after: int,
        filter: bytes = b">",
        limit: int = 256,
        timeout: float = 5.0,
    ) -> list[Stored]:
        """The messages after a sequence, in order, at most `limit`; none at the end."""
        body = {"seq": after + 1, "batch": limit, "next_by_subj": filter.decode()}
        return (await self._get(stream, body, timeout))[0]

    async def read_all(self, stream: str, filter: bytes) -> list[Stored]:
        """All messages that match, in order, by the page."""
        found: list[Stored] = []
        while True:
            page = await self.read(stream, found[-1].seq if found else 0, filter, PAGE)
            found += page
            if len(page) < PAGE:
                return found

    async def message(self, stream: str, seq: int, timeout: float = 5.0) -> Stored | None:
        """The message with this sequence, if it is there."""
        subject = self._subject(f"DIRECT.GET.{stream}")
        answer = await self._connection.call(subject, b'{"seq":%d}' % seq, timeout=timeout)
        code = status(answer.headers)
        if code == 404:
            return None
        if code:
            raise _status_error(answer, stream)
        return stored(answer)

    async def _get_newest(
        self, stream: str, subjects: Sequence[bytes], timeout: float
    ) -> tuple[list[Stored], int]:
        """Follows the pages of an answer that the server has cut; how far the replica has come,
        which is not known where there is nothing."""
        body: dict[str, Any] = {"multi_last": [name.decode() for name in subjects]}
        found: list[Stored] = []
        while True:
            some, end = await self._get(stream, body, timeout)
            found += some
            if end is None:
                return found, sys.maxsize
            upto = int(value(end, b"Nats-UpTo-Sequence") or 0)
            if not some or not int(value(end, b"Nats-Num-Pending") or 0):
                return found, upto
            body |= {"seq": some[-1].seq + 1, "up_to_seq": upto}

    async def _get(
        self, stream: str, body: dict[str, Any], timeout: float
    ) -> tuple[list[Stored], bytes | None]:
        subject = self._subject(f"DIRECT.GET.{stream}")
        payload = msgspec.json.encode(body)
        answers = await self._connection.collect(subject, payload, _is_status, timeout)
        end = answers.pop()
        code = status(end.headers)
        if code == 404:
            return [], None
        if code == 413:
            raise TooMany(
                f"{stream}: more than {MOST_SUBJECTS} subjects match; ask for fewer at a time"
            )
        if code != 204:
            raise _status_error(end, stream)
        return [stored(answer) for answer in answers], end.headers

    # deleting

    async def delete(self, stream: str, seq: int) -> bool:
        """Deletes one message; False where it was not there."""
        try:
            await self.api(f"STREAM.MSG.DELETE.{stream}", {"seq": seq, "no_erase": True})
        except ApiError as error:
            if error.err_code == _NO_SUCH_SEQUENCE or "no message found" in error.description:
                return False
            raise
        return True

    async def purge(self, stream: str, filter: bytes, *, keep: int = 0, upto_seq: int = 0) -> int:
        """Deletes the messages of the matching subjects; how many there were."""
        body: dict[str, Any] = {"filter": filter.decode()}
        if keep:
            body["keep"] = keep
        if upto_seq:
            body["seq"] = upto_seq
        return int((await self.api(f"STREAM.PURGE.{stream}", body))["purged"])

    # pulling

    def pull(
        self,
        stream: str,
        consumer: str,
        deliver: Deliver,
        on_empty: Callable[[int], None] | None = None,
    ) -> Puller:
        """A pull subscription on a durable consumer."""
        subject = self._subject(f"CONSUMER.MSG.NEXT.{stream}.{consumer}")
        return Puller(self._connection, subject, deliver, on_empty)

    def _subject(self, verb: str) -> bytes:
        return (self._prefix + verb).encode()


class _Acks(Mux[int]):
    """Messages on their way into a stream; each answer is the sequence it was stored with."""

    def _answered(
        self, subject: bytes, reply: bytes | None, headers: bytes | None, payload: bytes
    ) -> None:
        """The usual answer, {"stream":"jobs","seq":12}, is not worth a parser."""
        if headers is not None or payload[2:3] != b"s":
            super()._answered(subject, reply, headers, payload)
            return
        waiting = self._waiting.pop(subject[self._skip :], None)
        if waiting is not None and not waiting[0].done():
            try:
                waiting[0].set_result(int(payload[payload.find(b',"seq":') + 7 : -1]))
            except ValueError:
                self._settle(waiting[0], subject, reply, headers, payload)

    def _settle(
        self,
        future: asyncio.Future[int],
        subject: bytes,
        reply: bytes | None,
        headers: bytes | None,
        payload: bytes,
    ) -> None:
        if not payload:  # a message of a batch that is not the last
            future.set_result(0)
            return
        try:
            found = msgspec.json.decode(payload, type=dict[str, Any])
        except msgspec.DecodeError:
            found = {}
        if "error" in found:
            future.set_exception(_api_error(found["error"]))
        elif isinstance(found.get("seq"), int):
            future.set_result(found["seq"])
        else:
            future.set_exception(
                ProtocolError(f"the answer is not that of a stream: {payload[:128]!r}")
            )


def _without(found: list[Stored], subject: bytes) -> list[Stored]:
    return [one for one in found if one.subject != subject]


def _is_status(message: Message) -> bool:
    return message.headers is not None and message.headers[8:9] == b" "


def _status_error(message: Message, stream: str) -> ApiError:
    assert message.headers is not None
    return ApiError(status(message.headers), 0, description(message.headers), stream)


def _api_error(error: dict[str, Any], about: str = "") -> ApiError:
    return ApiError(
        int(error.get("code", 0)),
        int(error.get("err_code", 0)),
        str(error.get("description", "no description")),
        about,
    )
