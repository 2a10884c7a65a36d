"""Resources: things that handlers share, made once per worker and found by annotation."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from headrace.core.errors import HeadraceError, InvalidValue
from headrace.runtime.handler import Handler

Provider = Callable[[], Any]
"""A function, coroutine function, generator or async generator of no arguments."""


class Resources:
    """Made at first use, closed in reverse order when the worker stops."""

    def __init__(self, providers: Mapping[Any, Provider]) -> None:
        self._providers = providers
        self._made: dict[Any, asyncio.Future[Any]] = {}
        self._open: list[_Open] = []

    async def of(self, handler: Handler) -> dict[str, Any]:
        """The resources of a handler by parameter name."""
        return {name: await self._get(kind) for name, kind in handler.resources.items()}

    async def _get(self, kind: Any) -> Any:
        made = self._made.get(kind)
        if made is None:
            if kind not in self._providers:
                raise InvalidValue(
                    "resource", f"nothing provides {kind!r}; register it with @app.resource"
                )
            made = self._made[kind] = asyncio.ensure_future(self._make(self._providers[kind]))
            made.add_done_callback(lambda made: self._look(kind, made))
        # Shielded: a job that is cancelled meanwhile must not take it from the others.
        return made.result() if made.done() else await asyncio.shield(made)

    def _look(self, kind: Any, made: asyncio.Future[Any]) -> None:
        """What could not be made is tried again by the next job."""
        if made.cancelled() or made.exception() is not None:
            del self._made[kind]

    async def _make(self, provider: Provider) -> Any:
        try:
            return await self._provided(provider)
        except (KeyboardInterrupt, SystemExit) as error:
            raise _tamed(error) from error

    async def _provided(self, provider: Provider) -> Any:
        manager: contextlib.AbstractAsyncContextManager[Any]
        if inspect.isasyncgenfunction(provider):
            manager = contextlib.asynccontextmanager(provider)()
        elif inspect.isgeneratorfunction(provider):
            manager = _Plain(contextlib.contextmanager(provider)())
        else:
            value = provider()
            return await value if inspect.isawaitable(value) else value
        opened = _Open(manager)
        value = await opened.value
        self._open.append(opened)
        return value

    async def close(self) -> None:
        errors: list[Exception] = []
        while self._open:
            try:
                await self._open.pop().close()
            except Exception as error:
                errors.append(error)
        self._made.clear()
        if errors:
            raise ExceptionGroup("resources could not be closed", errors)


def _tamed(error: BaseException) -> Exception:
    """What a task may raise: SystemExit and KeyboardInterrupt would end the event loop."""
    if isinstance(error, Exception):
        return error
    return HeadraceError(f"a resource raised {error!r}; taken as a failure")


class _Open:
    """A context manager in a task of its own, which enters it and leaves it again: task groups
    and the like do not let another task do that."""

    def __init__(self, manager: contextlib.AbstractAsyncContextManager[Any]) -> None:
        self.value: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._closing = asyncio.Event()
        self._task = asyncio.ensure_future(self._keep(manager))

    async def _keep(self, manager: contextlib.AbstractAsyncContextManager[Any]) -> None:
        try:
            async with manager as value:
                self.value.set_result(value)
                await self._closing.wait()
        except asyncio.CancelledError:
            self.value.cancel()
            raise
        except BaseException as error:
            if self.value.done():
                raise _tamed(error) from error
            self.value.set_exception(error)

    async def close(self) -> None:
        self._closing.set()
        await self._task


class _Plain(contextlib.AbstractAsyncContextManager[Any]):
    """A plain context manager as an async one."""

    def __init__(self, manager: contextlib.AbstractContextManager[Any]) -> None:
        self._manager = manager

    async def __aenter__(self) -> Any:
        return self._manager.__enter__()

    async def __aexit__(self, *error: Any) -> bool | None:
        return self._manager.__exit__(*error)
