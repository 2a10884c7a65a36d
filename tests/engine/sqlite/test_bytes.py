"""What goes in comes out, byte for byte."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.core.model import Dedup, Filter, LogEntry, NewJob, Progress
from headrace.core.outcome import Completed, Failed, Problem
from headrace.engine.sqlite import SqliteEngine
from headrace.testing.conformance import Bench
from headrace.testing.conformance.bench import CONTEXT, key, made

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(10**40), 10**40)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4)
)


RAW = st.builds(
    lambda value, indent, plain: json.dumps(value, indent=indent, ensure_ascii=plain).encode(),
    VALUES,
    st.sampled_from((None, 1)),
    st.booleans(),
)
"""JSON in the spelling of another encoder: numbers and spaces must stay as they are."""


class Loop:
    """An engine and its event loop, for all examples of a test."""

    def __init__(self, path: Path) -> None:
        self.runner = asyncio.Runner()
        self.engine = SqliteEngine(path, synchronous="normal")
        self.runner.run(self.engine.open())
        self.bench = Bench(self.engine)
        self.numbers = itertools.count()

    def close(self) -> None:
        self.runner.run(self.engine.close())
        self.runner.close()


@pytest.fixture
def loop(path: Path) -> Iterator[Loop]:
    loop = Loop(path)
    yield loop
    loop.close()


relaxed = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@relaxed
@given(payload=RAW, result=RAW, metadata=st.dictionaries(TEXT, VALUES, max_size=3), tag=TEXT)
def test_payload_and_result_survive_exactly(
    loop: Loop, payload: bytes, result: bytes, metadata: dict[str, object], tag: str
) -> None:
    async def life() -> None:
        bench = loop.bench
        new = NewJob(
            id=f"j{next(loop.numbers)}",
            service="svc",
            type="work",
            queue="q",
            payload=msgspec.Raw(payload),
            created_at=bench.now,
            run_at=bench.now,
            context=CONTEXT,
            metadata=msgspec.json.decode(msgspec.json.encode(metadata)),
            tags=(tag,),
        )
        await bench.insert(new)
        assert (await bench.insert(new))[0].taken, "a repeated insert is the same insert"

        started = await bench.start()
        assert bytes(started.spec.payload) == payload
        assert started.spec == new

        made(await bench.settle(started, Completed(msgspec.Raw(result))))
        ended = await bench.job(new.id)
        assert ended.result is not None
        assert bytes(ended.result) == result
        assert ended.spec == new

    loop.runner.run(life())


@relaxed
@given(message=TEXT, reason=TEXT, line=TEXT, name=TEXT, dedup=TEXT)
def test_texts_survive_exactly(
    loop: Loop, message: str, reason: str, line: str, name: str, dedup: str
) -> None:
    async def life() -> None:
        bench = loop.bench
        id = f"t{next(loop.numbers)}"
        limit = key(f"{id}-{name}")
        await bench.add(id, key=limit, dedup=Dedup(f"{id}-{dedup}"), max_tries=1)
        started = await bench.start()
        await bench.report(started, Progress(step=line, message=line, current=0.1))
        await bench.report(started, logs=[LogEntry(bench.now, "info", line)])
        await bench.cancel(await bench.job(id), reason)
        seen = await bench.details(id)
        assert seen.job.cancelling == reason
        assert seen.job.progress == Progress(step=line, message=line, current=0.1)
        assert [entry.message for entry in seen.logs] == [line]
        assert (await bench.key(limit)).name == limit.name

        problem = Problem("ValueError", message, line)
        made(await bench.settle(seen.job, Failed(problem)))
        ended = await bench.details(id)
        assert ended.job.error is not None
        assert (ended.job.error.message, ended.job.error.traceback) == (message, line)
        assert ended.errors == (ended.job.error,)
        assert [job.id for job in (await bench.engine.find(Filter(key=limit.name))).jobs] == [id]

    loop.runner.run(life())
