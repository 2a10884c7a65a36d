"""Concurrency keys: templates, hashes, parking and depth."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import InvalidValue
from headrace.core.keys import Depth, depth, full_reason, hash_of, name_of, parks, resolve
from headrace.core.model import WhenFull

PAYLOAD = {
    "tenant": "zendesk",
    "n": 42,
    "f": 1.5,
    "flag": True,
    "deep": {"list": [{"id": "x"}, "y"]},
    "a/b": 1,
    "m~n": 2,
    "~1": 3,
    "": 4,
    "null": None,
    "list": [1, 2],
}


def test_hash_is_trellis_s_vector() -> None:
    segments = ("tenant", "zendesk", 42, True)
    expected = "e8c14138e88d2132a5a2ed2c28ecd649a7d68edbe6a123fe4754c696663ca5c1"
    assert hash_of(segments) == expected
    assert resolve(["tenant", "/tenant", "/n", "/flag"], PAYLOAD) == segments
    assert name_of(segments) == "tenant:zendesk:42:true"


@pytest.mark.parametrize(
    ("pointer", "value"),
    [
        ("/tenant", "zendesk"),
        ("/f", 1.5),
        ("/deep/list/0/id", "x"),
        ("/deep/list/1", "y"),
        ("/a~1b", 1),
        ("/m~0n", 2),
        ("/~01", 3),
        ("/", 4),
        ("constant", "constant"),
        ("", ""),
    ],
)
def test_pointer_resolves(pointer: str, value: object) -> None:
    assert resolve([pointer], PAYLOAD) == (value,)


@pytest.mark.parametrize(
    "pointer",
    [
        "/none",
        "/deep",
        "/list",
        "/null",
        "/list/2",
        "/list/-1",
        "/list/01",
        "/list/ 1",
        "/list/-",
        "/list/\u0661",
        "/tenant/x",
        "/n/0",
    ],
)
def test_pointer_to_nothing_or_to_no_scalar_is_refused(pointer: str) -> None:
    with pytest.raises(InvalidValue, match=r"^key: ") as caught:
        resolve(["tenant", pointer], PAYLOAD)
    assert repr(pointer) in str(caught.value)


def test_empty_template_is_refused() -> None:
    with pytest.raises(InvalidValue, match=r"^key: "):
        resolve([], PAYLOAD)


def test_types_of_segments_are_told_apart() -> None:
    segments = [(1,), ("1",), (True,), ("true",), (1.5,), ("1", ""), ("a", "b"), ("a:b",)]
    assert len({hash_of(one) for one in segments}) == len(segments)


SCALARS = st.text() | st.integers(-(2**53), 2**53) | st.booleans()


@given(st.lists(SCALARS, min_size=1), st.lists(SCALARS, min_size=1))
def test_equal_hashes_mean_equal_segments(one: list[object], other: list[object]) -> None:
    typed_one, typed_other = ([(type(s), s) for s in segments] for segments in (one, other))
    same = hash_of(one) == hash_of(other)  # type: ignore[arg-type]
    assert same == (typed_one == typed_other)


@given(st.integers(0, 9), st.integers(0, 9), st.integers(1, 9))
def test_a_job_parks_exactly_when_running_and_ready_ones_fill_the_key(
    active: int, ahead: int, max_active: int
) -> None:
    assert parks(active, ahead, max_active) == (active + ahead >= max_active)


def test_one_stands_in_line_while_a_slot_is_free() -> None:
    assert not parks(active=2, ahead=0, max_active=3)
    assert parks(active=2, ahead=1, max_active=3)


@given(
    active=st.integers(0, 5),
    queued=st.integers(0, 9),
    max_active=st.integers(1, 4),
    max_queued=st.none() | st.integers(0, 5),
    when_full=st.sampled_from(WhenFull),
)
def test_depth_follows_trellis_s_formula(
    active: int, queued: int, max_active: int, max_queued: int | None, when_full: WhenFull
) -> None:
    verdict = depth(active, queued, max_active, max_queued, when_full)
    limit = None if max_queued is None else max_queued + max(0, max_active - active)
    if limit is None or queued < limit:
        assert verdict is Depth.ACCEPT
    elif when_full is WhenFull.COALESCE:
        assert verdict is Depth.COALESCE
    elif when_full is WhenFull.REPLACE_OLDEST and queued:
        assert verdict is Depth.REPLACE
    else:
        assert verdict is Depth.REJECT


def test_reason_names_the_running_ones_first() -> None:
    assert full_reason(active=2, max_active=2) == "active-limit"
    assert full_reason(active=1, max_active=2) == "queue-depth"
