"""Where things are in the stream: subjects, and the filters that guard them.

One stream is truth and journal at once. With `headrace` as the namespace:

    headrace.jobs.<service>.<type>.<id>.<event>                 what happened to a job
    headrace.jobs.<service>.<type>.<id>.<event>.ready.<queue>.<priority>    … and it can start
    headrace.jobs.<service>.<type>.<id>.<event>.early.<queue>   … out of the order of the stream
    headrace.timer.<service>.<queue>.<what>                     fires at its time
    headrace.due.<service>.<queue>.<what>                       what a timer leaves
    headrace.due.<service>.~.<what>                             … for any worker of the service
    headrace.rec.<kind>.<name>                                  a record: only the newest counts
    headrace.bell.>                                             wake-ups; not stored
    headrace.workers.<service>.<worker>.heartbeat               presence; not stored

Everything about a job is under its own prefix, and everybody who writes there names the same
filter in the guard: on a cluster only then two writers cannot both be right.
"""

from __future__ import annotations

import base64
import hashlib
from functools import lru_cache

from headrace.core.model import Job, NewJob, Stage
from headrace.core.names import check_name
from headrace.core.states import EventType

DEFAULT_NAMESPACE = "headrace"

PLACED = "placed"
"""The job's place changed, but nothing happened to it that the journal tells."""

WATCH = "~"
"""In the place of a queue: what every worker of the service looks after, whatever it serves."""

HEARTBEAT = "heartbeat"
"""The job's lease was renewed."""

REMOVED = "removed"
"""The job was deleted; its journal entries stay."""

PARENT = "parent"
"""What a dependent keeps of a parent."""

EDGES = "edges"
"""Who depends on the job."""


class Layout:
    """The subjects of one namespace."""

    def __init__(self, namespace: str = DEFAULT_NAMESPACE) -> None:
        self.namespace = check_name("namespace", namespace)
        self.stream = f"{namespace}-jobs"
        self._prefix = namespace.encode()
        self.jobs = b"%b.jobs.>" % self._prefix
        self._domain = b"%b.jobs.*.*." % self._prefix

    @property
    def subjects(self) -> list[str]:
        """What the stream stores."""
        return [f"{self.namespace}.{family}.>" for family in ("jobs", "timer", "due", "rec")]

    # Jobs

    def domain(self, job_id: str) -> bytes:
        """The filter over everything of one job; the one that every guard of it names."""
        return b"%b%b.>" % (self._domain, job_id.encode())

    def prefix(self, spec: NewJob) -> bytes:
        """Where the messages of a job are, without their last tokens."""
        return f"{self.namespace}.jobs.{spec.service}.{spec.type}.{spec.id}.".encode()

    def happening(self, job: Job, event: str, alone: bool = True) -> bytes:
        """Where a job's newest message goes; where it says that the job can start, the line of
        its queue reads it. One that is not `alone` has dependents."""
        subject = self.prefix(job.spec) + event.encode()
        if job.stage is not Stage.READY:
            return subject
        if (
            event == EventType.CREATED
            and alone
            and not job.spec.lifo
            and job.run_at >= job.updated_at
        ):
            return subject + f".ready.{job.queue}.{job.priority}".encode()
        return subject + f".early.{job.queue}".encode()

    # Lines

    def ready(self, service: str, queue: str, priority: int) -> str:
        """The jobs of one queue and priority that can start, in order."""
        return f"{self.namespace}.jobs.{service}.*.*.*.ready.{queue}.{priority}"

    def early(self, service: str, queue: str) -> str:
        """The jobs of a queue that can start and whose place is not the order of the stream."""
        return f"{self.namespace}.jobs.{service}.*.*.*.early.{queue}"

    def due(self, service: str, queue: str) -> str:
        """What the timers of a queue leave."""
        return f"{self.namespace}.due.{service}.{queue}.>"

    def fired(self, service: str, queue: str, what: str) -> bytes:
        """Where a timer leaves its message."""
        return f"{self.namespace}.due.{service}.{queue}.{what}".encode()

    def timer(self, service: str, queue: str, what: str) -> bytes:
        return f"{self.namespace}.timer.{service}.{queue}.{what}".encode()

    def timers(self, service: str, queue: str) -> bytes:
        return f"{self.namespace}.timer.{service}.{queue}.>".encode()

    # Records

    def key(self, service: str, hash: str) -> bytes:
        return f"{self.namespace}.rec.key.{service}.{hash}".encode()

    def note(self, service: str, hash: str, priority: int | str, job_id: str) -> bytes:
        """A job of a key that has too many for its record."""
        return f"{self.namespace}.rec.note.{service}.{hash}.{priority}.{job_id}".encode()

    def dedup(self, service: str, key: str) -> bytes:
        return f"{self.namespace}.rec.dedup.{service}.{digest(key)}".encode()

    def dedups(self) -> bytes:
        return f"{self.namespace}.rec.dedup.>".encode()

    def tally(self, service: str, queue: str) -> bytes:
        """What is counted of a queue that has a limit."""
        return f"{self.namespace}.rec.tally.{service}.{queue}".encode()

    def lines(self, service: str, queue: str) -> bytes:
        """Which lines a queue has."""
        return f"{self.namespace}.rec.lines.{service}.{queue}".encode()

    def floor(self) -> bytes:
        """Up to where the journal was pruned."""
        return f"{self.namespace}.rec.journal.floor".encode()

    def touch(self) -> bytes:
        """For messages that only guard."""
        return f"{self.namespace}.rec.touch".encode()

    def document(self, kind: str, name: str) -> bytes:
        return f"{self.namespace}.rec.doc.{kind}.{spelled(name)}".encode()

    def documents(self, kind: str) -> bytes:
        return f"{self.namespace}.rec.doc.{kind}.*".encode()

    # Wake-ups

    def bell(self, kind: str, name: str = "") -> bytes:
        """Where a kind of topic is rung, or one of them."""
        return f"{self.namespace}.bell.{kind}{'.' * bool(name)}{spelled(name)}".encode()

    def due_bell(self, service: str, queue: str) -> bytes:
        """Where the stream tells that a timer of a queue has fired."""
        return f"{self.namespace}.bell.due.{service}.{queue}.>".encode()

    def heartbeat(self, service: str, worker: str) -> bytes:
        return f"{self.namespace}.workers.{service}.{worker}.heartbeat".encode()


def digest(text: str) -> str:
    """A short name for any text."""
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


@lru_cache(maxsize=1024)
def spelled(text: str) -> str:
    """Any text as one token of a subject."""
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def unspelled(token: str) -> str:
    """The text of such a token."""
    return base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)).decode()
