"""What is counted of queues with limits on NATS is put right where it went wrong."""

from __future__ import annotations

import msgspec

from headrace.core.queue import QueueSettings
from headrace.core.states import State
from headrace.engine.nats import NatsEngine
from headrace.engine.nats.parts import Tally
from headrace.testing.conformance.bench import Bench


async def test_queue_that_was_miscounted_opens_again_with_the_next_round(bench: Bench) -> None:
    await bench.set_queue(QueueSettings(max_active=1))
    await bench.add("a")
    await bench.run()
    await bench.add("b")
    engine = bench.engine
    assert isinstance(engine, NatsEngine)
    session = await engine._session()  # pyright: ignore[reportPrivateUsage]
    wrong = msgspec.json.encode(Tally({State.ACTIVE: 1, State.PENDING: 1}, counting=True))
    await session.js.store(session.layout.tally("svc", "q"), wrong)
    session.committer.forget()
    assert await bench.claimed_ids() == []
    await bench.prune()
    assert await bench.claimed_ids() == ["b"]
