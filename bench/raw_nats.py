"""The raw limit on NATS: the writes of our jobs' lives through our wire client, and no job logic.

Some jobs are run for real, and the three messages that the last one leaves (created, started,
completed) are the patterns: the loop stores the same bytes under ids of its own, on the same
subjects, with the same guards, in the stream and from the consumer that the real jobs have left. So
the limit follows the layout by itself. What it leaves out: timers of leases (one a batch), bells,
and everything that decides.
"""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from headrace import App, WorkerOptions
from headrace.core.ids import ulid
from headrace.engine.nats.layout import Layout
from headrace.engine.nats.lines import ACK_WAIT, MAX_PENDING, Line, Place
from headrace.engine.nats.wire.connection import Connection
from headrace.engine.nats.wire.jetstream import JetStream
from headrace.engine.nats.wire.options import Options
from headrace.engine.nats.wire.pull import Puller, ack, ack_tokens
from headrace.engine.nats.wire.stored import Stored

WINDOW = 1000
"""So many messages are on their way at once where nobody waits for a batch; more is no faster."""

BULK = 100

SLOTS = 2000
"""So many jobs are on their way at once in a drain."""

WARM = 5
"""So many jobs are run before the one that is looked at: the first of a session go another way."""

_GUARD = re.compile(rb"(Nats-Expected-Last-Subject-Sequence: )\d+")
_BATCH = re.compile(rb"Nats-Batch-[^\r]*\r\n")


class Pattern:
    """A message with the job's id and the guard's number cut out."""

    def __init__(self, stored: Stored, job_id: bytes) -> None:
        assert stored.headers
        assert b"%" not in stored.headers
        self._subject = stored.subject.split(job_id)
        headers = _BATCH.sub(b"", _GUARD.sub(rb"\1%d", stored.headers))
        self._headers = headers.split(job_id)
        self._payload = stored.payload.split(job_id)

    def send(self, connection: Connection, job_id: bytes, guard: int, reply: bytes) -> None:
        connection.send(
            job_id.join(self._subject),
            job_id.join(self._payload),
            reply,
            job_id.join(self._headers) % guard,
        )


class Patterns(NamedTuple):
    """What one job leaves behind."""

    created: Pattern
    started: Pattern
    completed: Pattern
    sizes: tuple[int, ...]


async def patterns(url: str) -> Patterns:
    """Runs some jobs, which also makes the stream and the lines."""
    async with (app := App(url)):

        @app.task
        async def noop(n: int) -> None:
            """Does nothing."""

        worker = app.worker(WorkerOptions())
        await worker.start()
        for _ in range(WARM):
            await (await noop.enqueue(12345)).wait(timeout=30)
        ref = await noop.enqueue(12345)
        await ref.wait(timeout=30)
        await worker.stop()
    connection, js, layout = await _connect(url)
    found = await js.read(layout.stream, 0, layout.domain(ref.id))
    await connection.close()
    job_id = ref.id.encode()
    made = [Pattern(stored, job_id) for stored in found]
    sizes = tuple(len(stored.payload) for stored in found)
    return Patterns(*made, sizes)  # type: ignore[call-arg]


async def _connect(url: str) -> tuple[Connection, JetStream, Layout]:
    options = Options.parse(url, ("namespace", "projection", "replicas"))
    connection = await Connection.open(options)
    extra = dict(options.extra)
    return connection, JetStream(connection), Layout(extra.get("namespace", "headrace"))


async def drop(url: str) -> None:
    """Deletes the stream of a URL's namespace."""
    connection, js, layout = await _connect(url)
    await js.api(f"STREAM.DELETE.{layout.stream}", timeout=30)
    await connection.close()


def ids() -> Iterator[bytes]:
    """Made as ours are."""
    begun = time.time_ns() // 1_000_000
    while True:
        yield ulid(begun, random.getrandbits(80)).encode()


