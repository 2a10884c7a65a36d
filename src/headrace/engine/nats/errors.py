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
    NoResponders,
    PayloadTooLarge,
    PermissionDenied,
    WireError,
)

CONFLICTS = frozenset({10071, 10164, 10193, 10201})
"""Something was stored meanwhile: read again and decide again."""

_FULL = frozenset({10023, 10028, 10047, 10077, 10002})
"""Out of storage, memory or limits."""


class Conflict(Exception):
    """A guard did not hold."""


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
        raise EngineUnavailable(f"{doing}: {error}") from error
    except NoResponders as error:
        raise EngineUnavailable(
            f"{doing}: nobody answers; the stream is missing, has no leader, or JetStream is"
            " disabled on the server (start it with -js)"
        ) from error
    except PayloadTooLarge as error:
        raise InvalidValue("payload", f"{error}; raise max_payload of the server") from error
    except PermissionDenied as error:
        raise StoreReadOnly(
            f"{doing}: {error}; see `headrace nats permissions` for what a service needs"
        ) from error
    except AuthRefused as error:
        raise EngineError(f"{doing}: {error}") from error
    except WireError as error:
        raise EngineUnavailable(f"{doing}: {error}") from error
