"""A connection whose server dies, hangs, leaves or does not keep up."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from headrace.engine.nats.wire.connection import Connection
from headrace.engine.nats.wire.errors import ApiError, Congested, Disconnected, NoResponders
from headrace.engine.nats.wire.jetstream import JetStream
from headrace.engine.nats.wire.link import Link
from headrace.engine.nats.wire.options import Address, Options
from headrace.engine.nats.wire.pull import NEW_LINK, ack
from headrace.testing.nats import NatsCluster, NatsServer
from tests.nats.wire.support import Signal, make_consumer, make_stream
from tests.support import eventually, within


class Watched:
    """A connection and what was told of it."""

    def __init__(self, options: Options) -> None:
        self.options, self.lost, self.found, self.errors = options, Signal(), Signal(), Signal()

    async def __aenter__(self) -> Watched:
        self.connection = await Connection.open(
            self.options, on_disconnect=self.lost, on_reconnect=self.found, on_error=self.errors
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.connection.close()


@pytest.fixture
async def watched(fresh: NatsServer) -> AsyncIterator[Watched]:
    async with Watched(Options.parse(fresh.url)) as watched:
        yield watched


async def test_subscriptions_live_again_after_a_crash(fresh: NatsServer, watched: Watched) -> None:
    connection, heard, dropped = watched.connection, Signal(), Signal()
    connection.subscribe(b"a.*", heard)
    closed = connection.subscribe(b"a.*", dropped)
    await asyncio.to_thread(fresh.restart, kill=True)
    await within(watched.found.wait())
    closed.close()
    connection.publish(b"a.b", b"again")
    await within(heard.wait())
    assert heard.calls == [(b"a.b", None, None, b"again")]
    await connection.flush()
    assert not dropped.calls
    assert (len(watched.lost.calls), len(watched.found.calls)) == (1, 1)


async def test_subscription_made_while_disconnected_is_there_after(
    fresh: NatsServer, watched: Watched
) -> None:
    connection, heard = watched.connection, Signal()
    await asyncio.to_thread(fresh.kill)
    await within(watched.lost.wait())
    connection.subscribe(b"a", heard)
    await asyncio.to_thread(fresh.start)
    await within(watched.found.wait())
    connection.publish(b"a")
    await within(heard.wait())


async def test_requests_in_flight_fail_and_new_ones_are_refused_until_it_is_back(
    fresh: NatsServer, watched: Watched
) -> None:
    connection = watched.connection
    jetstream = JetStream(connection)
    connection.subscribe(b"silent", lambda *_: None)
    flying = [connection.request(b"silent") for _ in range(10)]
    collecting = asyncio.ensure_future(connection.collect(b"silent", b"", lambda _: True))
    await connection.flush()
    flushing = asyncio.ensure_future(connection.flush())
    await asyncio.to_thread(fresh.kill)
    await within(watched.lost.wait())
    for request in [*flying, collecting, connection.request(b"a"), jetstream.store(b"a", b"")]:
        with pytest.raises(Disconnected):
            await within(request)
    await asyncio.gather(flushing, return_exceptions=True)
    with pytest.raises(Disconnected):
        connection.publish(b"a")
    await within(connection.drained())
    await asyncio.to_thread(fresh.start)
    await within(watched.found.wait())
    await connection.flush()


async def test_other_server_of_the_list_is_used(fresh: NatsServer) -> None:
    with NatsServer() as second:
        dead = Address("127.0.0.1", 1)
        options = Options.parse(f"nats://{fresh.host},{second.host}")
        options = replace(options, servers=(dead, *options.servers))
        async with Watched(options) as watched:
            first = watched.connection.server_info["server_id"]
            ports = {fresh.port: fresh, second.port: second}
            await asyncio.to_thread(ports[watched.connection.server_info["port"]].kill)
            await within(watched.found.wait())
            assert watched.connection.server_info["server_id"] != first


async def test_server_that_has_moved_is_located(fresh: NatsServer) -> None:
    with NatsServer() as second:
        found = Signal()

        async def locate() -> list[Address]:
            return list(Options.parse(second.url).servers)

        connection = await Connection.open(
            Options.parse(fresh.url), on_reconnect=found, locate=locate
        )
        await asyncio.to_thread(fresh.kill)
        await within(found.wait())
        assert connection.server_info["port"] == second.port
        await connection.close()


async def test_server_is_looked_for_whatever_goes_wrong_on_the_way(
    fresh: NatsServer, watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    connect = Link._connect  # pyright: ignore[reportPrivateUsage]

    async def failing_once(link: Link) -> None:
        if not told:
            raise UnicodeError("label too long")  # as a server's name may be
        await connect(link)

    monkeypatch.setattr(Link, "_connect", failing_once)
    await asyncio.to_thread(fresh.restart, kill=True)
    await within(watched.found.wait())
    assert len(told) == 1


async def test_hung_server_is_noticed(fresh: NatsServer) -> None:
    options = replace(Options.parse(fresh.url), ping_interval=0.1, connect_timeout=0.5)
    async with Watched(options) as watched:
        await asyncio.sleep(0.5)
        assert not watched.lost.calls, "a quiet server is not a dead one"
        fresh.signal(signal.SIGSTOP)
        await within(watched.lost.wait())
        fresh.signal(signal.SIGCONT)
        await within(watched.found.wait())
        await watched.connection.flush()


async def test_server_that_does_not_keep_up_bounds_what_is_buffered(fresh: NatsServer) -> None:
    options = replace(Options.parse(fresh.url), max_buffered=8 << 20)
    async with Watched(options) as watched:
        connection, payload, sent = watched.connection, bytes(100_000), 0

        async def flood() -> None:
            nonlocal sent
            while sent < 1000:
                connection.publish(b"a", payload)
                sent += 1
                if sent % 10 == 0:
                    await asyncio.sleep(0)

        fresh.signal(signal.SIGSTOP)
        with pytest.raises(Congested, match="drained"):
            await flood()
        assert sent * len(payload) < 32 << 20
        waiting = asyncio.ensure_future(connection.drained())
        await asyncio.sleep(0)
        assert not waiting.done()
        fresh.signal(signal.SIGCONT)
        await within(waiting)
        connection.publish(b"a", payload)
        await connection.flush()
        assert not watched.lost.calls


async def test_waiting_for_the_buffer_ends_with_the_connection(fresh: NatsServer) -> None:
    async with Watched(Options.parse(fresh.url)) as watched:
        fresh.signal(signal.SIGSTOP)
        for _ in range(100):
            watched.connection.publish(b"a", bytes(100_000))
        waiting = asyncio.ensure_future(watched.connection.drained())
        await asyncio.sleep(0)
        assert not waiting.done()
        await asyncio.to_thread(fresh.kill)
        await within(waiting)
        await within(watched.lost.wait())


async def test_puller_is_told_to_ask_again(fresh: NatsServer, watched: Watched) -> None:
    connection, heard, empty = watched.connection, Signal(), Signal()
    jetstream = JetStream(connection)
    stream = await make_stream(jetstream, "S")
    consumer = await make_consumer(jetstream, stream)
    puller = jetstream.pull(stream, consumer, heard, empty)
    puller.ask(10)
    await asyncio.to_thread(fresh.restart, kill=True)
    await within(empty.wait())
    assert empty.calls == [(NEW_LINK,)]
    assert puller.outstanding == 0
    puller.ask(5)
    await jetstream.store(b"S.a", b"job")
    await within(heard.wait())
    assert puller.outstanding == 4


class TestCluster:
    @pytest.mark.slow
    async def test_lame_duck_is_left_without_losing_anything(self) -> None:
        with NatsCluster(3) as cluster:
            async with Watched(Options.parse(cluster.servers[0].url)) as watched:
                await self._leave(cluster, watched)

    async def _leave(self, cluster: NatsCluster, watched: Watched) -> None:
        connection, heard = watched.connection, Signal()
        jetstream = JetStream(connection)
        stream = await make_stream(jetstream, "S", num_replicas=3)
        # What the server that leaves had handed out to nobody comes again after this time.
        again = 2_000_000_000
        consumer = await make_consumer(jetstream, stream, num_replicas=3, ack_wait=again)
        stored, failed, stop = list[int](), list[Exception](), asyncio.Event()
        pulled, unanswered = set[int](), list[Exception]()

        def deliver(subject: bytes, reply: bytes, headers: bytes | None, payload: bytes) -> None:
            pulled.add(int(payload))
            ack(connection, reply)
            if puller.outstanding < 50:
                puller.ask(100)

        puller = jetstream.pull(stream, consumer, deliver, lambda _: puller.ask(100))
        puller.ask(100)
        connection.subscribe(b"news", heard)

        async def produce() -> None:
            number = 0
            while not stop.is_set():
                try:
                    await within(jetstream.store(b"S.a", b"%d" % number))
                    stored.append(number)
                except NoResponders:  # while the stream has no leader; nothing was stored
                    await asyncio.sleep(0.01)
                except Disconnected as error:
                    unanswered.append(error)
                except Exception as error:
                    failed.append(error)
                number += 1

        producer = asyncio.ensure_future(produce())
        await eventually(lambda: len(stored) > 50)
        before = connection.server_info["server_name"]
        assert before == "n1"
        cluster["n1"].signal(signal.SIGUSR2)
        await eventually(lambda: connection.server_info["server_name"] != "n1")
        count = len(stored)
        await eventually(lambda: len(stored) > count + 200)
        connection.publish(b"news")
        await within(heard.wait())
        stop.set()
        await producer
        assert failed == []
        # Nobody answers what is on its way to the stream's leader just as that steps down.
        assert len(unanswered) <= 1
        assert not watched.lost.calls
        await eventually(lambda: pulled >= set(stored), limit=60)

    @pytest.mark.slow
    async def test_servers_of_a_cluster_are_learnt_from_one(self) -> None:
        with NatsCluster(3) as cluster:
            async with Watched(Options.parse(cluster.servers[0].url)) as watched:
                await asyncio.to_thread(cluster.servers[0].kill)
                await within(watched.found.wait())
                assert watched.connection.server_info["server_name"] in ("n2", "n3")

    @pytest.mark.slow
    async def test_pull_that_dies_with_its_leader_is_asked_again(self) -> None:
        with NatsCluster(3) as cluster:
            async with Watched(Options.parse(cluster.url)) as watched:
                jetstream, empty, heard = JetStream(watched.connection), Signal(), Signal()
                stream = await make_stream(jetstream, "S", num_replicas=3)
                consumer = await make_consumer(jetstream, stream, num_replicas=3)
                leader = (await jetstream.api(f"CONSUMER.INFO.{stream}.{consumer}"))["cluster"][
                    "leader"
                ]

                def again(status: int) -> None:
                    empty(status)
                    asyncio.get_running_loop().call_later(0.1, ask)

                def ask() -> None:
                    if watched.connection.connected and not puller.outstanding:
                        puller.ask(10, expires=2)

                puller = jetstream.pull(stream, consumer, heard, again)
                ask()
                await jetstream.store(b"S.a", b"1")
                await within(heard.wait())
                await asyncio.to_thread(cluster[leader].kill)
                await within(self._stored(jetstream), 30)
                await within(heard.after(2), 30)
                assert {int(call[3]) for call in heard.calls} == {1, 2}
                assert empty.calls

    async def _stored(self, jetstream: JetStream) -> None:
        """Tries until there is a leader again."""
        while True:
            try:
                await asyncio.wait_for(jetstream.store(b"S.a", b"2"), 1)
                return
            except (NoResponders, Disconnected, ApiError, TimeoutError):
                await asyncio.sleep(0.1)
