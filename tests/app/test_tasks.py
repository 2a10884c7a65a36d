"""Tasks: registration, calls, and options (FEATURES 1.1, 1.2, 1.4, 1.11)."""

from __future__ import annotations

import functools
from datetime import UTC, datetime, timedelta

import pytest
from msgspec import Raw

from headrace import (
    App,
    Debounce,
    InvalidValue,
    JobContext,
    PayloadTooLarge,
    State,
    Throttle,
    UnencodableValue,
    steps,
)
from headrace.core.model import MAX_PAYLOAD
from headrace.testing import ManualClock, arguments, jobs, run_until_idle


class TestRegistration:
    async def test_task_has_the_function_s_name_as_its_type(self, timed: App) -> None:
        @timed.task
        async def send() -> None:
            """Sends."""

        assert (send.type, send.__name__, send.__doc__) == ("send", "send", "Sends.")
        assert repr(send) == "<Task 'send'>"
        ref = await send.enqueue()
        job = await ref.get()
        assert (job.type, job.queue, job.service) == ("send", "default", "default")

    async def test_task_takes_a_type_and_works_with_options(self, timed: App) -> None:
        @timed.task(type="email:new", queue="mail")
        def send(to: str) -> str:
            return to

        job = await (await send.enqueue("ada")).get()
        assert (job.type, job.queue) == ("email:new", "mail")

    @pytest.mark.parametrize("with_options", [False, True])
    async def test_async_and_sync_functions_run_bare_and_with_options(
        self, timed: App, with_options: bool
    ) -> None:
        register = timed.task(queue="q") if with_options else timed.task

        @register
        async def loud(text: str) -> str:
            return text.upper()

        @register
        def twice(n: int) -> int:
            return 2 * n

        refs = await loud.enqueue("a"), await twice.enqueue(2)
        await run_until_idle(timed)
        assert [await ref.result() for ref in refs] == ["A", 4]

    def test_calling_a_task_runs_its_function_here(self) -> None:
        app = App("memory:")

        @app.task
        def double(n: int) -> int:
            return 2 * n

        assert double(4) == 8

    def test_one_type_twice_is_an_error(self) -> None:
        app = App("memory:")
        app.task(type="a")(lambda: None)

        def second() -> None: ...

        with pytest.raises(InvalidValue, match=r"'a' is registered twice: by .*<lambda> and by"):
            app.task(type="a")(second)

    @pytest.mark.parametrize(
        "name", ["", "ids", "default", "workers", "email:new", "a-b_c", "x" * 128]
    )
    def test_reserved_looking_and_long_types_are_safe(self, name: str) -> None:
        app = App("memory:")
        assert app.task(type=name)(lambda: None).type == name
        assert app.types == [name]

    @pytest.mark.parametrize("name", ["a b", "ä", "a/b", "a.b", "x" * 129, "a\n", None, 7])
    def test_bad_types_are_refused_by_name(self, name: object) -> None:
        with pytest.raises(InvalidValue, match=r"^type: "):
            App("memory:").task(type=name)(lambda: None)  # pyright: ignore

    def test_function_without_a_name_needs_a_type(self) -> None:
        app = App("memory:")
        with pytest.raises(InvalidValue, match="has no name; give it a type"):
            app.task(functools.partial(print, "x"))

    def test_mistakes_at_the_decorator_are_found_at_once(self) -> None:
        app = App("memory:")
        with pytest.raises(InvalidValue, match=r"^colour: is not an option"):
            app.task(colour=1)(lambda: None)  # pyright: ignore
        with pytest.raises(InvalidValue, match=r"^middleware: 3 is not callable"):
            app.task(middleware=[3])(lambda: None)  # pyright: ignore
        with pytest.raises(InvalidValue, match=r"^terminates_on: .* not a list"):
            app.task(terminates_on=ValueError)(lambda: None)  # pyright: ignore
        with pytest.raises(InvalidValue, match="cannot be found by a child process"):
            app.task(cpu=True)(lambda: None)
        assert app.types == []

    def test_handler_s_context_is_found_though_its_import_is_for_type_checkers(self) -> None:
        def handler(ctx, other):
            return None

        handler.__annotations__ = {"ctx": "somewhere.JobContext", "other": "Unknown"}
        task = App("memory:").task(handler)
        assert task.handler.context_name == "ctx"

    async def test_one_unresolvable_annotation_does_not_hide_the_others(self, timed: App) -> None:
        def handler(ctx, n, other) -> None: ...

        handler.__annotations__ = {"ctx": JobContext, "n": "int", "other": "NotThere"}
        task = timed.task(handler)
        with pytest.raises(TypeError, match="Expected `int`"):
            await task.enqueue("x", other={})
        assert arguments(await (await task.enqueue(1, other={})).get()) == {"n": 1, "other": {}}


