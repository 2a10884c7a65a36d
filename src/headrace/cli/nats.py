"""`headrace nats`: a server of one's own, and what services must be allowed on a shared one."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from typing import Any

import click
import msgspec

from headrace.cli.command import Command, Group, shared
from headrace.cli.output import Output, write
from headrace.cli.values import Name
from headrace.core.errors import EngineUnavailable

FOLDER = "headrace-nats"


@click.group("nats", cls=Group)
def nats() -> None:
    """Run a NATS server in a folder, or let services in on your own."""


@nats.command("up", cls=Command, targets=False)
@click.argument("path", default=FOLDER, type=click.Path(file_okay=False))
@click.option("--sync", default="always", metavar="TIME", help="How often to sync; always, or 1s.")
def up(path: str, sync: str) -> None:
    """Run the server of a folder until Ctrl-C; every process of this machine may use it."""
    asyncio.run(_up(Output(shared().json), path, sync))


async def _up(out: Output, path: str, sync: str) -> None:
    from headrace.app.nats import EmbeddedServer

    server = EmbeddedServer(path, sync)
    url = await server.start()
    if not server.owner:
        raise EngineUnavailable(
            f"another process runs the server of {path} already; use it with"
            f" --url {_shared_url(path)}"
        )
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    try:
        _tell(out, path, url)
        while not await _happens(stop):
            if not server.owner:
                raise EngineUnavailable(f"the server ended; see {os.path.join(path, 'server.log')}")
    finally:
        await server.stop()


async def _happens(event: asyncio.Event, limit: float = 1.0) -> bool:
    """Whether it comes within the time."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(limit):
            await event.wait()
    return event.is_set()


def _shared_url(path: str) -> str:
    return f"nats+embedded:{os.path.abspath(path)}"


def _tell(out: Output, path: str, url: str) -> None:
    if out.json:
        out.record({"url": url, "shared": _shared_url(path), "pid": os.getpid()})
        return
    out.line(f"The NATS server of {path} runs.")
    out.fields(
        [
            ("here", f"export HEADRACE_URL={_shared_url(path)}"),
            ("any client", url),
        ]
    )
    out.line("Ctrl-C stops it.")
    out.flush()


@nats.command("permissions", cls=Command, targets=False)
@click.option("--service", required=True, type=Name("service"), help="Whose permissions.")
@click.option(
    "--role",
    type=click.Choice(["worker", "producer", "admin"]),
    default="worker",
    show_default=True,
    help="What the user is there for.",
)
@click.option("--namespace", type=Name("namespace"), help="Its namespace; the service's name.")
def permissions(service: str, role: str, namespace: str | None) -> None:
    """Print the server configuration of a user that may touch only its own service's jobs.

    Isolation is by namespace: services that share one can read each other's jobs.
    """
    from headrace.app.nats import Role
    from headrace.app.nats import permissions as needed

    found = needed(service, Role(role), namespace)
    if shared().json:
        Output(True).value(_shape(found))
        return
    write(
        "# An entry of `users`, in `authorization` or an account of the server's configuration.\n"
        f"# The server takes the password from its environment, and the {role} connects with\n"
        f"# {found.url}\n"
        f"{found.entry()}"
    )


def _shape(found: Any) -> dict[str, Any]:
    shape: dict[str, Any] = msgspec.to_builtins(found)
    return shape | {"url": found.url, "config": found.entry()}
