"""What is public: `__all__`, the error tree, and what importing costs."""

from __future__ import annotations

import inspect
import subprocess
import sys
import types

import pytest

import headrace
import headrace.testing
from headrace.core import errors


@pytest.mark.parametrize("module", [headrace, headrace.testing], ids=lambda module: module.__name__)
def test_everything_named_is_there_once_and_in_order(module: types.ModuleType) -> None:
    assert list(module.__all__) == sorted(set(module.__all__))
    for name in module.__all__:
        assert getattr(module, name) is not None
    with pytest.raises(AttributeError):
        _ = module.nothing_of_the_kind


def test_everything_imported_is_named() -> None:
    """A name that is there without being named would be public by accident."""
    public = {
        name
        for name, value in vars(headrace).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType)
    }
    only_for_workers = {"Worker", "WorkerOptions"}  # imported when they are asked for
    assert public == set(headrace.__all__) - only_for_workers


def test_every_error_is_public_and_in_the_tree() -> None:
    kinds = {
        name: kind
        for name, kind in vars(errors).items()
        if inspect.isclass(kind) and issubclass(kind, errors.HeadraceError)
    }
    assert set(kinds) - set(headrace.__all__) == set()
    assert errors.__doc__
    for name in kinds:
        assert name in errors.__doc__, f"{name} is missing in the tree of the docstring"


def test_signatures_of_public_functions_are_annotated() -> None:
    for name in headrace.__all__:
        value = getattr(headrace, name)
        if inspect.isfunction(value):
            assert value.__annotations__.get("return") is not None, name


def test_importing_brings_nothing_of_the_tools_along() -> None:
    code = (
        "import sys, headrace, headrace.testing.plugin\n"
        "heavy = {'hypothesis', 'click', 'rich', 'pydantic', 'apsw', 'uvloop', 'starlette'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
        "print('headrace.testing.kit' in sys.modules)"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert answer.stdout == "[]\nFalse\n", answer.stderr
