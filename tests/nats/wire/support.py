"""What the tests of the NATS client share."""

from __future__ import annotations

import asyncio
from typing import Any

from headrace.engine.nats.wire.jetstream import JetStream


async def make_stream(jetstream: JetStream, name: str, **config: object) -> str:
    await jetstream.api(
        f"STREAM.CREATE.{name}",
        {
            "name": name,
            "subjects": [f"{name}.>"],
            "allow_direct": True,
            "allow_atomic": True,
            **config,
        },
    )
    return name


async def make_consumer(jetstream: JetStream, stream: str, **config: object) -> str:
    body = {"durable_name": "w", "ack_policy": "explicit", "max_ack_pending": -1, **config}
    await jetstream.api(
        f"CONSUMER.CREATE.{stream}.w", {"stream_name": stream, "config": {"name": "w", **body}}
    )
    return "w"


class Signal(asyncio.Event):
    """An event that can be a callback with any arguments, which it keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, ...]] = []

    def __call__(self, *arguments: Any) -> None:
        self.calls.append(arguments)
        self.set()

    async def after(self, count: int) -> None:
        """Waits until it was called that often."""
        while len(self.calls) < count:
            self.clear()
            await self.wait()
