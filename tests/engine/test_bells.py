"""Bells within one process."""

from __future__ import annotations

import asyncio
import threading

from headrace.engine.bells import EVERYTHING, BellHub


class RungWhileCleared(asyncio.Event):
    """An event during whose clearing the bell is rung by another thread."""

    bell: object

    def clear(self) -> None:
        ringer = threading.Thread(target=self.bell.ring)  # type: ignore[attr-defined]
        ringer.start()
        ringer.join()
        super().clear()
        type(self).clear = asyncio.Event.clear  # type: ignore[method-assign]


async def test_ring_while_a_wait_returns_is_not_lost() -> None:
    hub = BellHub()
    bell = hub.listen(frozenset({"t"}))
    event = RungWhileCleared()
    event.bell = bell
    bell._event = event  # pyright: ignore[reportPrivateUsage]
    hub.ring({"t"})
    assert await bell.wait(10)
    assert await bell.wait(10)
    bell.close()


async def test_rings_of_other_topics_are_not_heard() -> None:
    hub = BellHub()
    bell = hub.listen(frozenset({"a", "b"}))
    hub.ring({"c"})
    assert not await bell.wait(0)
    hub.ring({"b", "c"})
    assert await bell.wait(10)
    bell.close()


async def test_everything_rings_every_bell() -> None:
    hub = BellHub()
    bells = [hub.listen(frozenset({topic})) for topic in "ab"]
    hub.ring({EVERYTHING})
    assert all([await bell.wait(10) for bell in bells])


async def test_first_bell_and_last_bell_are_told() -> None:
    told: list[bool] = []
    hub = BellHub(told.append)
    one, two = hub.listen(frozenset({"a"})), hub.listen(frozenset({"a"}))
    one.close()
    assert told == [True]
    two.close()
    two.close()
    assert told == [True, False]


def test_bell_of_a_closed_loop_is_forgotten() -> None:
    told: list[bool] = []
    hub = BellHub(told.append)

    async def listen() -> None:
        hub.listen(frozenset({"a"}))

    asyncio.run(listen())
    hub.ring({"a"})
    assert told == [True, False]
