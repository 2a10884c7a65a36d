"""The workload: which jobs there are, drawn by chance from a seed.

Everything that the kernel does is in the mix. Times are short, so that a run of half a minute sees
each of them many times.
"""

from __future__ import annotations

from random import Random
from typing import Any

from headrace.app.options import Debounce, KeepLast, Throttle
from headrace.testing.lab.history import QueueRules

QUEUES: dict[str, QueueRules] = {
    "main": QueueRules(),
    "side": QueueRules(),
    "gate": QueueRules(),
    "capped": QueueRules(max_active=3),
    "rated": QueueRules(rate=(40, 1000, 5)),
    "plain": QueueRules(dead_letters=False),
    "brief": QueueRules(forgets=("completed", "cancelled")),
}
"""`gate` is the one that is paused now and then."""

PAUSED = "gate"
TYPES = ("step", "plod", "crunch")
"""An async handler, one that runs in a thread, and one that runs in a child process."""

MOODS: dict[str, dict[str, int]] = {
    "easy": {"return": 70, "nap": 30},
    "moody": {
        "return": 40,
        "nap": 20,
        "fail": 15,
        "again": 8,
        "snooze": 5,
        "uncounted": 4,
        "terminate": 3,
        "cancel": 2,
        "report": 6,
    },
    "wild": {
        "return": 20,
        "nap": 15,
        "fail": 15,
        "move": 12,
        "detach": 12,
        "hang": 8,
        "stubborn": 6,
        "block": 4,
        "report": 5,
    },
}
"""What handlers do, by the temper of their job and with what weight; drawn anew for every try."""

_TENANTS = ("one", "two", "stale", "block")
BLOCKING = "block"
"""The tenant whose lost jobs hold their slot until someone releases it."""


def job(chance: Random) -> dict[str, Any]:
    """A job of a random kind: `type`, `payload`, and the options of `app.prepare`."""
    drawn = _KINDS[chance.choices(range(len(_KINDS)), _WEIGHTS)[0]][1](chance)
    return {**plain(chance), **drawn}


def plain(chance: Random) -> dict[str, Any]:
    """A job without anything special, but for its temper."""
    queue = chance.choices(list(QUEUES), [30, 15, 8, 10, 8, 6, 6])[0]
    mood = chance.choices(list(MOODS), [55, 30, 15])[0]
    return {
        "type": chance.choices(TYPES, [82, 13, 5])[0],
        "payload": {"mood": mood, "tenant": "none"},
        "queue": queue,
        "max_tries": chance.randint(2, 5),
        "retry": [0.05, 0.2],
        "priority": chance.choice((1, 5, 5, 5, 9)),
        "lifo": chance.random() < 0.1,
    }


def _delayed(chance: Random) -> dict[str, Any]:
    return {"delay": round(chance.uniform(0.01, 1.5), 3)}


def _hurried(chance: Random) -> dict[str, Any]:
    seconds = round(chance.uniform(0.05, 3.0), 3)
    match chance.randrange(3):
        case 0:
            return {"deadline": seconds}
        case 1:
            return {"ttl": seconds}
        case _:
            return {"timeout": max(0.2, seconds), "deadline": seconds * 2}


def _keyed(chance: Random) -> dict[str, Any]:
    tenant = chance.choice(_TENANTS)
    options: dict[str, Any] = {
        "payload": {"mood": chance.choice(("easy", "moody", "wild")), "tenant": tenant},
        "key": ("tenant", "/tenant"),
        "max_active": 2 if tenant == "two" else 1,
        "on_lost": {"stale": "fail-stale", "block": "block"}.get(tenant, "retry"),
    }
    if tenant == "two":
        options["max_queued"] = 20
        options["when_full"] = chance.choice(("reject", "coalesce", "replace-oldest"))
    return options


def _unique(chance: Random) -> dict[str, Any]:
    mood = {"payload": {"mood": chance.choice(("moody", "wild")), "tenant": "none"}}
    return {**mood, "unique": _rule(chance)}


def _rule(chance: Random) -> str | Throttle | Debounce | KeepLast:
    number = chance.randrange(3)
    match chance.randrange(4):
        case 0:
            return f"simple-{number}"
        case 1:
            return Throttle(0.4, key=f"throttle-{number}")
        case 2:
            return Debounce(0.3, key=f"debounce-{number}")
        case _:
            return KeepLast(key=f"keep-{number}")


def _named(chance: Random) -> dict[str, Any]:
    """One of a few ids: most are there already. Those who hand one in mean the same by it."""
    number = chance.randrange(60)
    return {
        "id": f"named-{number}",
        "type": "step",
        "payload": {"mood": "moody", "tenant": "none"},
        "queue": "main",
        "max_tries": 3,
        "priority": 5,
        "lifo": False,
    }


def _nothing(chance: Random) -> dict[str, Any]:
    return {}


_KINDS = (
    (35, _nothing),
    (15, _delayed),
    (12, _hurried),
    (20, _keyed),
    (12, _unique),
    (6, _named),
)
_WEIGHTS = [weight for weight, _ in _KINDS]


def graph(chance: Random) -> list[tuple[dict[str, Any], list[int]]]:
    """A small graph: jobs, parents before children, with the places of their parents."""
    nodes: list[tuple[dict[str, Any], list[int]]] = []
    for place in range(chance.randint(2, 6)):
        parents = [before for before in range(place) if chance.random() < 0.5]
        options = plain(chance)
        if parents:
            options["on_parent_failure"] = chance.choice(("unreachable", "wait", "run"))
        if chance.random() < 0.2:
            options |= _delayed(chance)
        nodes.append((options, parents))
    return nodes
