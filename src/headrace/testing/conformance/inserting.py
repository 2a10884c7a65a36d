"""Inserting jobs and their ids (FEATURES 1.3–1.6, 1.10, 2.4, 6.1)."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from headrace.core.admission import Outcome
from headrace.core.errors import InvalidValue
from headrace.core.model import MAX_PAYLOAD, Context, Filter, Stage
from headrace.core.queue import QueueSettings
from headrace.core.retry import Steps
from headrace.core.states import State
from headrace.testing.conformance.bench import START, Bench, raw


class Inserting:
    """What is inserted is there, once and unchanged."""

    async def test_inserted_job_is_pending_and_claimable_at_once(self, bench: Bench) -> None:
        job = await bench.add("a", type="email:new")
        assert (job.state, job.stage, job.tries, job.token) == (State.PENDING, Stage.READY, 0, 0)
        assert (await bench.start()).id == "a"

    async def test_insert_answers_with_the_stored_job(self, bench: Bench) -> None:
        job = await bench.add("a", priority=3, delay=1000, max_tries=7, tags=("x",))
        assert await bench.job("a") == job
        assert (job.priority, job.max_tries, job.run_at) == (3, 7, START + 1000)

    async def test_every_option_survives_storage(self, bench: Bench) -> None:
        new = bench.new(
            "a",
            payload={"to": "x"},
            context=Context("r", "00-" + "a" * 32 + "-" + "b" * 16 + "-01"),
            priority=0,
            lifo=True,
            max_tries=3,
            retry=Steps((1000, 2500), 0.5),
            timeout=1500,
            deadline=START + 10**9,
            ttl=10**8,
            metadata={"n": 1.5, "deep": {"list": [None, True]}},
            tags=("one", "two"),
        )
        await bench.insert(new)
        assert (await bench.job("a")).spec == new

    @pytest.mark.parametrize(
        "payload",
        [
            b"{}",
            b'{"list":[],"map":{}}',
            b'{"n":12345678901234567890,"m":-9223372036854775808}',
            b'{"f":0.1,"g":1e-7,"h":12345678901234567}',
            '{"text":"żółw 🐢 \\u0000 \\n"}'.encode(),
            b'{ "spaced" : 1 }',
            b"null",
        ],
    )
    async def test_payload_survives_byte_for_byte(self, bench: Bench, payload: bytes) -> None:
        new = msgspec.structs.replace(bench.new("a"), payload=msgspec.Raw(payload))
        await bench.insert(new)
        assert bytes((await bench.start()).spec.payload) == payload

    async def test_largest_payload_survives(self, bench: Bench) -> None:
        text = "ż" * (MAX_PAYLOAD // 2 - 10)
        await bench.add("a", payload={"t": text})
        assert (await bench.job("a")).spec.payload == raw({"t": text})

    @pytest.mark.parametrize("id", ["ids", "default", "workers", "a:b-c_D9", "x" * 128, "0", "-"])
    async def test_reserved_looking_names_are_safe(self, bench: Bench, id: str) -> None:
        await bench.add(id, queue=id, type=id)
        assert (await bench.run(queue=id)).id == id
        assert await bench.state(id) is State.COMPLETED

    async def test_same_id_twice_is_one_job(self, bench: Bench) -> None:
        await bench.add("a", payload={"n": 1})
        verdict = await bench.submit("a", payload={"n": 2})
        assert (verdict.outcome, verdict.reason) == (Outcome.DUPLICATE, "id")
        assert (verdict.existing_id, verdict.job) == ("a", None)
        assert await bench.claimed_ids() == ["a"]

    async def test_same_id_in_another_queue_or_type_is_a_duplicate(self, bench: Bench) -> None:
        await bench.add("a", queue="q1")
        verdict = await bench.submit("a", queue="q2", type="other")
        assert verdict.outcome is Outcome.DUPLICATE
        assert await bench.claimed_ids(10, "q2") == []

    async def test_id_of_an_ended_job_is_still_taken(self, bench: Bench) -> None:
        await bench.add("a")
        await bench.run()
        assert (await bench.submit("a", payload={"n": 2})).outcome is Outcome.DUPLICATE

    async def test_id_of_a_deleted_job_is_free_and_the_new_job_runs(self, bench: Bench) -> None:
        await bench.delete(await bench.add("a"))
        await bench.add("a", payload={"n": 2})
        assert bytes((await bench.start()).spec.payload) == b'{"n":2}'

    async def test_concurrent_inserts_of_one_id_make_one_job(self, bench: Bench) -> None:
        verdicts = await asyncio.gather(
            *(bench.submit("a", payload={"producer": n}) for n in range(20))
        )
        outcomes = [verdict.outcome for verdict in verdicts]
        assert sorted(outcomes) == [Outcome.ACCEPTED] + [Outcome.DUPLICATE] * 19
        assert len(await bench.claim(20)) == 1

    async def test_many_jobs_keep_their_order_and_are_answered_one_by_one(
        self, bench: Bench
    ) -> None:
        await bench.add("b", payload={"first": True})
        groups = [[bench.new(id, type=f"type-{id}")] for id in ("a", "b", "c")]
        answers = await bench.engine.insert(groups, bench.now)
        outcomes = [verdict.outcome for (verdict,) in answers]
        assert outcomes == [Outcome.ACCEPTED, Outcome.DUPLICATE, Outcome.ACCEPTED]
        assert await bench.claimed_ids() == ["b", "a", "c"]

    async def test_options_do_not_leak_between_jobs_of_one_insert(self, bench: Bench) -> None:
        groups = [[bench.new("a", priority=9, max_tries=1, delay=5)], [bench.new("b")]]
        await bench.engine.insert(groups, bench.now)
        job = await bench.job("b")
        assert (job.priority, job.max_tries, job.run_at) == (5, 10, START)

    async def test_hundreds_of_jobs_in_one_insert_all_run(self, bench: Bench) -> None:
        groups = [[bench.new(f"j{n:04}")] for n in range(600)]
        answers = await bench.engine.insert(groups, bench.now)
        assert all(verdict.taken for (verdict,) in answers)
        assert await bench.claimed_ids(1000) == [f"j{n:04}" for n in range(600)]

    async def test_insert_of_nothing_answers_nothing(self, bench: Bench) -> None:
        assert await bench.engine.insert([], bench.now) == []
        assert await bench.engine.insert([[]], bench.now) == [()]

    async def test_defaults_of_the_queue_hold_where_the_job_says_nothing(
        self, bench: Bench
    ) -> None:
        await bench.set_queue(QueueSettings(max_tries=3))
        assert (await bench.add("a")).max_tries == 3
        assert (await bench.add("b", max_tries=1)).max_tries == 1

    async def test_services_share_nothing_but_ids(self, bench: Bench) -> None:
        await bench.add("a", service="other")
        assert await bench.claimed_ids() == []
        bench.service = "other"
        assert await bench.claimed_ids() == ["a"]

    async def test_unknown_ids_are_answered_with_none_in_place(self, bench: Bench) -> None:
        await bench.add("a")
        found = await bench.engine.get(["no", "a", "neither", "a"])
        assert [details and details.job.id for details in found] == [None, "a", None, "a"]

    async def test_context_is_stable_over_the_job_s_life(self, bench: Bench) -> None:
        context = Context("r", "00-" + "c" * 32 + "-" + "d" * 16 + "-01", "vendor=1")
        await bench.add("a", context=context)
        await bench.retry(await bench.run())
        await bench.run()
        assert {event.context for event in await bench.events("a")} == {context}

    async def test_bad_cursor_is_refused_by_name(self, bench: Bench) -> None:
        with pytest.raises(InvalidValue, match="cursor"):
            await bench.engine.find(Filter(), "not a cursor")
