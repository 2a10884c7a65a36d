"""Transactional enqueue: jobs that commit or roll back with the caller's own rows."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from contextvars import Token
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from headrace.app.app import bound_transaction
from headrace.core.admission import Verdict
from headrace.core.errors import EngineUnavailable, InvalidValue
from headrace.core.model import NewJob

if TYPE_CHECKING:
    from headrace.app.app import App


@runtime_checkable
class Transactional(Protocol):
    """An engine that can write in a caller's transaction."""

    def insert_on(
        self, connection: Any, groups: Sequence[Sequence[NewJob]], now: int
    ) -> list[tuple[Verdict, ...]]: ...

    def announce(self, verdicts: Sequence[Sequence[Verdict]]) -> None: ...


class Binding:
    """`with app.bind(connection):` around enqueues. Leaving it wakes the workers, so leave it
    after the commit; a commit that comes later is noticed a moment later."""

    def __init__(self, app: App, engine: object, connection: Any) -> None:
        if not isinstance(engine, Transactional):
            raise InvalidValue("bind", f"the engine of {app!r} has no transactions to join")
        self.app, self._engine, self._connection = app, engine, connection
        self._verdicts: list[tuple[Verdict, ...]] = []
        self._token: Token[Binding | None] | None = None

    def insert(self, groups: Sequence[Sequence[NewJob]]) -> list[tuple[Verdict, ...]]:
        answers = self._engine.insert_on(self._connection, groups, self.app.clock.now())
        self._verdicts += answers
        return answers

    def __enter__(self) -> None:
        self._token = bound_transaction.set(self)

    def __exit__(self, *_: object) -> None:
        assert self._token is not None
        bound_transaction.reset(self._token)
        with suppress(EngineUnavailable):  # not open here: the workers look by themselves
            self._engine.announce(self._verdicts)