class RawNats:
    """One stream, one connection. Opened by `open`, closed by `close`."""

    connection: Connection
    js: JetStream
    layout: Layout
    _patterns: Patterns

    def __init__(self, url: str) -> None:
        self._url = url
        self._ids = ids()
        self._pending = 0

    async def open(self) -> RawNats:
        self._patterns = await patterns(self._url)
        self.connection, self.js, self.layout = await _connect(self._url)
        return self

    async def close(self) -> None:
        await self.connection.close()

    async def enqueue(self, count: int, batch: int) -> float:
        """Jobs per second, as many as the batch on their way at once; where that is a bulk, a
        window's worth: waiting for every batch would be measured otherwise."""
        start = time.perf_counter()
        await self.fill(count, batch if batch < BULK else WINDOW)
        return count / (time.perf_counter() - start)

    async def fill(self, count: int, window: int = WINDOW) -> None:
        """Stores new jobs."""
        self._pending += count
        way = _Window(self.connection, window)
        created = self._patterns.created
        for job_id in _some(self._ids, count):
            if way.full:
                await way.room()
            created.send(self.connection, job_id, 0, way.reply)
            way.sent += 1
        await way.done()

    async def drain(self, batch: int = SLOTS) -> float:
        """Jobs per second, of all that were stored here. Each is pulled, started and completed
        with a guarded write each, and acknowledged."""
        count, self._pending = self._pending, 0
        consumer = Line(self, Place("default", "default")).consumer("5")  # type: ignore[arg-type]
        worker = _Worker(self, count, batch)
        worker.puller = self.js.pull(self.layout.stream, consumer, worker.deliver)
        return await worker.run()


class RawPickUp:
    """Jobs that are stored, handed out and started one at a time: both round trips of a pick-up,
    and nothing else."""

    def __init__(self, raw: RawNats) -> None:
        self._raw, self._connection = raw, raw.connection
        self._ids, self._begun = ids(), 0.0
        self._box = self._connection.inbox()
        self._connection.subscribe(self._box, self._answered)
        consumer = Line(raw, Place("default", "default")).consumer("5")  # type: ignore[arg-type]
        self._puller = raw.js.pull(raw.layout.stream, consumer, self._deliver)
        self._started: asyncio.Future[float] | None = None

    async def measured(self) -> float:
        """Seconds from the sending of a job until its start is stored."""
        self._puller.ask(1)
        await self._connection.flush(5)
        self._started = asyncio.get_running_loop().create_future()
        self._begun = time.perf_counter()
        created = self._raw._patterns.created
        created.send(self._connection, next(self._ids), 0, self._connection.inbox())
        return await self._started

    def _deliver(self, subject: bytes, reply: bytes, headers: bytes | None, payload: bytes) -> None:
        job_id, guard = subject.split(b".", 5)[4], ack_tokens(reply).stream_seq
        self._raw._patterns.started.send(self._connection, job_id, guard, self._box)
        ack(self._connection, reply)

    def _answered(self, _: bytes, __: object, headers: bytes | None, payload: bytes) -> None:
        assert headers is None, payload
        assert b'"error"' not in payload, payload
        if self._started is not None and not self._started.done():
            self._started.set_result(time.perf_counter() - self._begun)


class RawLog(RawNats):
    """The leanest log: 200 bytes when a job is made, 25 when it is done, no guards."""

    CREATED = b'{"fn":"app.tasks.noop","args":[12345],"pad":"%b"}' % (b"x" * 150)
    DONE = b'{"ok":true,"result":null}'
    _TTL = b"NATS/1.0\r\nNats-TTL:86400\r\n\r\n"

    async def open(self) -> RawLog:
        self.connection, self.js, self.layout = await _connect(self._url)
        stream = self.layout.stream
        config = {
            "name": stream,
            "subjects": [f"{self.layout.namespace}.log.>"],
            "storage": "file",
            "num_replicas": 1,
            "allow_msg_ttl": True,
            "allow_direct": True,
        }
        await self.js.api(f"STREAM.CREATE.{stream}", config)
        consumer = {
            "durable_name": "raw",
            "ack_policy": "explicit",
            "deliver_policy": "all",
            "ack_wait": ACK_WAIT,
            "max_ack_pending": MAX_PENDING,
            "filter_subject": f"{self.layout.namespace}.log.*.new",
        }
        body = {"stream_name": stream, "config": consumer}
        await self.js.api(f"CONSUMER.CREATE.{stream}.raw", body)
        return self

    async def fill(self, count: int, window: int = WINDOW) -> None:
        self._pending += count
        way = _Window(self.connection, window)
        prefix = f"{self.layout.namespace}.log.".encode()
        for job_id in _some(self._ids, count):
            if way.full:
                await way.room()
            self.connection.send(prefix + job_id + b".new", self.CREATED, way.reply, b"")
            way.sent += 1
        await way.done()

    async def drain(self, batch: int = SLOTS) -> float:
        count, self._pending = self._pending, 0
        worker = _LogWorker(self, count, batch)
        worker.puller = self.js.pull(self.layout.stream, "raw", worker.deliver)
        return await worker.run()


