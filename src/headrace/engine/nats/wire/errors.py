"""Every error of the wire, in one tree.

WireError
├── Disconnected          the connection is not there, or was lost: what was asked may have happened
│   ├── Unreachable       no server could be reached
│   └── Closed            the connection was closed on this side
├── TimedOut              no answer in time: what was asked may have happened
├── NoResponders          nobody listens on the subject: nothing happened
├── Congested             the server does not keep up: nothing was sent
├── PayloadTooLarge       over the server's limit: nothing was sent
├── PermissionDenied      the server refuses the subject to this user
├── AuthRefused           the server refuses the user
├── ProtocolError         what came is not the NATS protocol, or what was given would break it
├── ApiError              JetStream refused; carries its codes
├── TooMany               more results than the server gives at once
└── Behind                a replica answered that has not got that far yet
"""

from __future__ import annotations


class WireError(Exception):
    """The root of the tree."""


class Disconnected(WireError):
    """There is no connection, or it was lost before the answer came."""


class Unreachable(Disconnected):
    """None of the servers could be reached."""


class Closed(Disconnected):
    """The connection was closed on this side."""


class TimedOut(WireError):
    """No answer came in time."""


class NoResponders(WireError):
    """Nobody listens on the subject."""

    def __init__(self, subject: bytes) -> None:
        super().__init__(f"{shown(subject)}: nobody answers there; {_missing(subject)}")
        self.subject = subject


class Congested(WireError):
    """More bytes wait to be sent than allowed; wait for `drained()` before sending more."""


class PayloadTooLarge(WireError):
    """The message is over the server's `max_payload`."""

    def __init__(self, subject: bytes, size: int, limit: int) -> None:
        super().__init__(
            f"{shown(subject)}: a message of {size:,} bytes is over the server's limit of"
            f" {limit:,}; send less, or raise max_payload in the server's configuration"
        )
        self.subject, self.size, self.limit = subject, size, limit


class PermissionDenied(WireError):
    """The server does not let this user publish or subscribe there."""

    def __init__(
        self,
        subject: bytes,
        action: str,
        remedy: str = "allow it in the user's permissions, or connect as another one",
    ) -> None:
        super().__init__(f"{shown(subject)}: this user may not {action} there; {remedy}")
        self.subject, self.action = subject, action


class AuthRefused(WireError):
    """The server does not let this user in."""


class ProtocolError(WireError):
    """Bytes that are not the NATS protocol."""


class ApiError(WireError):
    """JetStream refused what was asked; nothing was changed."""

    def __init__(self, code: int, err_code: int, description: str, about: str = "") -> None:
        super().__init__(f"{about + ': ' if about else ''}{description} ({code}/{err_code})")
        self.code, self.err_code, self.description = code, err_code, description


class TooMany(WireError):
    """More results than the server gives at once."""


class Behind(WireError):
    """The replica that answered does not have yet what is known to be stored."""


def shown(subject: bytes) -> str:
    """A subject as text, quoted."""
    return repr(subject.decode("utf-8", "backslashreplace"))


def _missing(subject: bytes) -> str:
    if subject.startswith(b"$JS."):
        return (
            "the stream or consumer does not exist or has no leader now, or JetStream is off:"
            " enable it with `jetstream {}` in the server's configuration, and for the account"
        )
    return "no stream takes this subject, or the one that does has no leader now"
