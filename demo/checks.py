"""The summary, which checks what the demo claims: from the journal and the handlers' diary."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from board import Board
from diary import Note
from story import CHANGES, DELAY, EACH, NOISY, PARTS, Facts

SPAN = 12 * 100
"""The month's report sums the numbers below this."""


@dataclass(frozen=True)
class Check:
    """One claim."""

    holds: bool
    text: str


class Records:
    """The journal and the diary, sorted for the checks."""

    def __init__(self, board: Board, notes: list[Note], facts: Facts) -> None:
        self.cards, self.notes, self.facts = board.cards, notes, facts
        self.times: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
        """(job, event) → when, in seconds."""
        self.places: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
        """(job, event) → its places in the journal. Clocks of processes may differ; these don't."""
        self.results: dict[str, bytes] = {}
        self.lost: set[str] = set()
        """Jobs whose worker stopped renewing its lease."""
        for entry in board.entries:
            event = entry.event
            self.times[event.job_id, str(event.event)].append(event.at / 1000)
            self.places[event.job_id, str(event.event)].append(event.seq)
            if event.error and event.error.startswith("LeaseLost"):
                self.lost.add(event.job_id)
            if entry.result is not None:
                self.results[event.job_id] = bytes(entry.result)

    def of(self, type: str) -> list[str]:
        return [card.id for card in self.cards.values() if card.type == type]

    def count(self, job: str, event: str) -> int:
        return len(self.times[job, event])

    def first(self, job: str, event: str) -> float:
        return min(self.times[job, event], default=0.0)

    def last(self, job: str, event: str) -> float:
        return max(self.times[job, event], default=0.0)


def checks(records: Records) -> Iterator[Check]:
    """All claims, in the order of the story."""
    yield _all_ended(records)
    yield _once(records)
    yield _retried(records)
    yield _key_limit(records)
    yield _fair(records)
    yield _graph(records)
    yield _rescued(records)
    yield _debounced(records)
    yield _delayed(records)
    yield _dead_letter(records)


def _all_ended(records: Records) -> Check:
    columns = Counter(card.column for card in records.cards.values())
    settled = columns["done"] + columns["replaced"]
    holds = settled == len(records.facts.accepted) == len(records.cards)
    return Check(
        holds,
        f"{len(records.facts.accepted)} jobs accepted: {columns['done']} done,"
        f" {columns['replaced']} replaced by a newer one, none lost, none stuck",
    )


def _once(records: Records) -> Check:
    wanted = [card.id for card in records.cards.values() if card.column != "replaced"]
    odd = [job for job in wanted if records.count(job, "completed") != 1]
    return Check(not odd, "each of them completed exactly once")


def _retried(records: Records) -> Check:
    mails = records.of("mail")
    again = [job for job in mails if records.count(job, "retry")]
    return Check(
        bool(again) and all(records.count(job, "completed") for job in mails),
        f"{len(again)} of {len(mails)} mails failed at first and went out with a later try",
    )


def _key_limit(records: Records) -> Check:
    """By the diary: no two invoices of a tenant at the same time."""
    killed = records.facts.killed
    open_by_tenant: dict[str, Note] = {}
    tenants = {card.tenant for card in records.cards.values() if card.tenant}
    clashes = begun = 0
    for note in records.notes:
        if note.about not in tenants:
            continue
        if note.what == "end":
            open_by_tenant.pop(note.about, None)
            continue
        begun += 1
        other = open_by_tenant.get(note.about)
        died = killed is not None and other is not None and other.pid == killed.pid
        clashes += other is not None and not (died and (killed.killed_at or 0) <= note.at)
        open_by_tenant[note.about] = note
    return Check(
        clashes == 0 and begun >= len(records.of("invoice")),
        f"no tenant ever had two invoices at work at once ({begun} begun)",
    )


def _fair(records: Records) -> Check:
    ends: defaultdict[str, float] = defaultdict(float)
    began = min(records.first(job, "created") for job in records.of("invoice"))
    for job in records.of("invoice"):
        tenant = records.cards[job].tenant or ""
        ends[tenant] = max(ends[tenant], records.last(job, "completed") - began)
    acme, small = ends.pop("acme"), max(ends.values())
    return Check(
        small < acme,
        f"small tenants had their {EACH} invoices after {small:.1f} s,"
        f" acme its {NOISY} after {acme:.1f} s",
    )


def _graph(records: Records) -> Check:
    extract, *parts, load = records.facts.graph
    pairs = [(extract, part) for part in parts] + [(part, load) for part in parts]
    ordered = all(
        max(records.places[before, "completed"], default=0)
        < min(records.places[after, "started"], default=0)
        for before, after in pairs
    )
    right = records.results.get(load) == str(sum(range(SPAN))).encode()
    return Check(
        ordered and right,
        f"extract, {PARTS} transforms and load ran in order, and the sum is right",
    )


def _rescued(records: Records) -> Check:
    """An invoice may have to wait for its tenant's others; everything else starts at once."""
    killed_at = records.facts.killed_at / 1000
    waits: dict[str, float] = {}
    for job in records.lost:
        starts = [at for at in records.times[job, "started"] if at > killed_at]
        if starts:
            waits[job] = min(starts) - killed_at
    free = [wait for job, wait in waits.items() if not records.cards[job].tenant]
    return Check(
        bool(free) and len(waits) == len(records.lost) and max(free) < 10,
        f"the killed worker's {len(waits)} jobs ran elsewhere, the first"
        f" {min(waits.values(), default=0):.1f} s after the kill",
    )


def _debounced(records: Records) -> Check:
    jobs = records.of("reindex")
    runs = [job for job in jobs if records.count(job, "completed")]
    newest = bool(runs) and records.results.get(runs[-1]) == str(CHANGES).encode()
    times = "once" if len(runs) == 1 else f"{len(runs)} times"
    return Check(
        newest and len(runs) <= 3,
        f"{len(jobs)} changes, the catalogue was indexed {times}, with the newest",
    )


def _delayed(records: Records) -> Check:
    job = records.facts.reminder
    waited = records.first(job, "started") - records.first(job, "created")
    return Check(
        waited >= DELAY, f"the reminder came after {waited:.3f} s, not before its {DELAY} s"
    )


def _dead_letter(records: Records) -> Check:
    job = records.facts.tax_report
    right = records.count(job, "dead") == records.count(job, "retried") == 1
    return Check(
        right and records.count(job, "started") == 4,
        "the tax report died after 3 tries, was replayed, and completed",
    )
