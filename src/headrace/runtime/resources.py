"""Resources: things that handlers share, made once per worker and found by annotation."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from headrace.core.errors import InvalidValue
from headrace.runtime.handler import Handler

Provider = Callable[[], Any]
"""A function, coroutine function, generator or async generator of no arguments."""


class Resources:
    """Made at first use, closed in reverse order when the worker stops."""

    def __init__(self, providers: Mapping[Any, Provider]) -> None:
        self._providers = providers
        self._made: dict[Any, Any] = {}
        self._stack = contextlib.AsyncExitStack()
        self._lock = asyncio.Lock()

    async def of(self, handler: Handler) -> dict[str, Any]:
        """The resources of a handler by parameter name."""
        return {name: await self._get(kind) for name, kind in handler.resources.items()}

    async def _get(self, kind: Any) -> Any:
        async with self._lock:
            if kind not in self._made:
                if kind not in self._providers:
                    raise InvalidValue(
                        "resource", f"nothing provides {kind!r}; register it with @app.resource"
                    )
                self._made[kind] = await self._make(self._providers[kind])
            return self._made[kind]

    async def _make(self, provider: Provider) -> Any:
        if inspect.isasyncgenfunction(provider):
            manager = contextlib.asynccontextmanager(provider)()
            return await self._stack.enter_async_context(manager)
        if inspect.isgeneratorfunction(provider):
            return self._stack.enter_context(contextlib.contextmanager(provider)())
        value = provider()
        return await value if inspect.isawaitable(value) else value

    async def close(self) -> None:
        self._made.clear()
        await self._stack.aclose()
