"""NATS servers for tests and labs: on loopback, on ports of their own, stopped and killed at will.

Starting and stopping block; in async code that has to go on meanwhile, use `asyncio.to_thread`.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from headrace.engine.nats.server import end_guard, spawn_server

LIMIT = 30.0
"""Seconds for a server to become healthy, or to stop."""

SCRATCH: str | None = None
"""Where servers without a folder of their own make one; None is where temporary files go."""


class NatsServer:
    """One server. It keeps its ports and its store over restarts."""

    def __init__(
        self,
        path: str | Path | None = None,
        *,
        name: str = "n1",
        jetstream: bool = True,
        sync: str = "2m",
        config: str = "",
    ) -> None:
        """`config` is more of the server's configuration: see the functions below."""
        self._scratch = path is None
        self.path = Path(path or tempfile.mkdtemp(prefix="headrace-nats-", dir=SCRATCH))
        self.name = name
        self.port = self.monitor_port = self._route_port = -1
        self.process: subprocess.Popen[bytes] | None = None
        self.jetstream, self._sync, self.config = jetstream, sync, config
        """What it is started with the next time."""
        self._routes: Sequence[int] | None = None
        self._advertise = True
        self._base = ""

    @property
    def url(self) -> str:
        return f"nats://{self.host}"

    @property
    def host(self) -> str:
        """Host and port, for URLs with a user or another scheme."""
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def start(self, wait: bool = True) -> NatsServer:
        """Starts it; returns when it is healthy."""
        self.path.mkdir(parents=True, exist_ok=True)
        for attempt in range(20):
            self._launch()
            if self._read_ports():
                break
            self.kill()
            assert attempt < 19, f"nats-server does not start:\n{self.log()[-2000:]}"
            time.sleep(0.1)  # its port may be in use for a moment
        if wait:
            self.wait_healthy()
        return self

    def stop(self) -> None:
        """Stops it in an orderly way."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Kills it as a crash would."""
        self._end(signal.SIGKILL)

    def restart(self, *, kill: bool = False) -> None:
        """On the same ports, with the same store."""
        self._end(signal.SIGKILL if kill else signal.SIGTERM)
        self.start()

    def signal(self, number: int) -> None:
        """SIGSTOP and SIGCONT make it hang; SIGUSR2 tells it to leave gently; SIGHUP to reload."""
        assert self.process is not None
        self.process.send_signal(number)

    def reload(self, config: str) -> None:
        """Gives the running server another configuration."""
        self.config = config
        # With the ports as they were asked for: the server refuses to change those.
        (self.path / "nats.conf").write_text(self._base + config)
        self.signal(signal.SIGHUP)

    def close(self) -> None:
        """Ends it and removes its folder, if that was a temporary one."""
        self.kill()
        if self._scratch:
            shutil.rmtree(self.path, ignore_errors=True)

    def __enter__(self) -> NatsServer:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    # looking

    def healthy(self) -> bool:
        """Whether it serves, and JetStream has caught up."""
        try:
            if self.look("healthz").get("status") != "ok":
                return False
            return self._routes is None or self._meta_ready()
        except (OSError, ValueError):
            return False

    def wait_healthy(self, limit: float = LIMIT) -> None:
        deadline = time.monotonic() + limit
        while not self.healthy():
            assert self.process is not None
            assert self.process.poll() is None, f"nats-server ended:\n{self.log()[-2000:]}"
            assert time.monotonic() < deadline, f"nats-server is not well:\n{self.log()[-2000:]}"
            time.sleep(0.02)

    def look(self, page: str) -> dict[str, Any]:
        """A page of its monitoring: `look("jsz?streams=true")`."""
        address = f"http://127.0.0.1:{self.monitor_port}/{page}"
        with urllib.request.urlopen(address, timeout=5) as answer:
            return json.load(answer)

    def log(self) -> str:
        with contextlib.suppress(OSError):
            return (self.path / "nats.log").read_text("utf-8", "replace")
        return ""

    # inside

    def join(self, port: int, routes: Sequence[int], advertise: bool = True) -> None:
        """Makes it a member of a cluster, from its next start on."""
        self._route_port, self._routes, self._advertise = port, routes, advertise

    def _meta_ready(self) -> bool:
        meta = self.look("jsz").get("meta_cluster", {})
        return bool(meta.get("leader")) and meta.get("cluster_size", 0) >= len(self._routes or ())

    def _launch(self) -> None:
        config = self.path / "nats.conf"
        self._base = self._text()
        config.write_text(self._base + self.config)
        self.process = spawn_server(["-c", str(config)])

    def _read_ports(self) -> bool:
        """Takes over the ports that the system has given it; False if it ends instead."""
        assert self.process is not None
        file = self.path / f"nats-server_{self.process.pid}.ports"
        deadline = time.monotonic() + LIMIT
        while self.process.poll() is None and time.monotonic() < deadline:
            with contextlib.suppress(OSError, ValueError):
                found = json.loads(file.read_text())
                self.port, self.monitor_port = _port(found["nats"]), _port(found["monitoring"])
                return True
            time.sleep(0.01)
        return False

    def _text(self) -> str:
        parts = [
            f'server_name: "{self.name}"\nlisten: "127.0.0.1:{self.port}"\n'
            f'http: "127.0.0.1:{self.monitor_port}"\nports_file_dir: "{self.path}"\n'
            f'log_file: "{self.path}/nats.log"\nlame_duck_duration: "30s"\n'
            'lame_duck_grace_period: "2s"\n'
        ]
        if self.jetstream:
            sync = self._sync if self._sync == "always" else f'"{self._sync}"'
            parts.append(
                f'jetstream {{ store_dir: "{self.path}/store", sync_interval: {sync},'
                " max_memory_store: 1GB, max_file_store: 10GB }\n"
            )
        if self._routes is not None:
            routes = ", ".join(f'"nats://127.0.0.1:{port}"' for port in self._routes)
            parts.append(
                f'cluster {{ name: "headrace", listen: "127.0.0.1:{self._route_port}",'
                f" routes: [{routes}], no_advertise: {str(not self._advertise).lower()} }}\n"
            )
        return "".join(parts)

    def _end(self, number: int) -> None:
        process, self.process = self.process, None
        if process is None:
            return
        process.send_signal(number)
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGCONT)
        try:
            process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        end_guard(process)