class _Window:
    """Messages on their way, of which only so many may be."""

    def __init__(self, connection: Connection, size: int) -> None:
        self.sent = self._stored = 0
        self._size = size
        self._refused: list[bytes] = []
        self._waiting: asyncio.Future[None] | None = None
        self._wanted = 0
        self.reply = connection.inbox()
        self._subscription = connection.subscribe(self.reply, self._answered)

    @property
    def full(self) -> bool:
        return self.sent - self._stored >= self._size

    async def room(self) -> None:
        """Waits until a quarter is free, so that the loop is not woken for every answer."""
        await self._until(self.sent - self._size + max(1, self._size // 4))

    async def done(self) -> None:
        await self._until(self.sent)
        self._subscription.close()
        assert not self._refused, self._refused[:3]

    async def _until(self, stored: int) -> None:
        if self._stored < stored:
            self._wanted = stored
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting

    def _answered(self, _: bytes, __: object, headers: bytes | None, payload: bytes) -> None:
        self._stored += 1
        if headers is not None or b'"error"' in payload:
            self._refused.append(payload)
        if self._stored >= self._wanted and self._waiting and not self._waiting.done():
            self._waiting.set_result(None)


class _Worker:
    """Pulls, writes and acknowledges, as many jobs at a time as it has slots."""

    puller: Puller

    def __init__(self, raw: RawNats, count: int, slots: int) -> None:
        self._raw, self._connection = raw, raw.connection
        self._count, self._slots = count, slots
        self._running = self._done = self._tokens = 0
        self._waiting: dict[bytes, tuple[bool, bytes, bytes]] = {}
        self._box = self._connection.inbox() + b"."
        self._skip = len(self._box)
        self._subscription = self._connection.subscribe(self._box + b"*", self._answered)
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self) -> float:
        start = time.perf_counter()
        self._ask()
        await self._over
        await self._connection.flush(30)
        spent = time.perf_counter() - start
        self.puller.close()
        self._subscription.close()
        return self._count / spent

    def _ask(self) -> None:
        """Keeps the slots filled, a quarter at a time."""
        free = min(self._slots - self._running, self._count - self._done - self._running)
        free -= self.puller.outstanding
        if free >= self._slots // 4 or (free > 0 and not self.puller.outstanding):
            self.puller.ask(free)

    def deliver(self, subject: bytes, reply: bytes, headers: bytes | None, payload: bytes) -> None:
        self._running += 1
        job_id = subject.split(b".", 5)[4]
        guard = ack_tokens(reply).stream_seq
        token = self._token(False, job_id, reply)
        self._raw._patterns.started.send(self._connection, job_id, guard, self._box + token)

    def _token(self, ends: bool, job_id: bytes, reply: bytes) -> bytes:
        self._tokens += 1
        token = b"%x" % self._tokens
        self._waiting[token] = ends, job_id, reply
        return token

    def _answered(self, subject: bytes, _: object, headers: bytes | None, payload: bytes) -> None:
        ends, job_id, reply = self._waiting.pop(subject[self._skip :])
        if headers is not None or b'"error"' in payload:
            self._fail(payload)
        elif ends:
            self._finish(reply)
        else:
            guard = int(payload[payload.find(b',"seq":') + 7 : -1])
            token = self._token(True, job_id, reply)
            self._raw._patterns.completed.send(self._connection, job_id, guard, self._box + token)

    def _finish(self, reply: bytes) -> None:
        ack(self._connection, reply)
        self._running -= 1
        self._done += 1
        self._ask()
        if self._done == self._count:
            self._over.set_result(None)

    def _fail(self, payload: bytes) -> None:
        if not self._over.done():
            self._over.set_exception(AssertionError(payload))


class _LogWorker(_Worker):
    """Writes once, and without a guard."""

    def deliver(self, subject: bytes, reply: bytes, headers: bytes | None, payload: bytes) -> None:
        self._running += 1
        token = self._token(True, b"", reply)
        done = subject[:-3] + b"done"
        self._connection.send(done, RawLog.DONE, self._box + token, RawLog._TTL)


def _some(source: Iterable[bytes], count: int) -> Iterator[bytes]:
    for number, one in enumerate(source, 1):
        yield one
        if number == count:
            return
