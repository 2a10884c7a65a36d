"""From what the wire says to the errors of Headrace."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from headrace.core.errors import (
    EngineError,
    EngineUnavailable,
    InvalidValue,
    StoreFull,
    StoreReadOnly,
)
from headrace.engine.nats.wire.errors import (
    ApiError,
    AuthRefused,
    Behind,
    Closed,
    Congested,
    Disconnected,
    NoResponders,
    PayloadTooLarge,
    PermissionDenied,
    TimedOut,
    WireError,
)

CONFLICTS = frozenset({10071, 10164, 10193, 10201})
"""Something was stored meanwhile: read again and decide again."""

_FULL = frozenset({10023, 10028, 10047, 10077, 10002})
"""Out of storage, memory or limits."""

_DISABLED = frozenset({10039, 10076})
"""JetStream is off, for the server or for the account."""

_SETTLING = frozenset({10005, 10008, 10009, 10176, 10210})
"""A cluster without a leader or peers now, or a batch that was cut by a change of the leader."""


_ENABLE = "enable it with `jetstream {}` in the server's configuration, and for the account"


class Conflict(Exception):
    """A guard did not hold."""


def passing(error: WireError) -> bool:
    """Whether the same may work in a moment."""
    match error:
        case Closed():
            return False
        case ApiError():
            if error.err_code in _FULL | _DISABLED:
                return False
            return error.code == 503 or error.err_code in _SETTLING
        case _:
            return isinstance(error, (Disconnected, TimedOut, NoResponders, Congested, Behind))


@contextmanager
def translated(doing: str) -> Generator[None]:
    """Raises what users know in the place of what the wire says."""
    try:
        yield
    except ApiError as error:
        if error.err_code in CONFLICTS:
            raise Conflict(str(error)) from None
        if error.err_code in _FULL:
            raise StoreFull(f"{doing}: {error}; give the stream more room") from error
        if error.err_code in _DISABLED:
            raise EngineUnavailable(f"{doing}: {error}; {_ENABLE}") from error
        raise EngineUnavailable(f"{doing}: {error}") from error
    except NoResponders as error:
        raise EngineUnavailable(
            f"{doing}: nobody answers; the stream has no leader, or JetStream is off: {_ENABLE}"
        ) from error
    except PayloadTooLarge as error:
        raise InvalidValue("message", str(error)) from error
    except PermissionDenied as error:
        raise StoreReadOnly(
            f"{doing}: {error}; see `headrace nats permissions` for what a service needs"
        ) from error
    except AuthRefused as error:
        raise EngineError(f"{doing}: {error}") from error
    except WireError as error:
        raise EngineUnavailable(f"{doing}: {error}") from error
