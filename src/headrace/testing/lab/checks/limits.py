"""How many may run: per key, per queue, per worker, per period, and none in a paused queue."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator

from headrace.testing.lab.history import Entry, History
from headrace.testing.lab.notes import End, Gate, Left, Start
from headrace.testing.lab.violation import Violation

Group = Callable[[Entry], tuple[str, int] | None]
"""What a started job counts for, and how many of it may be active."""


def keys_respect_their_limit(history: History) -> Iterator[Violation]:
    """Never more jobs of a key are active than the key allows, over all workers."""
    limits: dict[str, int] = {}
    for spec in history.specs.values():
        if spec.key is not None:
            limits[spec.key] = max(limits.get(spec.key, 0), spec.max_active)

    def key_of(entry: Entry) -> tuple[str, int] | None:
        return None if entry.key is None else (entry.key, limits.get(entry.key, 1))

    return _crowds(history, "key", key_of)


def queues_respect_their_cap(history: History) -> Iterator[Violation]:
    """Never more jobs of a queue are active than its `max_active`, over all workers."""

    def queue_of(entry: Entry) -> tuple[str, int] | None:
        rules = history.plan.queues.get(entry.queue)
        return (
            None if rules is None or rules.max_active is None else (entry.queue, rules.max_active)
        )

    return _crowds(history, "queue", queue_of)


def workers_respect_their_concurrency(history: History) -> Iterator[Violation]:
    """No worker holds more jobs than it has slots; a detached job has left its slot."""

    def worker_of(entry: Entry) -> tuple[str, int] | None:
        return None if entry.worker is None else (entry.worker, history.plan.concurrency)

    return _crowds(history, "worker", worker_of, leaves=("detached",))


def _crowds(
    history: History, what: str, group_of: Group, leaves: tuple[str, ...] = ()
) -> Iterator[Violation]:
    inside: dict[str, tuple[str, int]] = {}
    members: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for entry in history.entries:
        if entry.event == "started" and (found := group_of(entry)) is not None:
            group, limit = found
            inside[entry.job] = found
            members[group][entry.job] = entry.seq
            if len(members[group]) > limit:
                others = ", ".join(job for job in members[group] if job != entry.job)
                message = f"started as one more than the {limit} of {what} {group}, beside {others}"
                yield Violation(message, entry.job, tuple(members[group].values()))
        elif entry.job in inside and (entry.state != "active" or entry.event in leaves):
            group, _ = inside.pop(entry.job)
            members[group].pop(entry.job, None)


def slots_are_kept_while_handlers_run(history: History) -> Iterator[Violation]:
    """No process ever runs more handlers than it has slots, whatever became of their leases."""
    running: defaultdict[int, dict[tuple[str, int], None]] = defaultdict(dict)
    for note in history.of(Start, End, Left):
        match note:
            case Start():
                running[note.pid][note.job, note.token] = None
                if len(running[note.pid]) > history.plan.concurrency:
                    count = len(running[note.pid])
                    message = f"is one of {count} handlers that run at once in process {note.pid}"
                    yield Violation(message, note.job, (note.token,))
            case End():
                running[note.pid].pop((note.job, note.token), None)
            case _:
                running.pop(note.victim, None)


def paused_queues_start_nothing(history: History) -> Iterator[Violation]:
    """Nothing starts between a confirmed pause and the resume."""
    created = {e.job: e.seq for e in history.entries if e.event == "created"}
    for gate in history.of(Gate):
        first, last = created.get(gate.closed), created.get(gate.opened)
        if first is None or last is None:
            continue  # a marker that was never confirmed proves nothing
        for entry in history.entries:
            started = entry.event == "started" and entry.queue == gate.queue
            if started and first < entry.seq < last:
                message = f"started while queue {gate.queue} was paused"
                yield Violation(message, entry.job, (first, entry.seq, last))


def rates_are_kept(history: History) -> Iterator[Violation]:
    """Starts of a queue come no faster than its rate, but for its burst."""
    for queue, rules in history.plan.queues.items():
        if rules.rate is None:
            continue
        count, period, burst = rules.rate
        spacing = max(1, period * 1000 // count)
        least: float | None = None
        number = 0
        for entry in history.entries:
            if entry.event != "started" or entry.queue != queue:
                continue
            place = number - entry.at * 1000 / spacing
            least = place if least is None else min(least, place)
            number += 1
            if place + 1 - least > burst + 1e-6:
                message = f"started too soon for the rate of {queue}: {count} in {period} ms"
                yield Violation(message, entry.job, (entry.seq,))
                least, number = None, 0  # one complaint for one crowd
