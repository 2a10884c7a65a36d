"""Names, ids, the job's place in line, what people see of it, and search."""

from __future__ import annotations

import re
from collections import Counter

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import InvalidValue
from headrace.core.ids import NOISE, ulid, ulid_of_noise
from headrace.core.model import Filter, Stage, TryError
from headrace.core.names import check_name
from headrace.core.search import matches, parse_cursor
from headrace.core.states import State
from tests.core.jobs import CONTEXT, NOW, job, new, running

INSTANTS = st.integers(0, 2**48 - 1)
CHANCES = st.integers(0, 2**80 - 1)


@given(INSTANTS, CHANCES)
def test_ulid_has_26_characters_of_its_alphabet(now: int, chance: int) -> None:
    assert re.fullmatch("[0-7][0-9A-HJKMNP-TV-Z]{25}", ulid(now, chance))
    assert check_name("id", ulid(now, chance))


@given(INSTANTS, CHANCES, INSTANTS, CHANCES)
def test_ulids_sort_by_time_then_chance(a: int, x: int, b: int, y: int) -> None:
    assert (ulid(a, x) < ulid(b, y)) == ((a, x) < (b, y))


@given(INSTANTS, st.binary(min_size=NOISE, max_size=NOISE))
def test_ulid_of_noise_is_a_ulid_of_the_same_time(now: int, noise: bytes) -> None:
    assert re.fullmatch("[0-7][0-9A-HJKMNP-TV-Z]{25}", ulid_of_noise(now, noise))
    assert ulid_of_noise(now, noise)[:10] == ulid(now, 0)[:10]


def test_every_letter_of_a_ulid_of_noise_is_as_likely_as_any_other() -> None:
    letters = Counter("".join(ulid_of_noise(0, bytes([n] * NOISE))[10:] for n in range(256)))
    assert set(letters.values()) == {8 * NOISE}
    assert len(letters) == 32


def test_ulid_of_the_specification() -> None:
    assert ulid(1469918176385, 0) == "01ARYZ6S410000000000000000"


@pytest.mark.parametrize("name", ["a", "email:new", "A_b-9", "x" * 128, "ids", "-", "0"])
def test_legal_name_is_returned(name: str) -> None:
    assert check_name("type", name) == name


@pytest.mark.parametrize(
    "name",
    ["", "x" * 129, "a b", "a.b", "a/b", "ż", "a\n", "\n", "a\x00", None, 5, b"a", "x" * 999],
)
def test_illegal_name_is_refused_by_its_field(name: object) -> None:
    with pytest.raises(InvalidValue, match=r"^queue: ") as caught:
        check_name("queue", name)
    assert caught.value.field == "queue"
    assert len(str(caught.value)) < 300


@given(st.text(max_size=140))
def test_names_are_exactly_the_documented_pattern(name: str) -> None:
    legal = re.fullmatch("[A-Za-z0-9_:-]{1,128}", name, re.ASCII) is not None
    try:
        check_name("id", name)
    except InvalidValue:
        assert not legal
    else:
        assert legal


TIMES = st.integers(0, 253_402_300_799_999)


@given(TIMES, st.integers(0, 2**40), st.booleans())
def test_position_fits_64_bits(run_at: int, seq: int, lifo: bool) -> None:
    place = job(spec=new(lifo=lifo), run_at=run_at, seq=seq).position
    assert -(2**63) <= place < 2**63


@given(st.integers(0, 2**42), st.integers(0, 2**42), st.integers(0, 2**20 - 1))
def test_who_is_due_first_stands_first_and_lifo_is_its_mirror(a: int, b: int, seq: int) -> None:
    first, second = job(run_at=a, seq=seq), job(run_at=b, seq=seq)
    assert (first.position < second.position) == (a < b)
    lifo = new(lifo=True)
    assert job(spec=lifo, run_at=a, seq=seq).position == -first.position


def test_who_came_first_stands_first_within_a_millisecond() -> None:
    assert job(seq=3).position < job(seq=4).position


@pytest.mark.parametrize(
    ("record", "paused", "shown"),
    [
        (job(), False, "pending"),
        (job(run_at=NOW + 1), False, "scheduled"),
        (job(run_at=NOW + 1), True, "scheduled"),
        (job(stage=Stage.PARKED), False, "parked"),
        (job(), True, "paused"),
        (job(state=State.RETRY, run_at=NOW + 1), False, "retry"),
        (running(), True, "active"),
        (running(detached=True), False, "detached"),
        (job(state=State.BLOCKED), True, "blocked"),
        (job(state=State.DEAD), False, "dead"),
    ],
)
def test_state_as_people_see_it(record: object, paused: bool, shown: str) -> None:
    assert record.shown(NOW, paused) == shown  # type: ignore[attr-defined]


def test_trace_id_is_taken_from_the_traceparent() -> None:
    assert CONTEXT.trace_id == "0af7651916cd43dd8448eb211c80319c"


FOUND = job(
    spec=new(
        "abc",
        payload=msgspec.Raw('{"t":"needle \\"q\\" ż"}'.encode()),
        tags=("red",),
        depends_on=("p",),
        created_at=NOW,
    ),
    state=State.RETRY,
    worker="w1",
    lease_until=NOW + 5,
    expires_at=NOW + 9,
    error=TryError(NOW, 1, "LookupError", "bad address"),
)


@pytest.mark.parametrize(
    ("yes", "no"),
    [
        (Filter(ids=("x", "abc")), Filter(ids=("x",))),
        (Filter(service="svc"), Filter(service="other")),
        (Filter(queue="q"), Filter(queue="r")),
        (Filter(type="work"), Filter(type="wor")),
        (Filter(states=frozenset({State.RETRY})), Filter(states=frozenset({State.DEAD}))),
        (Filter(), Filter(key="k")),
        (Filter(tag="red"), Filter(tag="re")),
        (Filter(text="needle"), Filter(text="pin")),
        (Filter(text='"q"'), Filter(text="Q")),
        (Filter(text="ż"), Filter(text="\\u017c")),
        (Filter(text="address"), Filter(text="addresses")),
        (Filter(text="Lookup"), Filter(text="lookup")),
        (Filter(text="bc"), Filter(text="abcd")),
        (Filter(created_from=NOW), Filter(created_from=NOW + 1)),
        (Filter(created_until=NOW + 1), Filter(created_until=NOW)),
        (Filter(expires_until=NOW + 9), Filter(expires_until=NOW + 8)),
        (Filter(lease_until=NOW + 5), Filter(lease_until=NOW + 4)),
        (Filter(worker="w1"), Filter(worker="w2")),
        (Filter(parent="p"), Filter(parent="q")),
        (Filter(queue="q", tag="red"), Filter(queue="q", tag="blue")),
    ],
)
def test_filter_means_these_and_not_those(yes: Filter, no: Filter) -> None:
    assert matches(FOUND, yes)
    assert not matches(FOUND, no)


def test_cursor_is_a_number_or_nothing() -> None:
    assert parse_cursor(None) is None
    assert parse_cursor("0042") == 42


@pytest.mark.parametrize("cursor", ["", "-1", "1.0", "x", "²", "\u0661", " 1", "+1"])
def test_any_other_cursor_is_refused(cursor: str) -> None:
    with pytest.raises(InvalidValue, match=r"^cursor: "):
        parse_cursor(cursor)
