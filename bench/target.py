"""What is measured: an engine on fresh stores, and the raw loop on fresh stores of its kind."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager
from pathlib import Path
from typing import Protocol

import raw_nats
from raw_nats import RawLog, RawNats, RawPickUp
from raw_sqlite import RawStore, drain_rate, enqueue_rate

from headrace.testing.nats import NatsCluster, NatsServer


class Raw(Protocol):
    """The raw loop. Both of its rates are jobs per second."""

    async def enqueue(self, count: int, batch: int) -> float: ...
    async def fill(self, count: int) -> None:
        """Puts jobs there to drain."""
        ...

    async def drain(self) -> float:
        """Works off all that is there."""
        ...


class Target(Protocol):
    """An engine, with the store that it runs on. `wanted` names the rates that are measured, with
    the share of the raw limit that each is to reach, or None where it is only shown."""

    name: str
    rounds: int
    wanted: Mapping[str, float | None]
    pickup: float
    """Milliseconds within which half of all jobs should start, in an idle worker of one process."""

    def store(self, name: str) -> AbstractAsyncContextManager[str]:
        """The URL of a store that nobody has used; it need not be there afterwards."""
        ...

    def raw(self, name: str) -> AbstractAsyncContextManager[Raw]: ...

    def lean(self, name: str) -> AbstractAsyncContextManager[Raw] | None:
        """A raw loop that writes less than we do, where it is told what that would bring."""
        ...

    def raw_pickup(self, name: str) -> AbstractAsyncContextManager[RawPickUp] | None:
        """What a pick-up takes without job logic, where that is more than the store's own time."""
        ...


class SqliteTarget:
    """Files in a folder."""

    name = "sqlite"
    rounds = 9
    wanted: Mapping[str, float | None] = {
        "enqueue_many": 0.35,
        "enqueue_one": 0.5,
        "enqueue_50": 0.35,
        "drain": 0.30,
    }
    pickup = 2.0

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @asynccontextmanager
    async def store(self, name: str) -> AsyncIterator[str]:
        yield f"sqlite:{self._folder / name}.db"

    @asynccontextmanager
    async def raw(self, name: str) -> AsyncIterator[Raw]:
        yield _RawSqlite(self._folder / f"{name}.raw")

    def lean(self, name: str) -> None:
        return None

    def raw_pickup(self, name: str) -> None:
        return None


class _RawSqlite:
    BATCH = 100

    def __init__(self, path: Path) -> None:
        self._store = RawStore(path)

    async def enqueue(self, count: int, batch: int) -> float:
        return enqueue_rate(self._store, count, batch)

    async def fill(self, count: int) -> None:
        for _ in range(count // 500):
            self._store.insert(500)

    async def drain(self) -> float:
        return drain_rate(self._store, self.BATCH)


class NatsTarget:
    """A server with one node, or a cluster with three; every store is a namespace of its own."""

    pickup = 1.5

    def __init__(self, folder: Path, *, cluster: bool = False) -> None:
        self._folder = folder
        self.name = "nats3" if cluster else "nats"
        self.rounds = 3 if cluster else 5
        self.wanted: Mapping[str, float | None] = (
            {"enqueue_many": None, "drain": None}
            if cluster
            else {"enqueue_many": 0.35, "enqueue_one": None, "enqueue_50": None, "drain": 0.35}
        )
        self.server = NatsCluster(3, sync="1s") if cluster else NatsServer(sync="1s")

    def running(self) -> AbstractContextManager[object]:
        return self.server

    def url(self, name: str) -> str:
        projection = self._folder / f"{self.name}-{name}.db"
        return f"{self.server.url}?namespace={name}&projection={projection}"

    @asynccontextmanager
    async def store(self, name: str) -> AsyncIterator[str]:
        url = self.url(name)
        yield url
        await raw_nats.drop(url)

    @asynccontextmanager
    async def raw(self, name: str) -> AsyncIterator[Raw]:
        async with self.store(f"{name}-raw") as url:
            raw = await RawNats(url).open()
            yield raw
            await raw.close()

    def lean(self, name: str) -> AbstractAsyncContextManager[Raw] | None:
        return self._lean(name) if self.name == "nats" else None

    @asynccontextmanager
    async def _lean(self, name: str) -> AsyncIterator[Raw]:
        async with self.store(f"{name}-lean") as url:
            raw = await RawLog(url).open()
            yield raw
            await raw.close()

    @asynccontextmanager
    async def raw_pickup(self, name: str) -> AsyncIterator[RawPickUp]:
        async with self.store(f"{name}-raw") as url:
            raw = await RawNats(url).open()
            yield RawPickUp(raw)
            await raw.close()
