"""Coverage-guided search in every place where bytes from outside are read."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from headrace import HeadraceError
from tests.fuzz.guided import search
from tests.fuzz.targets import TARGETS


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.__name__)
def test_bytes_from_outside_are_read_or_refused(target: Callable[[bytes], None]) -> None:
    found = search(target, TARGETS[target], 10_000, Random(7))
    assert found.crashes == []
    assert len(found.lines) > 3, "nothing of the code was reached"


def planted(data: bytes) -> None:
    """A bug that chance alone does not find."""
    if data[:1] == b"h":
        if data[1:2] == b"d":
            if data[2:3] == b"r":
                if data[3:4] == b"c":
                    raise KeyError(data)
                return
            return
        return


def test_search_finds_what_is_hidden_behind_several_conditions() -> None:
    found = search(planted, [b"abcd"], 60_000, Random(7))
    assert [data[:4] for data, _ in found.crashes] == [b"hdrc"]


def test_search_without_guidance_does_not() -> None:
    assert search(planted, [b"abcd"], 20_000, Random(7), guided=False).crashes == []


def test_refusal_that_says_nothing_is_found() -> None:
    def mute(data: bytes) -> None:
        raise HeadraceError

    assert search(mute, [b""], 1, Random(7)).crashes
