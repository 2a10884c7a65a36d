"""Apps for tests, on every engine."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from headrace import App
from headrace.testing import ManualClock, nats
from headrace.testing.nats import NatsServer

MEMORY, PLENTY = "/dev/shm", 4 << 30
"""A file system in memory, and bytes that are free there; containers often have 64 MB in all."""

_namespaces = itertools.count()


def pytest_configure() -> None:
    """Lets tests interrupt what they start, also where they run in the background of a shell: it
    has its jobs ignore SIGINT, and so would theirs."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # The tests start hundreds of processes. Where the shell forbids bytecode, each of them would
    # compile all that it imports, and so would every run the tests themselves.
    sys.dont_write_bytecode = False
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    # Half of what a server does for many small streams is to make and remove files.
    with suppress(OSError):
        if shutil.disk_usage(MEMORY).free >= PLENTY:
            nats.SCRATCH = MEMORY


@pytest.fixture(scope="session")
def nats_server() -> Iterator[NatsServer]:
    """A server for all tests of this process; each has a namespace of its own."""
    with NatsServer(config="max_payload: 8MB\n") as server:
        yield server


@pytest.fixture(params=["memory", "sqlite", "nats"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty store."""
    return _empty_store(request, tmp_path)


@pytest.fixture(params=["sqlite", "nats"])
def shared_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty store that other processes can open too."""
    return _empty_store(request, tmp_path)


def _empty_store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    match request.param:
        case "memory":
            return "memory:"
        case "sqlite":
            return f"sqlite:{tmp_path / 'jobs.db'}?synchronous=normal"
        case _:
            server: NatsServer = request.getfixturevalue("nats_server")
            projection = tmp_path / "projection.db"
            return f"{server.url}?namespace=t{next(_namespaces)}&projection={projection}"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def app(url: str) -> AsyncIterator[App]:
    """An app by the system's clock."""
    async with App(url) as app:
        yield app


@pytest.fixture
async def timed(url: str, clock: ManualClock) -> AsyncIterator[App]:
    """An app by a clock that the test moves."""
    async with App(url, clock=clock) as app:
        yield app
