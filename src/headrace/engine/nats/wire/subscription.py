"""Subscriptions, and who else takes part in the fate of a connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from headrace.engine.nats.wire.errors import WireError
from headrace.engine.nats.wire.parser import Callback


class Subscription:
    """The messages of a subject, on one link after the other.

    One that is `pinned` ends with the link it was made on, and calls that. One that `lingers`
    stays on a link that is being left, until what was asked there is answered: for subjects whose
    messages are harmless when they come twice.
    """

    __slots__ = ("_close", "callback", "lingers", "pinned", "queue", "sid", "subject")

    def __init__(
        self,
        sid: bytes,
        subject: bytes,
        queue: bytes,
        callback: Callback,
        close: Callable[[Subscription], None],
        *,
        pinned: Callable[[], None] | None = None,
        lingers: bool = False,
    ) -> None:
        self.sid, self.subject, self.queue, self.callback = sid, subject, queue, callback
        self.pinned, self.lingers = pinned, lingers
        self._close = close

    def close(self) -> None:
        """No more messages from now on."""
        self._close(self)


class Party(Protocol):
    """Who asks on a connection, and waits for answers."""

    def up(self) -> None:
        """There is a new link."""
        ...

    def down(self, error: Callable[[], WireError]) -> None:
        """The link is lost: nothing that was asked on it will be answered."""
        ...

    def denied(self, subject: bytes, error: Callable[[], WireError]) -> None:
        """The server refused a message to this subject."""
        ...

    def sweep(self) -> None:
        """Called now and then to forget what is over."""
        ...

    def waiting(self) -> list[asyncio.Future[Any]]:
        """What has no answer yet."""
        ...
