"""CPU-bound handlers in child processes (FEATURES 8.1, 8.4, 4.4)."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psutil
import pytest

from headrace import App, InvalidValue, JobContext, JobFailed, State, provided
from headrace.engine.memory import MemoryEngine
from headrace.runtime import processes
from headrace.runtime.worker import Worker
from headrace.testing import ManualClock, running
from tests.runtime import cpu_tasks as cpu
from tests.support import eventually


@pytest.fixture
def app() -> Iterator[App]:
    with cpu.app.using(MemoryEngine()) as app:
        yield app


@pytest.fixture
async def worker(app: App) -> AsyncIterator[Worker]:
    async with running(app, queues=["default", "other"], children=2) as worker:
        yield worker


@pytest.mark.usefixtures("worker")
class TestAnswers:
    async def test_result_comes_back_from_a_recycled_child(self) -> None:
        assert await (await cpu.square.enqueue(7)).result(20) == 49
        assert await (await cpu.square_async.enqueue(8)).result(20) == 64
        first, parent = await (await cpu.where.enqueue()).result(20)
        second, _ = await (await cpu.where.enqueue()).result(20)
        assert first == second != os.getpid()
        assert parent == os.getpid()

    async def test_typed_arguments_and_results(self) -> None:
        ref = await cpu.typed.enqueue(cpu.Point(1), b"\x00\xff")
        assert await ref.result(20) == cpu.Point(3)

    async def test_result_and_payload_of_a_megabyte(self) -> None:
        size = 1024 * 1024
        result = await (await cpu.big.enqueue(size, "y" * (size - 100))).result(30)
        assert len(result) == size - 2
        with pytest.raises(JobFailed, match="over the limit"):
            await (await cpu.big.enqueue(size + 1)).result(30)

    async def test_error_comes_back_with_its_traceback(self) -> None:
        with pytest.raises(JobFailed, match="dead: ValueError: bad news") as caught:
            await (await cpu.fails.enqueue("bad news")).result(20)
        assert "raise ValueError(text)" in (caught.value.traceback or "")

    @pytest.mark.parametrize(
        ("kind", "state"),
        [("terminate", State.FAILED), ("listed", State.FAILED), ("exit", State.DEAD)],
    )
    async def test_signals_end_the_job_as_anywhere(self, kind: str, state: State) -> None:
        assert (await (await cpu.raises.enqueue(kind)).wait(20)).state is state

    async def test_retry_and_snooze_keep_their_times(self, app: App) -> None:
        for task, args, least, most in (
            (cpu.raises.options(max_tries=2), ("retry",), 50, 60),
            (cpu.raises, ("snooze",), 60, 70),
            (cpu.own_retry, (), 77, 87),
        ):
            ref = await task.enqueue(*args)  # pyright: ignore
            job = await eventually(lambda ref=ref: _waits(ref))
            assert least - 5 <= (job.run_at - app.clock.now()) / 1000 <= most

    async def test_result_without_a_json_form_fails_that_job(self) -> None:
        with pytest.raises(JobFailed, match=r"failed: .*cannot be encoded as JSON"):
            await (await cpu.odd_result.enqueue()).result(20)

    async def test_context_works_and_prints_do_not_disturb(self) -> None:
        ref = await cpu.chatty.enqueue()
        assert await ref.result(20) == "set"
        details = await ref.details()
        assert details.job.progress
        assert details.job.progress.step == "half"
        assert [entry.message for entry in details.logs] == ["try 1"]

    async def test_parents_results_are_there_when_asked_for(self) -> None:
        parents = [await cpu.square.enqueue(n) for n in (2, 3)]
        assert await (await cpu.total.options(depends_on=parents).enqueue()).result(20) == 13
        with pytest.raises(JobFailed, match="set load_dependencies=True at its task"):
            await (await cpu.asks_late.options(depends_on=parents).enqueue()).result(20)
        assert await (await cpu.asks_late.enqueue()).result(20) == 0

    async def test_what_only_the_worker_can_do_is_refused(self) -> None:
        with pytest.raises(JobFailed, match="cannot use call_after; put it into a middleware"):
            await (await cpu.calls_after.enqueue()).result(20)

    async def test_job_can_be_detached_for_as_long_as_was_said(self, app: App) -> None:
        ref = await cpu.leaves.enqueue()
        job = await eventually(lambda: _detached(ref))
        assert 55_000 < (job.lease_until or 0) - app.clock.now() <= 60_000
        done = await app.detached(f"{job.id}.{job.token}").complete("outside")
        assert done.state is State.COMPLETED

    async def test_job_can_be_moved(self, app: App) -> None:
        ref = await cpu.moves.enqueue()
        job = await eventually(lambda: _waits(ref))
        assert (job.queue, job.type) == ("other", "arrived")
        assert 25_000 < job.run_at - app.clock.now() <= 30_000
        await ref.run_now()
        assert await ref.result(20) == [1]

    async def test_children_do_not_pile_up_threads(self) -> None:
        counts = [await (await cpu.threads.enqueue()).result(20) for _ in range(4)]
        assert len(set(counts)) == 1


class TestCrashes:
    @pytest.mark.parametrize(("how", "ending"), [("exit", "exit status 7"), ("kill", "signal 9")])
    async def test_child_that_dies_is_a_failed_try_and_the_worker_lives(
        self, app: App, worker: Worker, how: str, ending: str
    ) -> None:
        ref = await cpu.dies.enqueue(how)
        job = await ref.wait(20)
        assert job.state is State.DEAD
        assert job.error
        assert job.error.type == "ChildDied"
        assert job.error.message == (
            f"the child process ended with {ending} before the job was done"
        )
        assert await (await cpu.square.enqueue(3)).result(20) == 9

    async def test_child_that_dies_while_idle_is_replaced(self, app: App, worker: Worker) -> None:
        pid, _ = await (await cpu.where.enqueue()).result(20)
        os.kill(pid, signal.SIGKILL)
        await eventually(lambda: not _lives(pid))
        await asyncio.sleep(0.05)
        other, _ = await (await cpu.where.options(max_tries=1).enqueue()).result(20)
        assert other != pid

    async def test_child_is_recycled_after_its_share_of_jobs(
        self, app: App, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(processes, "RECYCLE_AFTER", 3)
        async with running(app, children=1):
            pids = [(await (await cpu.where.enqueue()).result(20))[0] for _ in range(7)]
        assert pids[0] == pids[1] == pids[2] != pids[3] == pids[4] == pids[5] != pids[6]
        await eventually(lambda: not any(map(_lives, pids)))


class TestInterruptions:
    async def spinning(self, tmp_path: Path, **options):
        beacon = tmp_path / "beacon"
        ref = await cpu.spin.options(**options).enqueue(str(beacon))
        await eventually(lambda: beacon.exists() and beacon.read_text().count(" "))
        child, grandchild = map(int, beacon.read_text().split())
        assert _lives(child)
        return ref, child, grandchild

    async def test_timeout_kills_the_child_and_what_it_started(
        self, app: App, worker: Worker, tmp_path: Path
    ) -> None:
        ref, child, grandchild = await self.spinning(tmp_path, timeout=1.5, max_tries=1)
        job = await ref.wait(20)
        assert job.error
        assert (job.state, job.error.type) == (State.DEAD, "TimeoutError")
        await eventually(lambda: not _lives(child))
        await eventually(lambda: not _lives(grandchild))
        assert await (await cpu.square.enqueue(3)).result(20) == 9

    async def test_cancel_kills_the_child(self, app: App, worker: Worker, tmp_path: Path) -> None:
        ref, child, _ = await self.spinning(tmp_path)
        asked = time.monotonic()
        await ref.cancel("enough")
        assert (await ref.wait(20)).state is State.CANCELLED
        assert time.monotonic() - asked < 1.5
        await eventually(lambda: not _lives(child))

    async def test_shutdown_gives_the_job_back(self, app: App, tmp_path: Path) -> None:
        async with running(app, grace=0):
            ref, child, _ = await self.spinning(tmp_path)
        job = await ref.get()
        assert (job.state, job.tries) == (State.PENDING, 0)
        await eventually(lambda: not _lives(child))

    async def test_children_go_with_a_worker_that_is_killed(self, tmp_path: Path) -> None:
        """Their job will be run elsewhere: it must not go on here."""
        code = (
            "import asyncio, sys\n"
            "from tests.runtime import cpu_tasks as cpu\n"
            "async def main():\n"
            "    await cpu.spin.enqueue(sys.argv[1])\n"
            "    await cpu.app.work()\n"
            "asyncio.run(main())\n"
        )
        beacon = tmp_path / "beacon"
        root = Path(__file__).parents[2]
        order = [sys.executable, "-c", code, str(beacon)]
        process = subprocess.Popen(order, cwd=root)  # noqa: ASYNC220
        try:
            await eventually(lambda: beacon.exists() and beacon.read_text().count(" "))
            child, grandchild = map(int, beacon.read_text().split())
            assert _lives(child)
            process.kill()
            process.wait()
            await eventually(lambda: not _lives(child))
            os.kill(grandchild, signal.SIGKILL)
        finally:
            process.kill()
            process.wait()


class TestPlaces:
    async def test_no_more_children_than_allowed(self, app: App, worker: Worker) -> None:
        refs = [await cpu.pid_after.enqueue(0.05) for _ in range(8)]
        assert len({await ref.result(20) for ref in refs}) <= 2

    async def test_time_in_line_for_a_child_does_not_count(self, app: App) -> None:
        async with running(app, children=1, concurrency=5):
            await (await cpu.square.enqueue(1)).result(20)
            task = cpu.nap.options(timeout=1.0, max_tries=1)
            refs = [await task.enqueue(0.4) for _ in range(5)]
            for ref in refs:
                assert (await ref.wait(20)).state is State.COMPLETED

    async def test_job_in_line_is_cancelled_without_being_run(
        self, app: App, tmp_path: Path
    ) -> None:
        async with running(app, children=1, concurrency=2, grace=0):
            first = await cpu.nap.enqueue(600)
            await eventually(lambda: _active(first))
            beacon = tmp_path / "never"
            waiting = await cpu.spin.enqueue(str(beacon))
            await eventually(lambda: _active(waiting))
            await waiting.cancel()
            assert (await waiting.wait(10)).state is State.CANCELLED
            assert not beacon.exists()

    def test_handlers_that_no_child_can_have_are_refused(self) -> None:
        app = App("memory:")

        def inner(db: Path = provided()) -> None: ...

        with pytest.raises(InvalidValue, match="cannot be given resources"):
            app.task(cpu=True)(inner)
        with pytest.raises(InvalidValue, match="define it in a module"):
            app.task(cpu=True, type="t")(lambda: None)

    async def test_middleware_is_around_the_child(self, app: App) -> None:
        seen = []

        async def outer(ctx: JobContext, proceed) -> object:
            seen.append(os.getpid())
            return await proceed()

        equipment = app.equipment()
        equipment.middleware.append(outer)
        try:
            async with running(app):
                assert await (await cpu.square.enqueue(5)).result(20) == 25
        finally:
            equipment.middleware.remove(outer)
        assert seen == [os.getpid()]

    async def test_child_s_time_is_the_worker_s(self) -> None:
        clock = ManualClock()
        with cpu.app.using(MemoryEngine(), clock) as app:
            async with running(app):
                ref = await cpu.leaves.enqueue()
                job = await eventually(lambda: _detached(ref))
        assert 60_000 <= (job.lease_until or 0) - clock.now() < 65_000


async def test_script_s_own_handlers_run_in_children(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import asyncio, os\n"
        "from headrace import App\n"
        "app = App('memory:')\n"
        "@app.task(cpu=True)\n"
        "def pid() -> int:\n"
        "    return os.getpid()\n"
        "async def main():\n"
        "    working = asyncio.create_task(app.work())\n"
        "    print(await (await pid.enqueue()).result(20) != os.getpid())\n"
        "    working.cancel()\n"
        "    await asyncio.gather(working, return_exceptions=True)\n"
        "if __name__ == '__main__':\n"
        "    asyncio.run(main())\n"
    )
    answer = await asyncio.to_thread(
        subprocess.run, [sys.executable, script], capture_output=True, timeout=30
    )
    assert answer.stdout == b"True\n", answer.stderr.decode()


def _lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def _waits(ref):
    job = await ref.get()
    return job if job.state in (State.PENDING, State.RETRY) and job.event != "created" else None


async def _detached(ref):
    job = await ref.get()
    return job if job.detached else None


async def _active(ref) -> bool:
    return (await ref.get()).state is State.ACTIVE
