"""A bench whose clock is the machine's, and the session behind it."""

from __future__ import annotations

import time

from headrace.core.claims import ClaimRequest, Share
from headrace.core.model import Filter
from headrace.engine.nats import NatsEngine
from headrace.engine.nats.session import Session
from headrace.testing.conformance.bench import ACTIVE, LEASE, Bench


class RealBench(Bench):
    """A bench whose clock is the machine's."""

    @property
    def now(self) -> int:
        return round(time.time() * 1000)

    @now.setter
    def now(self, _: int) -> None: ...

    async def lapsed(self) -> list[str]:
        """What upkeep finds."""
        wanted = Filter(service="svc", states=ACTIVE, lease_until=self.now)
        return [job.id for job in (await self.engine.find(wanted)).jobs]

    def request(self, limit: int = 5) -> ClaimRequest:
        """A claim of the queue that tests use."""
        return ClaimRequest(
            service=self.service,
            worker="w1",
            shares=(Share("q", limit),),
            limit=limit,
            lease=LEASE,
            now=self.now,
        )


async def session_of(bench: Bench) -> Session:
    assert isinstance(bench.engine, NatsEngine)
    return await bench.engine._session()  # pyright: ignore[reportPrivateUsage]
