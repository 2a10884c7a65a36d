"""The deployment of the NATS engine: one server with JetStream, behind the proxy."""

from __future__ import annotations

from pathlib import Path

from headrace.testing.lab.server import Server, ServerDeployment
from headrace.testing.nats import NatsServer


class NatsDeployment(ServerDeployment):
    """A server whose store is in the run's folder. It is killed without losing what it answered
    for: a kill does not take from it what the system has taken over for the disk."""

    name = "nats"

    def launch(self, folder: Path) -> Server:
        return NatsServer(folder / "nats").start()

    def relaunch(self, server: Server) -> None:
        assert isinstance(server, NatsServer)
        server.start()

    def url(self, port: int, folder: Path) -> str:
        return f"nats://127.0.0.1:{port}?projection={folder / 'projection.db'}"
