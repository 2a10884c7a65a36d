"""Servers for the NATS engine: one, and a cluster of three."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace.testing.nats import NatsCluster, NatsServer

CONFIG = "max_payload: 8MB\n"


@pytest.fixture(scope="session")
def server() -> Iterator[NatsServer]:
    with NatsServer(config=CONFIG) as server:
        yield server


@pytest.fixture(scope="session")
def cluster() -> Iterator[NatsCluster]:
    """It takes seconds to elect its leader; whoever is done removes its stream."""
    with NatsCluster(3, config=CONFIG) as cluster:
        yield cluster
