"""The blocking facade: the same without an event loop (FEATURES 1.9)."""

from __future__ import annotations

import asyncio
import inspect
import os
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from headrace import (
    App,
    Detached,
    DuplicateJob,
    HeadraceError,
    JobContext,
    JobFailed,
    JobNotFound,
    JobRef,
    Outcome,
    PartlyEnqueued,
    Prepared,
    QueueFull,
    Refused,
    State,
    Task,
)
from headrace.app.blocking import (
    BlockingApp,
    BlockingDetached,
    BlockingQueue,
    BlockingRef,
    BlockingTask,
    run,
)
from headrace.app.detached import DetachedJob
from headrace.app.queues import Queue
from headrace.app.workers import rounds
from headrace.core.queue import Kind
from headrace.runtime.worker import WorkerOptions
from headrace.testing import run_until_idle


@pytest.fixture
def app(url: str) -> Iterator[App]:
    app = App(url)

    @app.task
    async def double(n: int) -> int:
        return 2 * n

    @app.task(max_tries=1)
    def fails() -> None:
        raise ValueError("no")

    with app.blocking:
        yield app


@pytest.fixture
def worker(app: App) -> Iterator[None]:
    """A worker in a thread, as a program without an event loop would have one beside it."""
    started = queue.Queue[Callable[[], object]]()

    async def main() -> None:
        worker, stop = app.worker(WorkerOptions()), asyncio.Event()
        await worker.start()
        upkeep = asyncio.create_task(rounds(app, worker).run())
        loop = asyncio.get_running_loop()
        started.put(lambda: loop.call_soon_threadsafe(stop.set))
        await stop.wait()
        upkeep.cancel()
        await worker.stop()

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    leave = started.get()
    yield
    leave()
    thread.join()


