"""The conformance suite itself."""

from __future__ import annotations

from collections import Counter

from headrace.testing.conformance import EngineConformance


def test_no_test_of_the_suite_hides_another() -> None:
    names = Counter(
        name
        for chapter in EngineConformance.__bases__
        for name in vars(chapter)
        if name.startswith("test_")
    )
    assert [name for name, count in names.items() if count > 1] == []
    assert len(names) > 300
