"""Dedup keys on NATS: what is kept of one goes when nothing holds it."""

from __future__ import annotations

import pytest

from headrace.core.model import Dedup
from headrace.engine.nats import batch
from headrace.engine.nats.wire.stored import Stored
from headrace.testing.conformance.bench import Bench
from tests.nats.real import session_of
from tests.support import eventually

D = Dedup("d")


async def records(bench: Bench) -> list[Stored]:
    session = await session_of(bench)
    return await session.js.last(session.layout.stream, [session.layout.dedup("svc", D.key)])


async def test_record_of_a_dedup_key_goes_once_its_job_has_ended(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch, "_FORGOTTEN", b"Nats-TTL: 1s\r\n")
    await bench.add("a", dedup=D)
    (held,) = await records(bench)
    assert b"Nats-TTL" not in (held.headers or b"")
    await bench.run()

    async def gone() -> bool:
        return await records(bench) == []

    await eventually(gone)
    await bench.add("b", dedup=D)
    assert (await bench.submit("c", dedup=D)).existing_id == "b"


async def test_dedup_key_that_is_held_again_is_kept(bench: Bench) -> None:
    await bench.add("a", dedup=D)
    await bench.run()
    (free,) = await records(bench)
    assert b"Nats-TTL" in (free.headers or b"")
    await bench.add("b", dedup=D)
    (held,) = await records(bench)
    assert b"Nats-TTL" not in (held.headers or b"")
