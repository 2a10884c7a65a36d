"""Calls that type checkers must refuse; each marked line must be an error, and no other."""

from __future__ import annotations

from headrace import App, JobContext
from headrace.testing import run_task

app = App("memory:")


@app.task
async def task(a: int, b: str = "", *, flag: bool = False) -> int:
    return a


@app.task(queue="q")
def with_context(ctx: JobContext, a: int) -> str:
    return str(a)


async def main() -> None:
    await task.enqueue("x")  # wrong type
    await task.enqueue()  # missing argument
    await task.enqueue(1, "b", True)  # extra positional argument
    await task.enqueue(1, colour="red")  # unknown argument
    await task.enqueue(1, b=2)  # wrong type by name
    await task.submit(None)  # None
    task.prepare([1])  # wrong type
    await with_context.enqueue()  # missing argument
    await with_context.enqueue(1, 2)  # extra argument
    await task.options(colour="red").enqueue(1)  # unknown option
    await task.options(delay="soon").enqueue(1)  # wrong option
    await task.options(priority="high").enqueue(1)  # wrong option
    task.blocking.enqueue("x")  # wrong type
    task.options(delay=5).blocking.submit("x")  # wrong type
    text: str = await (await task.enqueue(1)).result()  # the result is an int
    number: int = task.blocking.enqueue(1)  # a ref is not a result
    await run_task(task, "x")  # wrong type
    assert text
    assert number


@app.task(colour="red")  # unknown option
async def first() -> None: ...


@app.task(max_tries="3")  # wrong option
async def second() -> None: ...


async def third(ctx: JobContext) -> None:
    ctx.progress(current="half")  # wrong type
    ctx.log("info")  # missing argument


app.run_worker(colour="red")  # unknown option
app.run_worker(concurrency="many")  # wrong type
