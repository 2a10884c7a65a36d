"""Calls that type checkers understand; each `reveal_type` names what must be revealed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, reveal_type

from headrace import App, Detached, JobContext, provided
from headrace.testing import run_task

app = App("memory:")


@dataclass
class Person:
    name: str


class Database: ...


@app.task
async def bare(a: int, b: str = "") -> Person:
    return Person(b * a)


@app.task
def sync(a: int, /, *, flag: bool) -> list[int]:
    return [a] if flag else []


@app.task(queue="mail", timeout=timedelta(minutes=5), retry=[1, 2], unique=True)
async def with_options(a: int) -> str:
    return str(a)


@app.task
async def with_context(ctx: JobContext, a: int) -> float:
    return ctx.number * a


@app.task(max_tries=3)
def sync_with_context(ctx: JobContext, *names: str) -> None: ...


@app.task
async def only_context(ctx: JobContext) -> None: ...


@app.task(cpu=True)
def heavy(n: int, **rest: float) -> int:
    return n


@app.task
async def with_resource(a: int, db: Database = provided()) -> str:
    return str(a)


@app.task
async def leaves(ctx: JobContext, far: bool) -> str | Detached:
    return ctx.detach() if far else "here"


@app.task
async def anything(payload: Any, n: int) -> int:
    return n


@app.resource
async def database() -> AsyncIterator[Database]:
    yield Database()


reveal_type(bare)  # Task[(a: int, b: str = ""), Person]
reveal_type(sync)  # Task[(a: int, /, *, flag: bool), list[int]]
reveal_type(with_options)  # Task[(a: int), str]
reveal_type(with_context)  # Task[(a: int), float]
reveal_type(sync_with_context)  # Task[(*names: str), None]
reveal_type(only_context)  # Task[(), None]
reveal_type(heavy)  # Task[(n: int, **rest: float), int]
reveal_type(anything)  # Task[..., int]
reveal_type(bare.options(delay=5))  # Task[(a: int, b: str = ""), Person]
reveal_type(bare.prepare(1))  # Prepared[Person]


async def main() -> None:
    ref = await bare.enqueue(1, b="x")
    reveal_type(ref)  # JobRef[Person]
    reveal_type(await ref.result())  # Person
    reveal_type((await ref.result(timeout=5)).name)  # str
    reveal_type(await sync.enqueue(1, flag=True))  # JobRef[list[int]]
    reveal_type(await (await with_options.enqueue(1)).result())  # str
    reveal_type(await with_context.enqueue(1))  # JobRef[float]
    reveal_type(await sync_with_context.enqueue("a", "b"))  # JobRef[None]
    reveal_type(await heavy.enqueue(1, x=1.5))  # JobRef[int]
    reveal_type(await anything.enqueue({"a": 1}, n=2))  # JobRef[int]
    reveal_type(await leaves.enqueue(True))  # JobRef[str | Detached]
    reveal_type(await with_resource.enqueue(1))  # JobRef[str]
    other = bare.options(delay=5, tags=["a"]).options(queue="q")
    reveal_type(await other.enqueue(1))  # JobRef[Person]
    submission = await bare.submit(1)
    reveal_type(submission)  # Submission[Person]
    reveal_type(submission.ref)  # JobRef[Person] | None
    many = [bare.prepare(1), sync.prepare(1, flag=False)]
    reveal_type(await app.enqueue_many(many))  # list[Submission[Any]]
    async for snapshot in ref.watch():
        reveal_type(snapshot)  # Snapshot
    async for job in app.find(states="dead"):
        reveal_type(job)  # Job
    reveal_type((await run_task(bare, 1)).result)  # Person


def without_a_loop() -> None:
    ref = bare.blocking.enqueue(1, b="x")
    reveal_type(ref)  # BlockingRef[Person]
    reveal_type(ref.result(5))  # Person
    reveal_type(bare.options(delay=1).blocking.submit(1))  # BlockingSubmission[Person]
