"""Failure and outcomes (FEATURES 3.1–3.6, 9.3)."""

from __future__ import annotations

import msgspec

from headrace.core.model import MAX_LOGS, MAX_MESSAGE, MAX_TRACEBACK, LogEntry, Progress
from headrace.core.outcome import Cancelled as CancelledByHandler
from headrace.core.outcome import (
    Completed,
    Failed,
    Problem,
    Returned,
    Snoozed,
    Terminated,
    Uncounted,
)
from headrace.core.queue import QueueSettings
from headrace.core.retry import Steps
from headrace.core.states import State
from headrace.testing.conformance.bench import Bench, failed, made, raw, refused

PROBLEM = Problem("ValueError", "boom", "Traceback …")


class Failure:
    """What a run amounts to, and what is kept of it."""

    async def test_completed_job_keeps_its_result_and_times(self, bench: Bench) -> None:
        await bench.add("a")
        job = await bench.start()
        bench.tick(250)
        done = await bench.complete(job, {"n": [1, 2]})
        assert (done.state, done.result) == (State.COMPLETED, raw({"n": [1, 2]}))
        assert (done.started_at, done.finished_at) == (bench.now - 250, bench.now)
        assert (done.worker, done.lease_until) == (None, None)
        assert await bench.job("a") == done

    async def test_results_survive_exactly(self, bench: Bench) -> None:
        for n, text in enumerate((b"null", b"0", b"12345678901234567890", b'"x"', b"[]", b"{}")):
            await bench.add(f"j{n}")
            await bench.settle(await bench.start(), Completed(msgspec.Raw(text)))
            assert bytes((await bench.job(f"j{n}")).result or b"") == text

    async def test_job_without_result_has_none(self, bench: Bench) -> None:
        await bench.add("a")
        await bench.settle(await bench.start(), Completed())
        assert (await bench.job("a")).result is None

    async def test_failed_try_waits_for_the_policy_s_delay(self, bench: Bench) -> None:
        await bench.add("a", retry=Steps((1000, 5000)))
        job = await bench.fail(await bench.start())
        assert (job.state, job.tries, job.run_at) == (State.RETRY, 1, bench.now + 1000)
        bench.tick(999)
        assert await bench.claimed_ids() == []
        bench.tick(1)
        job = await bench.fail(await bench.start())
        assert (job.tries, job.run_at) == (2, bench.now + 5000)

    async def test_policy_of_the_queue_holds_where_the_job_has_none(self, bench: Bench) -> None:
        await bench.set_queue(QueueSettings(retry=Steps((7000,))))
        await bench.add("a")
        assert (await bench.fail(await bench.start())).run_at == bench.now + 7000

    async def test_failed_try_keeps_its_error(self, bench: Bench) -> None:
        await bench.add("a")
        job = await bench.fail(await bench.start(), after=0)
        assert job.error is not None
        assert (job.error.type, job.error.message) == ("ValueError", "boom")
        assert (job.error.number, job.error.at) == (1, bench.now)
        assert await bench.errors("a") == [job.error]

    async def test_handler_may_choose_the_next_delay(self, bench: Bench) -> None:
        await bench.add("a", retry=Steps((1000,)))
        assert (await bench.fail(await bench.start(), after=42)).run_at == bench.now + 42

    async def test_exhausted_job_is_dead_after_exactly_max_tries(self, bench: Bench) -> None:
        await bench.add("a", max_tries=3)
        for n in (1, 2):
            job = await bench.fail(await bench.start(), after=0)
            assert (job.state, job.tries) == (State.RETRY, n)
        job = await bench.fail(await bench.start(), after=0)
        assert (job.state, job.tries, job.finished_at) == (State.DEAD, 3, bench.now)
        assert await bench.claimed_ids() == []

    async def test_dead_job_keeps_the_error_of_every_try(self, bench: Bench) -> None:
        await bench.add("a", max_tries=3)
        for message in ("one", "two", "three"):
            await bench.settle(await bench.start(), failed(message, after=0))
        errors = await bench.errors("a")
        assert [error.message for error in errors] == ["one", "two", "three"]
        assert [error.number for error in errors] == [1, 2, 3]

    async def test_exhausted_job_is_failed_where_dead_letters_are_off(self, bench: Bench) -> None:
        await bench.set_queue(QueueSettings(dead_letters=False))
        await bench.add("a", max_tries=1)
        assert (await bench.fail(await bench.start())).state is State.FAILED

    async def test_terminated_job_fails_at_once(self, bench: Bench) -> None:
        await bench.add("a", max_tries=10)
        job = made(await bench.settle(await bench.start(), Terminated(PROBLEM)))
        assert (job.state, job.tries) == (State.FAILED, 1)
        assert job.error is not None
        assert job.error.message == "boom"

    async def test_snoozed_job_comes_back_without_counting_the_try(self, bench: Bench) -> None:
        await bench.add("a", max_tries=1)
        for _ in range(3):
            job = made(await bench.settle(await bench.start(), Snoozed(bench.now + 100)))
            assert (job.state, job.tries, job.run_at) == (State.PENDING, 0, bench.now + 100)
            assert await bench.claimed_ids() == []
            bench.tick(100)
        assert (await bench.start()).tries == 1

    async def test_returned_job_is_pending_with_its_tries_unchanged(self, bench: Bench) -> None:
        await bench.add("a", max_tries=2)
        await bench.fail(await bench.start(), after=0)
        job = made(await bench.settle(await bench.start(), Returned()))
        assert (job.state, job.tries, job.run_at) == (State.PENDING, 1, bench.now)
        assert (await bench.start(worker="w2")).tries == 2

    async def test_error_that_does_not_count_leaves_the_tries(self, bench: Bench) -> None:
        await bench.add("a", max_tries=1)
        job = made(await bench.settle(await bench.start(), Uncounted(PROBLEM, after=10)))
        assert (job.state, job.tries, job.run_at) == (State.RETRY, 0, bench.now + 10)
        assert job.error is not None

    async def test_handler_may_cancel_its_own_job(self, bench: Bench) -> None:
        await bench.add("a")
        job = made(await bench.settle(await bench.start(), CancelledByHandler("superseded")))
        assert job.state is State.CANCELLED
        assert (await bench.events("a"))[-1].reason == "superseded"

    async def test_success_clears_the_error_and_keeps_the_history(self, bench: Bench) -> None:
        await bench.add("a")
        await bench.fail(await bench.start(), after=0)
        assert (await bench.run()).error is None
        assert len(await bench.errors("a")) == 1

    async def test_long_errors_are_bounded(self, bench: Bench) -> None:
        await bench.add("a")
        problem = Problem("E", "m" * (MAX_MESSAGE + 1), "first " + "t" * 10**6 + " last")
        await bench.settle(await bench.start(), Failed(problem, 0))
        (error,) = await bench.errors("a")
        assert len(error.message) == MAX_MESSAGE
        assert len(error.traceback) < MAX_TRACEBACK + 100
        assert error.traceback.startswith("first ")
        assert error.traceback.endswith(" last")

    async def test_progress_is_the_latest(self, bench: Bench) -> None:
        await bench.add("a")
        job = await bench.start()
        await bench.report(job, Progress("load", current=1, total=3))
        made(await bench.report(job, Progress("save", "nearly", 2.5, 3)))
        assert (await bench.job("a")).progress == Progress("save", "nearly", 2.5, 3)
        assert (await bench.complete(job)).progress == Progress("save", "nearly", 2.5, 3)

    async def test_logs_are_kept_in_order_with_their_levels(self, bench: Bench) -> None:
        await bench.add("a")
        job = await bench.start()
        entries = [LogEntry(bench.now, level, level * 2) for level in ("debug", "info", "error")]
        await bench.report(job, logs=entries[:2])
        await bench.report(job, logs=entries[2:])
        assert (await bench.details("a")).logs == tuple(entries)

    async def test_logs_are_bounded_and_the_newest_stay(self, bench: Bench) -> None:
        await bench.add("a")
        job = await bench.start()
        for part in range(3):
            entries = [LogEntry(bench.now, "info", f"{part}-{n}") for n in range(500)]
            await bench.report(job, logs=entries)
        logs = (await bench.details("a")).logs
        assert len(logs) == MAX_LOGS
        assert (logs[0].message, logs[-1].message) == ("1-0", "2-499")

    async def test_ended_job_takes_no_progress_log_or_result(self, bench: Bench) -> None:
        await bench.add("a")
        job = await bench.start()
        await bench.complete(job, 1)
        refused(await bench.report(job, Progress("late")))
        refused(await bench.report(job, logs=[LogEntry(bench.now, "info", "late")]))
        bench.tick(1)
        refused(await bench.settle(job, Completed(raw(2))))
        assert (await bench.job("a")).result == raw(1)
