"""The board: how everything stands, from nothing but the journal."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import msgspec

from headrace.engine.protocol import Entry

WAITING, RUNNING, RETRY, DONE, DEAD, REPLACED = (
    "waiting",
    "running",
    "retry",
    "done",
    "dead",
    "replaced",
)
COLUMNS = (WAITING, RUNNING, RETRY, DONE, DEAD, REPLACED)

_COLUMN = {
    "pending": WAITING,
    "blocked": WAITING,
    "active": RUNNING,
    "retry": RETRY,
    "completed": DONE,
    "dead": DEAD,
    "skipped": REPLACED,
}
_NAMES = {
    "mail": ("mail", "{order}"),
    "remind": ("reminder", "{order}"),
    "invoice": ("{tenant}", "{number}"),
    "pack": ("parcel", "{order}"),
    "extract": ("extract", ""),
    "transform": ("transform", "{part}"),
    "load": ("load", ""),
    "forecast": ("forecast", ""),
    "reindex": ("reindex", ""),
    "tax_report": ("tax report", ""),
}
SHOWN = 3
"""So many numbers are named in one line of news."""

TOGETHER = 0.5
"""Seconds within which the same news are one."""

_MANY = ("mail", "invoice")
"""Types of which there are too many to tell each good end."""


@dataclass
class Card:
    """One job on the board."""

    id: str
    type: str
    queue: str
    noun: str
    number: str
    tenant: str | None
    column: str = ""
    worker: str | None = None


@dataclass
class News:
    """Something that happened, in plain words; the same to several jobs is told once."""

    at: float
    noun: str
    what: str
    mood: str
    """good, bad, or plain."""
    numbers: list[str]

    @property
    def text(self) -> str:
        shown = ", ".join(self.numbers[:SHOWN])
        more = len(self.numbers) - SHOWN
        who = f"{self.noun} {shown}".strip() + (f" and {more} more" if more > 0 else "")
        return f"{who}: {self.what}"


class Board:
    """Folds the journal, entry by entry."""

    def __init__(self, began_at: float) -> None:
        self._began_at = began_at
        self.cards: dict[str, Card] = {}
        self.counts: Counter[tuple[str, str]] = Counter()
        self.tenants: dict[str, Counter[str]] = {}
        self.queues: dict[str, None] = {}
        self.news: list[News] = []
        self.names: dict[str, str] = {}
        """Worker id → what it is called here."""
        self.entries: list[Entry] = []

    def fold(self, entry: Entry) -> None:
        """Takes the next entry in."""
        event = entry.event
        self.entries.append(entry)
        card = self.cards.get(event.job_id) or self._new(entry)
        column = _COLUMN.get(event.state, event.state)
        if column != card.column:
            self._count(card, -1)
            card.column = column
            self._count(card, +1)
        before, card.worker = card.worker, event.worker if column == RUNNING else None
        what, mood = self._told(entry, before, card.type in _MANY)
        if what:
            self._tell(News(event.at / 1000 - self._began_at, card.noun, what, mood, []), card)

    def _tell(self, news: News, card: Card) -> None:
        for known in reversed(self.news):
            if news.at - known.at > TOGETHER:
                break
            if (known.noun, known.what) == (news.noun, news.what):
                known.numbers.append(card.number)
                return
        news.numbers.append(card.number)
        self.news.append(news)

    def _new(self, entry: Entry) -> Card:
        event = entry.event
        payload = msgspec.json.decode(entry.payload) if entry.payload else {}
        noun, number = (part.format(**payload) for part in _NAMES[event.type])
        card = Card(event.job_id, event.type, event.queue, noun, number, payload.get("tenant"))
        self.cards[event.job_id] = card
        self.queues.setdefault(event.queue)
        return card

    def _count(self, card: Card, by: int) -> None:
        if card.column:
            self.counts[card.queue, card.column] += by
            if card.tenant:
                self.tenants.setdefault(card.tenant, Counter())[card.column] += by

    def _told(self, entry: Entry, before: str | None, many: bool) -> tuple[str, str]:
        """What happened, if it is worth telling, and whether it is good."""
        event = entry.event
        match str(event.event):
            case "retry" if event.error and "LeaseLost" in event.error:
                return f"{self.name(before)} is gone, try again", "bad"
            case "retry":
                wait = ((event.run_at or event.at) - event.at) / 1000
                return f"{_short(event.error)}; again in {wait:.1f} s", "bad"
            case "started" if event.tries > 1 and not many:
                return f"try {event.tries} on {self.name(event.worker)}", "plain"
            case "dead":
                return "out of tries, a dead letter", "bad"
            case "retried":
                return "replayed", "plain"
            case "released":
                return "parents are done", "plain"
            case "completed" if not many or event.tries > 2:
                return "done" + (f" at try {event.tries}" if event.tries > 1 else ""), "good"
            case _:
                return "", ""

    def name(self, worker: str | None) -> str:
        return self.names.get(worker or "", "a worker")

    def running_on(self, worker: str) -> list[Card]:
        """What a worker, by its id, runs now."""
        return [card for card in self.cards.values() if card.worker == worker]

    def total(self, *columns: str) -> int:
        return sum(jobs for (_, column), jobs in self.counts.items() if column in columns)


def listed(cards: list[Card]) -> str:
    """`parcel 1, 2, 3, mail 7`."""
    numbers: dict[str, list[str]] = {}
    for card in cards:
        numbers.setdefault(card.noun, []).append(card.number)
    return ", ".join(f"{noun} {', '.join(each)}".strip() for noun, each in numbers.items())


def _short(error: str | None) -> str:
    """The error without its type."""
    return (error or "").partition(": ")[2] or error or ""
