"""Documents: queue settings, schedules, presence (FEATURES 5.1, 9.4)."""

from __future__ import annotations

import asyncio

from headrace.core.model import Document
from headrace.engine.protocol import Put
from headrace.testing.conformance.bench import Bench, raw


async def put(
    bench: Bench,
    name: str,
    value: object,
    expected: int | None = None,
    expires_at: int | None = None,
) -> Document | None:
    order = Put("note", name, raw(value), expected, expires_at)
    return (await bench.engine.put([order], bench.now))[0]


async def bodies(bench: Bench, kind: str = "note") -> dict[str, bytes]:
    return {d.name: bytes(d.body) for d in await bench.engine.scan(kind, bench.now)}


class Documents:
    """Small documents with a revision that guards every write that asks for it."""

    async def test_documents_of_a_kind_come_by_name(self, bench: Bench) -> None:
        for name in ("b", "a", "c"):
            await put(bench, name, name)
        assert list(await bodies(bench)) == ["a", "b", "c"]
        assert await bodies(bench, "other") == {}

    async def test_body_survives_byte_for_byte(self, bench: Bench) -> None:
        await put(bench, "a", {"n": 2**63, "t": "ż", "e": []})
        assert await bodies(bench) == {"a": '{"n":9223372036854775808,"t":"ż","e":[]}'.encode()}

    async def test_put_replaces_and_the_revision_grows(self, bench: Bench) -> None:
        first = await put(bench, "a", 1)
        second = await put(bench, "a", 2)
        assert first is not None
        assert second is not None
        assert second.revision > first.revision
        assert await bodies(bench) == {"a": b"2"}
        assert (await bench.engine.scan("note", bench.now))[0] == second

    async def test_put_with_the_right_revision_is_made(self, bench: Bench) -> None:
        first = await put(bench, "a", 1, expected=0)
        assert first is not None
        assert await put(bench, "a", 2, expected=first.revision) is not None

    async def test_put_with_a_wrong_revision_changes_nothing(self, bench: Bench) -> None:
        first = await put(bench, "a", 1)
        assert first is not None
        assert await put(bench, "a", 2, expected=0) is None
        assert await put(bench, "a", 2, expected=first.revision + 1) is None
        assert await put(bench, "b", 2, expected=7) is None
        assert await bodies(bench) == {"a": b"1"}

    async def test_of_many_first_puts_one_is_made(self, bench: Bench) -> None:
        answers = await asyncio.gather(*(put(bench, "a", n, expected=0) for n in range(20)))
        assert sum(answer is not None for answer in answers) == 1

    async def test_none_deletes_and_the_name_is_free(self, bench: Bench) -> None:
        await put(bench, "a", 1)
        await bench.engine.put([Put("note", "a", None)], bench.now)
        assert await bodies(bench) == {}
        assert await put(bench, "a", 2, expected=0) is not None

    async def test_revision_grows_over_a_deletion(self, bench: Bench) -> None:
        first = await put(bench, "a", 1)
        await bench.engine.put([Put("note", "a", None)], bench.now)
        again = await put(bench, "a", 1)
        assert first is not None
        assert again is not None
        assert again.revision > first.revision

    async def test_deletion_can_be_guarded(self, bench: Bench) -> None:
        first = await put(bench, "a", 1)
        assert first is not None
        wrong = Put("note", "a", None, first.revision + 1)
        assert await bench.engine.put([wrong], bench.now) == [None]
        assert await bodies(bench) == {"a": b"1"}

    async def test_document_fades_at_its_time(self, bench: Bench) -> None:
        await put(bench, "a", 1, expires_at=bench.now + 100)
        bench.tick(99)
        assert await bodies(bench) == {"a": b"1"}
        bench.tick(1)
        assert await bodies(bench) == {}
        assert await put(bench, "a", 2, expected=0) is not None

    async def test_prune_leaves_living_documents(self, bench: Bench) -> None:
        await put(bench, "short", 1, expires_at=bench.now + 100)
        await put(bench, "long", 1, expires_at=bench.now + 1000)
        await put(bench, "ever", 1)
        bench.tick(100)
        await bench.prune()
        assert sorted(await bodies(bench)) == ["ever", "long"]

    async def test_puts_of_one_batch_are_answered_one_by_one(self, bench: Bench) -> None:
        await put(bench, "a", 1)
        puts = [Put("note", "a", raw(2), 0), Put("note", "b", raw(3), 0)]
        first, second = await bench.engine.put(puts, bench.now)
        assert first is None
        assert second is not None
        assert await bodies(bench) == {"a": b"1", "b": b"3"}