@pytest.mark.usefixtures("worker")
class TestWithWorker:
    def test_enqueue_and_result(self, app: App) -> None:
        task = app.task(type="triple")(lambda n: 3 * n)
        ref = task.blocking.enqueue(4)
        assert ref.result(10) == 12
        assert ref.get().state is State.COMPLETED
        assert repr(ref) == f"BlockingRef({ref.id!r})"

    def test_ref_of_a_submission_blocks_too(self, app: App) -> None:
        task = app.task(type="triple")(lambda n: 3 * n)
        answer = task.blocking.submit(4)
        assert answer.accepted
        assert answer.ref is not None
        assert answer.ref.result(10) == 12

    def test_failed_job_raises(self, app: App) -> None:
        (answer,) = app.blocking.enqueue_many([app.prepare("fails", max_tries=1)])
        ref = answer.ref
        assert ref is not None
        with pytest.raises(JobFailed, match="ValueError: no"):
            ref.result(10)
        assert len(ref.details().errors) == 1
        assert ref.why()[0].startswith("it has ended: dead")

    def test_watch_is_a_plain_iterator_that_ends(self, app: App) -> None:
        (ref,) = app.blocking.enqueue_group([app.prepare("double", {"n": 1})])
        events = [str(snapshot.event) for snapshot in ref.watch()]
        assert events[-1] == "completed"

    def test_watch_can_be_left_early(self, app: App) -> None:
        (ref,) = app.blocking.enqueue_group([app.prepare("double", {"n": 1})])
        for _ in ref.watch():
            break
        assert ref.wait(10).state is State.COMPLETED

    def test_many_threads_share_the_loop(self, app: App) -> None:
        task = app.task(type="triple")(lambda n: 3 * n)
        results: dict[int, int] = {}

        def run(n: int) -> None:
            results[n] = task.blocking.enqueue(n).result(10)

        threads = [threading.Thread(target=run, args=(n,)) for n in range(10)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert results == {n: 3 * n for n in range(10)}


def test_everything_else_without_a_worker(app: App) -> None:
    blocking = app.blocking
    task = app.task(type="t")(lambda: None)
    ref = task.options(id="one", delay=60).blocking.enqueue()
    with pytest.raises(DuplicateJob):
        task.options(id="one").blocking.enqueue()
    assert task.options(id="one").blocking.submit().outcome is Outcome.DUPLICATE
    with pytest.raises(TypeError):
        task.blocking.enqueue(1)
    assert [job.id for job in blocking.find(states="pending")] == ["one"]
    assert [(one.state, one.jobs) for one in blocking.count()] == [(State.PENDING, 1)]
    queue = blocking.queue("default")
    queue.pause()
    assert queue.set(max_tries=20) is Kind.UPDATE
    (info,) = blocking.queues()
    assert info == queue.info()
    assert (info.settings.paused, queue.settings().max_tries) == (True, 20)
    queue.resume()
    queue.drain()
    with pytest.raises(QueueFull):
        task.blocking.enqueue()
    queue.resume()
    assert ref.set_priority(1).priority == 1
    assert ref.run_now().run_at <= app.clock.now()
    assert ref.free_unique().state is State.PENDING
    assert blocking.why("one") == ["no worker serves queue 'default'; start one"]
    assert blocking.workers() == []
    with pytest.raises(Refused):
        ref.replay()
    with pytest.raises(Refused):
        ref.dismiss()
    assert ref.cancel("enough") is True
    assert [str(entry.event.event) for entry in blocking.events(event="cancelled")] == ["cancelled"]
    assert ref.retry().state is State.PENDING
    with pytest.raises(TimeoutError):
        ref.wait(0.05)
    ref.delete()
    with pytest.raises(JobNotFound):
        ref.get()
    keyed = task.options(key=("tenant", 7)).blocking.enqueue()
    status = blocking.key("tenant", 7)
    assert status
    assert [job.id for job in status.next] == [keyed.id]
    assert blocking.release_key("tenant", 7) == 0
    assert queue.purge() == 1
    assert queue.delete() == 0


PAIRS = [
    (App, BlockingApp),
    (JobRef, BlockingRef),
    (Task, BlockingTask),
    (Queue, BlockingQueue),
    (DetachedJob, BlockingDetached),
]
BLOCKING = {pair[0].__name__: pair[1].__name__ for pair in PAIRS}

APART = {
    "App.engine": "what is below the app is for event loops",
    "App.insert": "what is below the app is for event loops",
    "App.work": "`run_worker` is the plain call",
    "App.working": "a worker lives in an event loop",
}
"""What has no blocking twin, and why."""


def surface(kind: type) -> dict[str, Any]:
    return {name: value for name, value in inspect.getmembers(kind) if name[0] != "_"}


def waits(method: Any) -> bool:
    """Whether it can only be used in an event loop, or gives something that can."""
    returned = str(inspect.signature(method).return_annotation) if callable(method) else ""
    return (
        inspect.iscoroutinefunction(method)
        or inspect.isasyncgenfunction(method)
        or returned.startswith(("Awaitable", "AbstractAsync"))
        or returned.partition("[")[0] in BLOCKING.keys() - {"Task"}
    )


@pytest.mark.parametrize(("kind", "twin"), PAIRS, ids=lambda kind: kind.__name__)
def test_whatever_waits_has_a_blocking_twin_with_the_same_parameters(
    kind: type, twin: type
) -> None:
    theirs, own = surface(kind), surface(twin)
    waiting = {name for name, method in theirs.items() if waits(method)}
    apart = {name.partition(".")[2] for name in APART if name.startswith(f"{kind.__name__}.")}
    assert own.keys() == waiting - apart
    assert apart <= waiting
    for name, method in own.items():
        parameters = inspect.signature(method).parameters.values()
        expected = inspect.signature(theirs[name]).parameters.values()
        assert list(map(str, parameters)) == list(map(str, expected))


def test_detached_job_is_settled_without_an_event_loop(app: App) -> None:
    tokens: list[str] = []

    @app.task(max_tries=5, retry=0)
    async def outside(ctx: JobContext) -> Detached:
        leaving = ctx.detach()
        tokens.append(leaving.token)
        return leaving

    ref = outside.blocking.enqueue()
    run(lambda: run_until_idle(app))
    detached = app.blocking.detached(tokens[-1])
    assert detached.id == ref.id
    assert detached.renew(60).detached
    assert detached.fail("not yet").state is State.RETRY
    run(lambda: run_until_idle(app))
    assert app.blocking.detached(tokens[-1]).move_to("elsewhere").queue == "elsewhere"
    run(lambda: run_until_idle(app))
    assert app.blocking.detached(tokens[-1]).complete(7).state is State.COMPLETED
    assert ref.result() == 7


def test_confirmed_part_of_a_broken_off_call_blocks_too(app: App) -> None:
    def jobs() -> Iterator[Prepared[Any]]:
        yield app.prepare("double", {"n": 1})
        raise OSError("no more")

    with pytest.raises(PartlyEnqueued) as caught:
        app.blocking.enqueue_many(jobs(), batch=1)
    (confirmed,) = caught.value.confirmed
    assert confirmed.ref.get().type == "double"


def test_interrupted_call_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(Future[None]):
        def result(self, timeout: float | None = None) -> None:
            raise KeyboardInterrupt

    async def endless() -> None:
        await asyncio.Event().wait()

    call = Interrupted()
    monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", lambda work, _: work.close() or call)
    with pytest.raises(KeyboardInterrupt):
        run(endless)
    assert call.cancelled()


async def test_blocking_call_in_an_event_loop_is_refused(timed: App) -> None:
    task = timed.task(type="t")(lambda: None)
    with pytest.raises(HeadraceError, match="would stop this event loop; use `await` here"):
        task.blocking.enqueue()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_forked_child_gets_a_loop_of_its_own(tmp_path) -> None:
    url = f"sqlite:{tmp_path / 'jobs.db'}"
    app = App(url)
    task = app.task(type="t")(lambda: None)
    task.blocking.enqueue()
    pid = os.fork()
    if pid == 0:
        try:
            child = App(url)
            child.task(type="t")(lambda: None).blocking.enqueue()
            child.blocking.close()
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert len(app.blocking.find()) == 2
    app.blocking.close()
