"""What a user of the server must be allowed to do for a service, and nothing else.

Reading many messages at once, deleting and consumers can only be allowed for a whole stream. So a
service that no other may look into has a namespace of its own: a stream, and its subjects.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import msgspec
from msgspec import Struct

from headrace.core.names import check_name
from headrace.engine.nats.layout import Layout


class Role(StrEnum):
    """What a user is there for."""

    WORKER = "worker"
    """Runs jobs, adds them, and looks after the store."""
    PRODUCER = "producer"
    """Adds jobs, looks at them, cancels them; starts and ends none."""
    ADMIN = "admin"
    """Everything in the namespace, the stream itself included."""


class Permissions(Struct, frozen=True):
    """The subjects that a user may use."""

    service: str
    role: Role
    namespace: str
    user: str
    inbox_prefix: str
    publish: tuple[str, ...]
    publish_denied: tuple[str, ...]
    subscribe: tuple[str, ...]

    @property
    def url(self) -> str:
        """How the user connects."""
        query = f"namespace={self.namespace}&inbox_prefix={self.inbox_prefix}"
        return f"nats://{self.user}:PASSWORD@HOST:4222?{query}"

    @property
    def password_variable(self) -> str:
        """The variable of the server's environment that holds the password."""
        return "".join(c if c.isalnum() else "_" for c in self.user).upper() + "_PASSWORD"

    def entry(self) -> str:
        """The user as an entry of `users` in the server's configuration."""
        deny = f"      deny: {_list(self.publish_denied)}\n" if self.publish_denied else ""
        return (
            "{\n"
            f'  user: "{self.user}"\n'
            f"  password: ${self.password_variable}\n"
            "  permissions: {\n"
            "    publish: {\n"
            f"      allow: {_list(self.publish)}\n"
            f"{deny}"
            "    }\n"
            "    subscribe: {\n"
            f"      allow: {_list(self.subscribe)}\n"
            "    }\n"
            "  }\n"
            "}\n"
        )


def permissions(service: str, role: Role, namespace: str | None = None) -> Permissions:
    """What a service needs. Its namespace is called like itself unless said otherwise."""
    check_name("service", service)
    layout = Layout(service if namespace is None else namespace)
    user = f"{service}-{role}"
    inbox = f"_INBOX_{user}"
    publish, denied, subscribe = {
        Role.PRODUCER: _producer,
        Role.WORKER: _worker,
        Role.ADMIN: _admin,
    }[role](layout, service)
    return Permissions(
        service=service,
        role=role,
        namespace=layout.namespace,
        user=user,
        inbox_prefix=inbox,
        publish=tuple(publish),
        publish_denied=tuple(denied),
        subscribe=(f"{inbox}.>", *subscribe),
    )


_Subjects = tuple[list[str], list[str], list[str]]


def _producer(layout: Layout, service: str) -> _Subjects:
    """Lines are made by whoever first adds a job to a queue; pulling from them is not allowed."""
    space, stream = layout.namespace, layout.stream
    publish = [
        f"$JS.API.STREAM.INFO.{stream}",
        f"$JS.API.STREAM.MSG.GET.{stream}",
        f"$JS.API.DIRECT.GET.{stream}",
        f"$JS.API.CONSUMER.CREATE.{stream}.>",
        f"{space}.jobs.{service}.>",
        f"{space}.timer.{service}.>",
        f"{space}.due.{service}.*.run.*",
        f"{space}.rec.key.{service}.*",
        f"{space}.rec.note.{service}.>",
        f"{space}.rec.dedup.{service}.*",
        f"{space}.rec.tally.{service}.*",
        f"{space}.rec.lines.{service}.*",
        f"{space}.rec.touch",
        f"{space}.bell.>",
    ]
    denied = [f"{space}.jobs.*.*.*.{event}" for event in ("started", "heartbeat", "completed")]
    subscribe = [f"{space}.bell.>", f"$JS.EVENT.ADVISORY.STREAM.DELETED.{stream}"]
    return publish, denied, subscribe


def _worker(layout: Layout, service: str) -> _Subjects:
    """Retention deletes, so whoever runs jobs may."""
    space, stream = layout.namespace, layout.stream
    publish, _, subscribe = _producer(layout, service)
    publish += [
        f"$JS.API.CONSUMER.MSG.NEXT.{stream}.*",
        f"$JS.API.CONSUMER.INFO.{stream}.*",
        f"$JS.ACK.{stream}.>",
        f"$JS.API.STREAM.PURGE.{stream}",
        f"{space}.rec.doc.worker.*",
        f"{space}.rec.journal.floor",
        f"{space}.workers.{service}.*.heartbeat",
    ]
    return publish, [], subscribe


def _admin(layout: Layout, service: str) -> _Subjects:
    space, stream = layout.namespace, layout.stream
    verbs = ("INFO", "CREATE", "UPDATE", "PURGE", "DELETE", "MSG.GET", "MSG.DELETE")
    consumers = ("CREATE", "INFO", "DELETE", "MSG.NEXT")
    publish = [
        *(f"$JS.API.STREAM.{verb}.{stream}" for verb in verbs),
        f"$JS.API.DIRECT.GET.{stream}",
        *(f"$JS.API.CONSUMER.{verb}.{stream}.>" for verb in consumers),
        f"$JS.API.CONSUMER.NAMES.{stream}",
        f"$JS.API.CONSUMER.LIST.{stream}",
        f"$JS.ACK.{stream}.>",
        f"{space}.>",
    ]
    return publish, [], [f"{space}.>", f"$JS.EVENT.ADVISORY.*.*.{stream}"]


def _list(subjects: Sequence[str]) -> str:
    lines = "".join(f"        {msgspec.json.encode(subject).decode()}\n" for subject in subjects)
    return f"[\n{lines}      ]"