class TestCalls:
    @pytest.fixture
    def send(self, timed: App):
        @timed.task
        async def send(to: str, copies: int = 1, *, urgent: bool = False) -> None: ...

        return send

    @pytest.mark.parametrize(
        ("args", "kwargs", "words"),
        [
            ((), {}, "missing a required argument: 'to'"),
            (("a", 1, True), {}, "too many positional arguments"),
            (("a",), {"to": "b"}, "multiple values for argument 'to'"),
            (("a",), {"colour": 1}, "unexpected keyword argument 'colour'"),
            ((3,), {}, r"Expected `str`, got `int` - at `\$.to`"),
            (("a", "1"), {}, r"Expected `int`, got `str` - at `\$.copies`"),
            (("a",), {"urgent": 1}, "Expected `bool`, got `int`"),
            ((None,), {}, "Expected `str`, got `null`"),
        ],
    )
    async def test_wrong_call_is_a_type_error_and_writes_nothing(
        self, timed: App, send, args, kwargs, words: str
    ) -> None:
        for call in (send.enqueue, send.submit):
            with pytest.raises(TypeError, match=words):
                await call(*args, **kwargs)
        with pytest.raises(TypeError, match=words):
            send.prepare(*args, **kwargs)
        assert await jobs(timed) == []

    async def test_value_without_a_json_form_is_refused(self, timed: App) -> None:
        @timed.task
        async def take(x) -> None: ...

        for value in (object(), {1j}, float("nan"), [float("inf")], "\ud800", lambda: 1):
            with pytest.raises(UnencodableValue, match=r"an argument of .*take cannot be encoded"):
                await take.enqueue(value)
        assert await jobs(timed) == []

    async def test_payload_over_the_limit_is_refused_before_storage(self, timed: App) -> None:
        @timed.task
        async def take(x: str) -> None: ...

        room = MAX_PAYLOAD - len('{"x":""}')
        await take.enqueue("a" * room)
        for text in ("a" * (room + 1), "ä" * (room // 2 + 1)):
            with pytest.raises(PayloadTooLarge, match="over the limit of 1,048,576"):
                await take.enqueue(text)
        assert len(await jobs(timed)) == 1

    async def test_limit_is_a_setting_of_the_app(self, url: str) -> None:
        async with App(url, max_payload=20) as app:
            with pytest.raises(PayloadTooLarge):
                app.prepare("t", {"x": "a" * 20})

    async def test_catch_all_has_no_type_to_enqueue(self, timed: App) -> None:
        @timed.task(type="")
        async def anything(**payload: object) -> None: ...

        with pytest.raises(InvalidValue, match=r"use app.prepare"):
            await anything.enqueue()
        await timed.enqueue_many([timed.prepare("some:type", {"a": 1})])
        assert (await run_until_idle(timed)).completed == 1

    @pytest.mark.parametrize("payload", [[1], "x", 3, True])
    def test_prepared_payload_is_an_object(self, payload: object) -> None:
        with pytest.raises(InvalidValue, match="must be a JSON object"):
            App("memory:").prepare("t", payload)

    def test_raw_payload_is_json(self) -> None:
        app = App("memory:")
        assert app.prepare("t", Raw(b'{"a": 1.10}')).job.payload == Raw(b'{"a": 1.10}')
        with pytest.raises(UnencodableValue):
            app.prepare("t", Raw(b'{"a": 1'))


class TestPrecedence:
    """The call's options win over the task's, the task's over the queue's."""

    async def test_call_wins_over_task_wins_over_queue(self, timed: App) -> None:
        await timed.queue("q").set(max_tries=20, retry=100)

        @timed.task(queue="q")
        async def plain() -> None: ...

        @timed.task(queue="q", max_tries=5, timeout=50, retry=[1, 2])
        async def own() -> None: ...

        assert (await (await plain.enqueue()).get()).max_tries == 20
        assert (await (await own.enqueue()).get()).max_tries == 5
        called = await own.options(max_tries=2, timeout=7, retry=None, queue="r").enqueue()
        spec = (await called.get()).spec
        assert (spec.max_tries, spec.timeout, spec.queue) == (2, 7000, "r")
        assert type(spec.retry).__name__ == "AtOnce"

    async def test_options_add_up_and_leave_the_task_alone(self, timed: App) -> None:
        @timed.task(priority=3)
        async def work() -> None: ...

        other = work.options(queue="a").options(tags=["t"]).options(queue="b")
        job = await (await other.enqueue()).get()
        assert (job.priority, job.queue, job.spec.tags) == (3, "b", ("t",))
        plain = await (await work.enqueue()).get()
        assert (plain.queue, plain.spec.tags) == ("default", ())

    async def test_call_s_run_at_replaces_the_task_s_delay(
        self, timed: App, clock: ManualClock
    ) -> None:
        @timed.task(delay=60)
        async def work() -> None: ...

        at = clock.time + timedelta(hours=1)
        job = await (await work.options(run_at=at).enqueue()).get()
        assert job.run_at == clock.now() + 3_600_000
        again = await (await work.options(run_at=at).options(delay=5).enqueue()).get()
        assert again.run_at == clock.now() + 5000
        with pytest.raises(InvalidValue, match="run_at or delay, not both"):
            await work.options(run_at=at, delay=1).enqueue()

    async def test_call_s_retry_policy_wins_over_the_task_s_callable(
        self, timed: App, clock: ManualClock
    ) -> None:
        @timed.task(retry=lambda number, error: 100)
        async def fails() -> None:
            raise ValueError

        own = await fails.enqueue()
        called = await fails.options(retry=7).enqueue()
        foreign = (await timed.enqueue_many([timed.prepare("fails")]))[0].ref
        await run_until_idle(timed)
        assert (await own.get()).run_at == clock.now() + 100_000
        assert (await called.get()).run_at == clock.now() + 7000
        assert foreign
        assert (await foreign.get()).run_at == clock.now() + 100_000

    def test_callable_retry_cannot_travel_with_one_job(self) -> None:
        app = App("memory:")
        task = app.task(type="t")(lambda: None)
        with pytest.raises(InvalidValue, match="a callable cannot travel with a job"):
            task.options(retry=lambda number, error: 1)
        with pytest.raises(InvalidValue, match="a callable cannot travel with a job"):
            app.prepare("t", retry=lambda number, error: 1)

    async def test_queue_s_settings_hold_where_the_job_says_nothing(
        self, timed: App, clock: ManualClock
    ) -> None:
        await timed.queue("default").set(dead_letters=False, retry=steps(9), force=True)

        @timed.task
        async def fails() -> None:
            raise ValueError

        ref = await fails.enqueue()
        last = await fails.options(max_tries=1).enqueue()
        await run_until_idle(timed)
        assert (await ref.get()).run_at == clock.now() + 9000
        assert (await last.get()).state is State.FAILED


BAD_OPTIONS = {
    "id": ["a b", "", 3, None, "x" * 129],
    "queue": ["a b", "", None, "a/b"],
    "priority": [-1, 10, True, "5", 1.5],
    "lifo": [1, "yes"],
    "delay": [-1, "5", None, float("nan"), float("inf"), True, 1e11],
    "run_at": [5, "now", datetime(2030, 1, 1)],
    "deadline": [0, -1, "x", datetime(2030, 1, 1)],
    "ttl": [0, -1, None],
    "timeout": [0, -0.5, "1", None, False],
    "max_tries": [0, -5, 1.5, True],
    "retry": ["2m", True, [], [-1], ["a"], object()],
    "unique": [None, 3, [None], Throttle(0), Debounce(-1)],
    "key": [3, [None], [{}]],
    "max_active": [0, "1"],
    "max_queued": [-1],
    "when_full": ["drop", None],
    "on_lost": ["forget"],
    "depends_on": ["an-id", [3], ["a b"]],
    "on_parent_failure": ["cry"],
    "metadata": [3, {"a": object()}, {"a": "x" * 70_000}],
    "tags": ["one", [3], ["a b"]],
    "colour": [1],
}


@pytest.mark.parametrize(
    ("name", "value"),
    [(name, value) for name, values in BAD_OPTIONS.items() for value in values],
    ids=lambda value: str(value)[:20] if not isinstance(value, str) else value[:20],
)
async def test_bad_option_is_refused_by_name_and_writes_nothing(name: str, value: object) -> None:
    app = App("memory:")
    task = app.task(type="t")(lambda: None)
    with pytest.raises((InvalidValue, UnencodableValue), match=f"^{name}\\b"):
        await task.options(**{name: value}).enqueue()  # pyright: ignore
    with pytest.raises((InvalidValue, UnencodableValue), match=f"^{name}\\b"):
        app.prepare("t", {}, **{name: value})  # pyright: ignore
    assert await jobs(app) == []


async def test_good_options_reach_the_job(timed: App, clock: ManualClock) -> None:
    @timed.task
    async def work(tenant: str) -> None: ...

    at = datetime(2030, 1, 2, tzinfo=UTC)
    ref = await work.options(
        id="my:id-1",
        queue="q",
        priority=0,
        lifo=True,
        run_at=at,
        deadline=at + timedelta(hours=1),
        ttl=timedelta(days=2),
        timeout=1.5,
        max_tries=3,
        key=("tenant", "/tenant", 7),
        max_active=2,
        metadata={"at": at, "pair": (1, 2)},
        tags=["a", "b:c"],
    ).enqueue("acme")
    job = await ref.get()
    spec = job.spec
    assert ref.id == "my:id-1"
    assert (job.priority, spec.lifo, spec.ttl, spec.timeout) == (0, True, 172_800_000, 1500)
    assert job.run_at == round(at.timestamp() * 1000)
    assert job.deadline == job.run_at + 3_600_000
    assert spec.key
    assert (spec.key.name, spec.key.max_active) == ("tenant:acme:7", 2)
    assert spec.metadata == {"at": "2030-01-02T00:00:00Z", "pair": [1, 2]}
    assert spec.tags == ("a", "b:c")
