"""Following the stream: reading what is new, and applying it.

The lock of the database is never held over a wait: messages are read first; then, within one
transaction, those are applied that no other process has applied meanwhile.

Three things can be amiss, and are looked after here:

- A stream that lost its end (a power failure before it was synced) gives the same sequences to
  other messages. So the last message that was applied is read again, and must be the same.
- A replica may lag behind, and its answer end early. So the end of the stream is asked for where
  it is known for sure, before the wanted sequence is taken to be reached.
- The messages of a removed job are purged once the journal's floor has passed them: then one that
  was behind has read of the job but never reads of its removal. So, where the floor is found to be
  above the place from which was read on, jobs of which nothing was heard above the floor are
  looked up in the stream.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from typing import Any, NamedTuple, cast

import msgspec

from headrace.core.errors import StoreBusy
from headrace.engine.nats.layout import Layout
from headrace.engine.nats.projection.applying import Run, write_counts
from headrace.engine.nats.projection.database import PATIENCE, Damaged, Database, seqs
from headrace.engine.nats.projection.sql import STATEMENTS
from headrace.engine.nats.wire.errors import ApiError
from headrace.engine.nats.wire.jetstream import JetStream
from headrace.engine.nats.wire.stored import Stored, milliseconds

AT_ONCE = 1000
"""Messages read at a time."""

SLICE = 500
"""Messages applied at a time: the event loop stands still for some milliseconds."""

LOOKED_UP = 100
"""Jobs looked up in the stream at a time."""

LAG = 5.0
"""Seconds that a replica may lag behind."""

_PAUSE = 0.005
_NO_MESSAGE = 10037


class Replaced(Damaged):
    """The stream is not the one that was followed so far."""

    def __init__(self, stream: str) -> None:
        super().__init__(f"{stream}: lost its end, or is another stream by the same name")


class Place(NamedTuple):
    """How far the stream was followed."""

    position: int
    witness: bytes
    floor: int
    doubt: int | None

    @classmethod
    def read(cls, database: Database) -> Place:
        """As it is stored."""
        row = database.fetch(STATEMENTS["mirror"])
        if row is None:
            raise Damaged("the projection does not say how far it is")
        return cls(*cast("tuple[int, bytes, int, int | None]", row[1:]))


_SEQS = msgspec.json.Decoder(list[int])
_FORGOTTEN = msgspec.json.Decoder(list[tuple[int, str, str, str]])


class Follower:
    """Brings a database up to a sequence of the stream."""

    def __init__(self, database: Database, layout: Layout, js: JetStream, stream: str) -> None:
        self._database, self._layout = database, layout
        self._js, self._stream = js, stream

    async def follow(self, upto: int) -> None:
        """Reads and applies until `upto` is reached, or the stream has no more."""
        messages, floor, waited = await self._first(), 0, 0.0
        while len(messages) == AT_ONCE:
            floor = floor or await self._floor()  # so that what is pruned is not written first
            messages = await self._apply_and_read(messages, floor)
        while True:
            await self._apply(messages, await self._floor(), last=True)
            if self.place().position >= upto or await self._at_end() or waited > LAG:
                break
            await asyncio.sleep(_PAUSE)
            waited += _PAUSE
            messages = await self._read(self.place().position)
        await self._look_up()

    async def _apply_and_read(self, messages: Sequence[Stored], floor: int) -> list[Stored]:
        """Applies a page while the next one is on its way."""
        last = messages[-1].seq
        ahead = asyncio.create_task(self._read(last))
        try:
            await self._apply(messages, floor)
            position = self.place().position
            return await ahead if position == last else await self._read(position)
        finally:
            ahead.cancel()
            await asyncio.gather(ahead, return_exceptions=True)

    def place(self) -> Place:
        """How far the stream was followed."""
        return Place.read(self._database)

    # Reading

    async def _read(self, after: int) -> list[Stored]:
        return await self._js.read(self._stream, after, self._layout.jobs, AT_ONCE)

    async def _first(self) -> list[Stored]:
        """What follows the position, having seen that the stream is still the one it was."""
        place = self.place()
        if not place.position:
            return await self._read(0)
        messages = await self._read(place.position - 1)
        if messages and messages[0].seq == place.position:
            self._compare(messages[0].subject, messages[0].time_ms, place)
        else:
            await self._check(place)
        return messages

    async def _check(self, place: Place) -> None:
        """The last message that was applied was not found: it may have been purged."""
        found = await self._ask({"seq": place.position})
        if found is not None:
            time_ms = milliseconds(str(found["time"]).encode())
            self._compare(str(found["subject"]).encode(), time_ms, place)
            return
        info = await self._js.api(f"STREAM.INFO.{self._stream}")
        if int(info["state"]["last_seq"]) < place.position:
            raise Replaced(self._stream)

    def _compare(self, subject: bytes, time_ms: int, place: Place) -> None:
        if _witness(subject, time_ms) != place.witness:
            raise Replaced(self._stream)

    async def _at_end(self) -> bool:
        """Whether the stream has no message of a job beyond the position."""
        after = self.place().position
        wanted = {"seq": after + 1, "next_by_subj": self._layout.jobs.decode()}
        return await self._ask(wanted) is None

    async def _ask(self, wanted: dict[str, Any]) -> dict[str, Any] | None:
        """A message from where it is known for sure."""
        try:
            answer = await self._js.api(f"STREAM.MSG.GET.{self._stream}", wanted)
        except ApiError as error:
            if error.err_code == _NO_MESSAGE:
                return None
            raise
        return answer["message"]

    async def _floor(self) -> int:
        found = await self._js.last(self._stream, [self._layout.floor()])
        return int(found[0].payload) if found and found[0].payload.isdigit() else 0

    # Applying

    async def _apply(self, messages: Sequence[Stored], floor: int, last: bool = False) -> None:
        place = self.place()
        messages = [one for one in messages if one.seq > place.position]
        if not messages and floor <= place.floor and place.doubt is None:
            return
        for start in range(0, max(len(messages), 1), SLICE):
            part = messages[start : start + SLICE]
            at_end = last and start + SLICE >= len(messages)
            async with self._transaction():
                self._write(part, floor, at_end)
            await asyncio.sleep(0)

    @contextlib.asynccontextmanager
    async def _transaction(self) -> AsyncGenerator[None]:
        """A transaction that writes. The event loop does not stand still while another process
        has one; within it nothing is awaited."""
        waited = 0.0
        while not self._database.begin(patience=0):
            if waited > PATIENCE:
                raise StoreBusy(
                    f"{self._database.path}: another process holds the projection's lock; find it"
                    f" with `fuser {self._database.path}`"
                )
            waited += _PAUSE
            await asyncio.sleep(_PAUSE)
        try:
            yield
            self._database.commit()
        finally:
            self._database.rollback()

    def _write(self, messages: Sequence[Stored], floor: int, at_end: bool) -> None:
        place = self.place()
        floor = set_floor(self._database, place, floor)
        new = [one for one in messages if one.seq > place.position]
        if new:
            Run(self._database, self._layout, floor).apply(new)
        doubt: int | None = place.position if place.doubt is None else place.doubt
        if at_end and doubt >= floor:
            doubt = None
        if new or doubt != place.doubt:
            position = new[-1].seq if new else place.position
            seen = _witness(new[-1].subject, new[-1].time_ms) if new else place.witness
            self._database.execute(STATEMENTS["move"], [position, seen, doubt])

    # Jobs whose removal was missed

    async def _look_up(self) -> None:
        """Removes the jobs that the stream knows no more, where that can have been missed."""
        place = self.place()
        if place.doubt is None or place.doubt >= place.floor:
            return
        after = 0
        while True:
            values = [place.floor, after, LOOKED_UP]
            found = self._database.decoded(_SEQS, STATEMENTS["untouched"], values)
            if not found:
                break
            after = found[-1]
            answers = await asyncio.gather(*(self._ask({"seq": seq}) for seq in found))
            missing = [seq for seq, one in zip(found, answers, strict=True) if one is None]
            if missing:
                async with self._transaction():
                    _forget(self._database, missing)
        async with self._transaction():
            self._database.execute(STATEMENTS["sure"], [place.position])


def set_floor(database: Database, place: Place, floor: int) -> int:
    """Drops the journal's entries up to a floor; the floor that holds now."""
    if floor <= place.floor:
        return place.floor
    database.execute(STATEMENTS["delete_entries"], [place.floor, floor])
    database.execute(STATEMENTS["set_floor"], [floor])
    return floor


def _forget(database: Database, jobs: Sequence[int]) -> None:
    """Removes jobs of which the journal tells nothing any more."""
    counts: Counter[tuple[str, str, str]] = Counter()
    messages = list(jobs)
    for newest, *place in database.decoded(_FORGOTTEN, STATEMENTS["forgotten"], [seqs(jobs)]):
        messages.append(newest)
        counts[place[0], place[1], place[2]] -= 1
    for name, numbers in (
        ("delete_jobs", jobs),
        ("delete_labels", jobs),
        ("delete_messages", messages),
    ):
        database.execute(STATEMENTS[name], [seqs(numbers)])
    write_counts(database, counts)


def _witness(subject: bytes, time_ms: int) -> bytes:
    """What a message is known by."""
    return b"%d %b" % (time_ms, subject)
