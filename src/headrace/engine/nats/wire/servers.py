"""The servers that are known: those named by the user, and those that servers tell of."""

from __future__ import annotations

import ipaddress
import random
from collections.abc import Iterable

from headrace.engine.nats.wire.options import Address, address


class Servers:
    """Gives an order to try them in, so that clients spread over a cluster."""

    def __init__(self, named: Iterable[Address]) -> None:
        self._named = tuple(named)
        self._learnt: tuple[Address, ...] = ()

    def name(self, named: Iterable[Address]) -> None:
        """Replaces those named by the user."""
        self._named = tuple(named)

    def learn(self, urls: Iterable[str], via: Address) -> None:
        """Takes over what a server says of its cluster. A bare IP address is checked for the name
        that its neighbour has, as its certificate has no other."""
        found = (address(url) for url in urls)
        self._learnt = tuple(_named_after(one, via) for one in found if one is not None)

    def round(self, last: Address | None = None) -> list[Address]:
        """Every server once; the one that was just lost at the end."""
        found = self._all()
        random.shuffle(found)
        if last is not None:
            found.sort(key=lambda one: (one.host, one.port) == (last.host, last.port))
        return found

    def _all(self) -> list[Address]:
        return list({(one.host, one.port): one for one in (*self._learnt, *self._named)}.values())


def _named_after(one: Address, via: Address) -> Address:
    try:
        ipaddress.ip_address(one.host)
    except ValueError:
        return one
    return one._replace(tls_name=via.tls_name or via.host)