class NatsCluster:
    """Several servers that replicate streams among each other."""

    def __init__(
        self, size: int = 3, *, sync: str = "2m", config: str = "", advertise: bool = True
    ) -> None:
        """Unless they `advertise`, clients learn of no other server than those in their URL."""
        self._advertise = advertise
        self.servers = [
            NatsServer(name=f"n{number}", sync=sync, config=config) for number in range(1, size + 1)
        ]

    @property
    def url(self) -> str:
        """All of them, in one URL."""
        return "nats://" + ",".join(server.host for server in self.servers)

    def __getitem__(self, name: str) -> NatsServer:
        return next(server for server in self.servers if server.name == name)

    def start(self) -> NatsCluster:
        """Starts all; returns when they have a leader and see each other."""
        with contextlib.ExitStack() as reserved:
            routes = [reserved.enter_context(_reserved()) for _ in self.servers]
            ports: list[int] = [route.getsockname()[1] for route in routes]
            for server, route in zip(self.servers, routes, strict=True):
                server.join(route.getsockname()[1], ports, self._advertise)
                route.close()
                server.start(wait=False)
        self.wait_healthy()
        return self

    def wait_healthy(self, limit: float = LIMIT) -> None:
        """Returns when all serve, and the leader finds every peer up to date."""
        for server in self.servers:
            server.wait_healthy(limit)
        deadline = time.monotonic() + limit
        while not self._together():
            assert time.monotonic() < deadline, "the cluster does not come together"
            time.sleep(0.02)

    def _together(self) -> bool:
        meta = self.servers[0].look("jsz")["meta_cluster"]
        leader = self[meta["leader"]].look("jsz")["meta_cluster"]
        current = [peer for peer in leader.get("replicas", ()) if peer["current"]]
        return len(current) == len(self.servers) - 1

    def close(self) -> None:
        for server in self.servers:
            server.kill()  # all of them first: those that are left would elect a new leader
        for server in self.servers:
            server.close()

    def __enter__(self) -> NatsCluster:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()


# configuration


def with_user(user: str, password: str) -> str:
    return f'authorization {{ user: "{user}", password: "{password}" }}\n'


def with_token(token: str) -> str:
    return f'authorization {{ token: "{token}" }}\n'


def with_nkey(public: str) -> str:
    return f'authorization {{ users: [ {{ nkey: "{public}" }} ] }}\n'


def with_permissions(
    user: str, password: str, *, publish: Iterable[str], subscribe: Iterable[str]
) -> str:
    """One user who may publish and subscribe only there."""
    return (
        f'authorization {{ users: [ {{ user: "{user}", password: "{password}", permissions: {{'
        f" publish: {_list(publish)}, subscribe: {_list(subscribe)} }} }} ] }}\n"
    )


def with_tls(
    cert: str | Path, key: str | Path, ca: str | Path | None = None, *, first: bool = False
) -> str:
    """TLS; with `ca`, clients must show a certificate too."""
    verify = f', ca_file: "{ca}", verify: true' if ca else ""
    early = ", handshake_first: true" if first else ""
    return f'tls {{ cert_file: "{cert}", key_file: "{key}"{verify}{early} }}\n'


def _list(subjects: Iterable[str]) -> str:
    return "[" + ", ".join(f'"{subject}"' for subject in subjects) + "]"


def _reserved() -> socket.socket:
    """A socket on a port that nobody else uses."""
    return socket.create_server(("127.0.0.1", 0))


def _port(urls: Sequence[str]) -> int:
    return int(urls[0].rpartition(":")[2])
