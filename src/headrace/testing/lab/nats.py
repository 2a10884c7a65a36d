"""The deployments of the NATS engine: servers with JetStream, each behind a proxy of its own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from headrace.testing.lab.server import Server, ServerDeployment
from headrace.testing.nats import NatsCluster, NatsServer


class NatsDeployment(ServerDeployment):
    """One server, or a cluster that replicates the stream. A server is killed without losing what
    it answered for: a kill does not take from it what the system has taken over for the disk."""

    def __init__(self, nodes: int = 1) -> None:
        super().__init__()
        self._nodes = nodes
        self.name = "nats" if nodes == 1 else f"nats{nodes}"

    def launch(self, folder: Path) -> Sequence[Server]:
        if self._nodes == 1:
            return [NatsServer(folder / "nats").start()]
        # Clients must not learn the way around the proxies.
        return NatsCluster(self._nodes, advertise=False).start().servers

    def relaunch(self, server: Server) -> None:
        assert isinstance(server, NatsServer)
        server.start()

    def url(self, ports: Sequence[int], folder: Path) -> str:
        hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
        return f"nats://{hosts}?replicas={self._nodes}&projection={folder / 'projection.db'}"
