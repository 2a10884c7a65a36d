"""Payloads and results: JSON by parameter name, exact and typed (FEATURES 1.3)."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypedDict, TypeVar
from uuid import UUID

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import App, InvalidValue, JobFailed, State
from headrace.core.codec import Parameters, decode_any, encode
from headrace.core.errors import UndecodablePayload
from headrace.testing import arguments, jobs, run_task, run_until_idle

JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner, max_size=4)
    ),
    max_leaves=20,
)


def exact(value: Any) -> str:
    """Tells 1 from 1.0 from true, and [] from {}."""
    return repr(value)


class TestJson:
    @given(JSON_VALUES)
    def test_every_json_value_survives_exactly(self, value: Any) -> None:
        def take(x): ...

        parameters = Parameters(take)
        payload = parameters.encode((value,), {})
        assert exact(parameters.decode(payload)[1]["x"]) == exact(value)
        assert exact(json.loads(payload)["x"]) == exact(value)

    @given(JSON_VALUES)
    def test_every_json_value_is_an_exact_result(self, value: Any) -> None:
        assert exact(decode_any(encode(value, "result"))) == exact(value)

    @pytest.mark.parametrize(
        "value",
        [
            *([], {}, [[]], {"a": {}}, "", 0, -0.0, 12345678901234567, 2**63 - 1, 2**64 - 1),
            *(10**30, -(2**63), 0.1 + 0.2, 1e308, 5e-324, 1.0, True, None, "ä€😀\0", {"": [None]}),
        ],
        ids=repr,
    )
    async def test_awkward_values_survive_the_whole_way(self, timed: App, value: Any) -> None:
        @timed.task
        async def echo(x):
            return x

        ref = await echo.enqueue(value)
        await run_until_idle(timed)
        assert exact(arguments(await ref.get())["x"]) == exact(value)
        assert exact(await ref.result()) == exact(value)
        assert exact(await timed.job(ref.id).result()) == exact(value)


@dataclass
class Address:
    street: str
    tags: list[str] = field(default_factory=list)


class Point(msgspec.Struct):
    x: int
    y: float = 0.5


class Movie(TypedDict):
    name: str
    year: int


class Person(pydantic.BaseModel):
    name: str
    born: date
    friends: list[Person] = []


class Strict(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True, extra="forbid")

    at: datetime
    number: UUID
    pair: tuple[int, str]

    @pydantic.computed_field
    @property
    def year(self) -> int:
        return self.at.year


class Renamed(pydantic.BaseModel):
    first: int = pydantic.Field(alias="theFirst")
    second: int = pydantic.Field(validation_alias="theSecond", serialization_alias="2nd")
    inner: list[Renamed] = pydantic.Field(default=[], alias="innerOnes")


class Numbers(pydantic.RootModel[list[int]]):
    pass


class Pair(NamedTuple):
    left: int
    right: str


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Level(IntEnum):
    LOW = 1


T = TypeVar("T")


class Box(msgspec.Struct, Generic[T]):
    item: T


TYPED: list[tuple[Any, Any]] = [
    (Address, Address("Elm", ["a"])),
    (Point, Point(1)),
    (Movie, {"name": "M", "year": 1931}),
    (Person, Person(name="Ada", born=date(1815, 12, 10), friends=[])),
    (Strict, Strict(at=datetime(2030, 1, 2, tzinfo=UTC), number=UUID(int=7), pair=(1, "a"))),
    (Renamed, Renamed(theFirst=1, theSecond=2, innerOnes=[Renamed(theFirst=3, theSecond=4)])),
    (Numbers, Numbers([1, 2])),
    (Pair, Pair(1, "a")),
    (Colour, Colour.BLUE),
    (Level, Level.LOW),
    (Box[int], Box(3)),
    (datetime, datetime(2030, 1, 2, 3, 4, 5, 678901, UTC)),
    (date, date(2030, 1, 2)),
    (time, time(3, 4, 5)),
    (timedelta, timedelta(days=1, microseconds=5)),
    (UUID, UUID("12345678-1234-5678-1234-567812345678")),
    (Decimal, Decimal("0.1000000000000000000001")),
    (bytes, b"\x00\xff"),
    (set[int], {1, 2}),
    (frozenset[str], frozenset({"a"})),
    (tuple[int, str], (1, "a")),
    (dict[UUID, Point], {UUID(int=1): Point(2, 3)}),
    (list[Address | None], [Address("Elm"), None]),
    (Person | None, None),
    (int | str, "a"),
    (Literal["a", "b"], "b"),
    (Annotated[int, msgspec.Meta(ge=0)], 3),
    (Any, {"a": [1]}),
    (object, [1]),
]


class TestTypes:
    @pytest.mark.parametrize(("kind", "value"), TYPED, ids=lambda value: str(value)[:40])
    async def test_typed_values_arrive_as_what_they_were(self, kind: Any, value: Any) -> None:
        app, seen = App("memory:"), []

        async def handler(x, y=None):
            seen.append((x, y))
            return x

        handler.__annotations__ = {"x": kind, "y": list[kind] | None, "return": kind}
        task = app.task(handler)
        ref = await task.enqueue(value, y=[value])
        await run_until_idle(app)
        assert seen == [(value, [value])]
        assert type(seen[0][0]) is type(value)
        assert await ref.result() == value

    @pytest.mark.parametrize(
        ("kind", "payload"),
        [
            (Address, {"street": 3}),
            (Address, {}),
            (Point, {"x": "1"}),
            (Movie, {"name": "M"}),
            (Person, {"name": "Ada", "born": "never"}),
            (Colour, "green"),
            (UUID, "nope"),
            (Decimal, "x"),
            (datetime, "tomorrow"),
            (bytes, "***"),
            (Annotated[int, msgspec.Meta(ge=0)], -1),
        ],
        ids=str,
    )
    async def test_payload_that_does_not_fit_fails_at_once_and_is_not_run(
        self, timed: App, kind: Any, payload: Any
    ) -> None:
        ran = []

        def handler(x):
            ran.append(x)

        handler.__annotations__ = {"x": kind}
        timed.task(handler)
        (submitted,) = await timed.enqueue_many([timed.prepare("handler", {"x": payload})])
        assert submitted.ref
        assert (await run_until_idle(timed)).failed == 1
        job = await submitted.ref.get()
        assert (job.state, job.tries, ran) == (State.FAILED, 1, [])
        assert job.error
        assert job.error.type == "headrace.UndecodablePayload"
        assert "$.x" in job.error.message or "ValidationError" in job.error.message

    @pytest.mark.parametrize("payload", [{}, {"x": 1, "z": 2}])
    async def test_missing_and_unknown_arguments_fail_at_once(
        self, timed: App, payload: Any
    ) -> None:
        @timed.task
        async def handler(x: int) -> None: ...

        (submitted,) = await timed.enqueue_many([timed.prepare("handler", payload)])
        await run_until_idle(timed)
        assert submitted.ref
        with pytest.raises(JobFailed, match=r"missing required field `x`|unknown field `z`"):
            await submitted.ref.result()

    async def test_values_are_checked_against_models_before_anything_is_written(
        self, timed: App
    ) -> None:
        @timed.task
        async def take(person: Person, point: Point) -> None: ...

        for bad in ((Point(1), Point(1)), (Person(name="A", born=date.today()), {"x": "a"})):
            with pytest.raises(TypeError, match="take"):
                await take.enqueue(*bad)  # pyright: ignore
        assert await jobs(timed) == []

    def test_types_that_cannot_be_read_are_refused_at_registration(self) -> None:
        app = App("memory:")

        def mixed(x: Person | int) -> None: ...

        def returns() -> Person | int: ...

        with pytest.raises(InvalidValue, match=r"mixed: a parameter's type cannot be read"):
            app.task(mixed)
        with pytest.raises(InvalidValue, match=r"returns: what it returns cannot be read"):
            app.task(returns)

    def test_subclass_of_dict_and_int_lose_nothing(self) -> None:
        class Sub(dict): ...

        assert encode({"a": Sub(x=1)}, "x") == b'{"a":{"x":1}}'


def positional_only(a: int, b: str = "b", /) -> tuple[int, str]:
    return (a, b)


def rest(a: int = 1, *rest: int, c: int = 3) -> tuple[int, tuple[int, ...], int]:
    return (a, rest, c)


def extra(a: int, **extra: float) -> tuple[int, dict[str, float]]:
    return (a, extra)


def everything(a, b=2, /, c=3, *d, e, f=6, **g) -> tuple[Any, ...]:
    return (a, b, c, list(d), e, f, g)


SHAPES: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any], dict[str, Any]]] = [
    (positional_only, (1,), {}, {"a": 1}),
    (positional_only, (1, "x"), {}, {"a": 1, "b": "x"}),
    (rest, (), {}, {}),
    (rest, (5,), {}, {"a": 5}),
    (rest, (5, 6, 7), {"c": 8}, {"a": 5, "rest": [6, 7], "c": 8}),
    (extra, (1,), {}, {"a": 1}),
    (extra, (1,), {"x": 1.5, "y": 2.0}, {"a": 1, "x": 1.5, "y": 2.0}),
    (everything, (1,), {"e": 5}, {"a": 1, "e": 5}),
    (
        everything,
        (1, 2, 3, 4),
        {"e": 5, "z": 9},
        {"a": 1, "b": 2, "c": 3, "d": [4], "e": 5, "z": 9},
    ),
]


class TestSignatures:
    @pytest.mark.parametrize(("function", "args", "kwargs", "payload"), SHAPES)
    async def test_every_kind_of_parameter_works(
        self, function: Callable[..., Any], args: Any, kwargs: Any, payload: Any
    ) -> None:
        app = App("memory:")
        task = app.task(function)
        ref = await task.enqueue(*args, **kwargs)
        assert arguments(await ref.get()) == payload
        assert (await run_task(task, *args, **kwargs)).result == function(*args, **kwargs)

    @pytest.mark.parametrize(
        ("function", "payload", "expected"),
        [
            (rest, {"rest": [2, 3]}, (1, (2, 3), 3)),
            (everything, {"a": 1, "e": 5, "d": [7]}, (1, 2, 3, [7], 5, 6, {})),
            (everything, {"a": 1, "e": 5, "c": 9}, (1, 2, 9, [], 5, 6, {})),
        ],
    )
    def test_foreign_payload_may_leave_out_what_has_a_default(
        self, function: Callable[..., Any], payload: Any, expected: Any
    ) -> None:
        args, kwargs = Parameters(function).decode(json.dumps(payload).encode())
        assert function(*args, **kwargs) == expected

    @pytest.mark.parametrize(
        ("function", "args", "kwargs"),
        [
            (extra, (1,), {"x": "text"}),
            (everything, (1,), {"e": 5, "a": 7}),
            (rest, (1, "a"), {}),
            (positional_only, (), {"a": 1}),
        ],
    )
    def test_wrong_calls_of_every_kind_are_type_errors(
        self, function: Callable[..., Any], args: Any, kwargs: Any
    ) -> None:
        with pytest.raises(TypeError, match=function.__name__):
            Parameters(function).encode(args, kwargs)

    def test_default_is_the_worker_s_not_the_producer_s(self) -> None:
        def handler(x: int = 5) -> None: ...

        assert Parameters(handler).encode((), {}) == b"{}"

    @given(st.binary(max_size=40) | st.text(max_size=40).map(str.encode))
    def test_any_bytes_are_arguments_or_undecodable(self, junk: bytes) -> None:
        with contextlib.suppress(UndecodablePayload):
            Parameters(everything).decode(junk)
