"""Subscriptions, and who else takes part in the fate of a connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count
from typing import Any, Protocol

from headrace.engine.nats.wire.errors import WireError
from headrace.engine.nats.wire.link import Link
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


class Subscriptions:
    """All subscriptions of a connection."""

    def __init__(self) -> None:
        self._all: dict[bytes, Subscription] = {}
        self._numbers = count(1)

    def add(
        self,
        subject: bytes,
        queue: bytes,
        callback: Callback,
        close: Callable[[Subscription], None],
        *,
        pinned: Callable[[], None] | None,
        lingers: bool,
    ) -> Subscription:
        sid = b"%d" % next(self._numbers)
        one = Subscription(sid, subject, queue, callback, close, pinned=pinned, lingers=lingers)
        self._all[sid] = one
        return one

    def remove(self, one: Subscription) -> None:
        self._all.pop(one.sid, None)

    def restore(self, link: Link) -> None:
        """Subscribes to all on a new link."""
        for one in self._all.values():
            link.subscribe(one.sid, one.subject, one.queue, one.callback)

    def prepare(self, link: Link) -> None:
        """Subscribes on a link whose messages are dropped as long as another one is used."""
        for one in self._lasting():
            link.subscribe(one.sid, one.subject, one.queue, None)

    def move(self, old: Link, new: Link) -> None:
        """Takes the messages from the new link from now on; of the old one, only answers."""
        for one in self._lasting():
            new.attach(one.sid, one.subject, one.queue, one.callback)
            if not one.lingers:
                old.unsubscribe(one.sid)

    def unpin(self) -> list[Subscription]:
        """Gives up those that belong to the link that is gone, or being left."""
        pinned = [one for one in self._all.values() if one.pinned]
        for one in pinned:
            del self._all[one.sid]
        return pinned

    def _lasting(self) -> list[Subscription]:
        return [one for one in self._all.values() if not one.pinned]


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
