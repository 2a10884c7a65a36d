"""Tickets: what the lines of a queue hand out.

A ticket says that a job may be able to start, or that someone should look. It promises nothing:
whoever has it asks the job, and the guard decides.
"""

from __future__ import annotations

from typing import NamedTuple

from headrace.core.states import EventType
from headrace.engine.nats.wire.pull import ack_tokens

EARLY = "early"
"""The line of jobs whose place is not the order of the stream."""

DUE = "due"
"""The line of what timers leave."""

JOB, RUN, LEASE, EXPIRE, REST = "job", "run", "lease", "expire", "rest"
"""What tickets are about: a job that can start; and of timers: a job that is due, leases that may
have run out, a time to start that may have passed, dependents that are to be told."""


class Place(NamedTuple):
    """A queue of a service."""

    service: str
    queue: str


class Ticket(NamedTuple):
    """One ticket, read."""

    seq: int
    reply: bytes
    payload: bytes
    delivered: int
    pending: int
    """How many more there were in the line."""
    line: str
    kind: str
    whose: str
    """The job's id, or what else a timer was set for."""
    created: bool
    """Whether it is the message by which the job was made."""


def read(subject: bytes, reply: bytes, payload: bytes) -> Ticket:
    """The ticket of a message: `….jobs.<service>.<type>.<id>.<event>.ready.<queue>.<priority>`,
    `….early.<queue>`, or `….due.<service>.<queue>.<kind>.<whose>`."""
    tokens = subject.decode().split(".")
    seq, delivered, pending = ack_tokens(reply)
    if tokens[1] == DUE:
        return Ticket(seq, reply, payload, delivered, pending, DUE, tokens[4], tokens[5], False)
    line = EARLY if tokens[6] == EARLY else tokens[8]
    created = tokens[5] == EventType.CREATED
    return Ticket(seq, reply, payload, delivered, pending, line, JOB, tokens[4], created)


def line_of(subject: bytes) -> tuple[Place, str] | None:
    """The line that a message of a job stands in."""
    tokens = subject.decode().split(".")
    if len(tokens) < 8:
        return None  # most
    service, queue = tokens[2], tokens[7]
    return Place(service, queue), tokens[8] if tokens[6] == "ready" else EARLY
