"""`MODULE:APP`: what it finds, and what it says when it does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.cli.loading import NoApp, load_app


def _message(spec: str) -> str:
    with pytest.raises(NoApp) as caught:
        load_app(spec)
    assert caught.value.exit_code == 2
    assert "\n" not in caught.value.message
    return caught.value.message


def test_app_is_found_by_name_and_alone_in_its_module(folder: Path) -> None:
    assert load_app("tasks:app") is load_app("tasks")


def test_app_is_found_in_a_package_and_inside_an_object(folder: Path) -> None:
    (folder / "shop").mkdir()
    (folder / "shop" / "__init__.py").write_text("")
    (folder / "shop" / "jobs.py").write_text(
        "from headrace import App\nclass box:\n    app = App('memory:')\n"
    )
    assert load_app("shop.jobs:box.app").url == "memory:"


def test_an_app_imported_under_two_names_is_one(folder: Path) -> None:
    (folder / "main.py").write_text("from tasks import app\nqueue = app\n")
    assert load_app("main") is load_app("tasks:app")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            "task:app",
            "there is no module 'task' in {here} or on Python's path; did you mean 'tasks'?",
        ),
        ("zzz:app", "modules here are tasks"),
        ("no.such:app", "there is no module 'no.such': 'no' is not found, or is no package"),
        ("tasks:ap", "module 'tasks' has no 'ap'; did you mean tasks:app?"),
        ("tasks:hello", "tasks:hello is a Task, not an App; did you mean tasks:app?"),
        ("tasks:App", "tasks:App is a class, not an App; did you mean tasks:app?"),
        ("tasks.py:app", "'tasks.py:app' names a file; write its module: tasks:app"),
        ("./shop/jobs.py", "'./shop/jobs.py' names a file; write its module: shop.jobs:app"),
        ("tasks app", "'tasks app' is not MODULE:APP; write for example tasks:app"),
        ("tasks:", "'tasks:' is not MODULE:APP"),
        ("json", "module 'json' has no App; make one there: app = App("),
    ],
)
def test_what_leads_to_no_app_is_told_what_to_write(folder: Path, spec: str, message: str) -> None:
    assert message.format(here=folder) in _message(spec)


def test_several_apps_are_named(folder: Path) -> None:
    (folder / "two.py").write_text(
        "from headrace import App\na, b = App('memory:'), App('memory:')\n"
    )
    assert _message("two") == "module 'two' has 2 apps; did you mean two:a or two:b?"


def test_a_missing_package_is_not_taken_for_the_module_itself(folder: Path) -> None:
    (folder / "needs.py").write_text("\nimport no_such_package\n")
    text = _message("needs:app")
    assert "needs imports 'no_such_package', which is not installed (needs.py, line 2)" in text


def test_an_error_while_importing_names_the_line(folder: Path) -> None:
    (folder / "broken.py").write_text("x = 1\ny = 1 / 0\n")
    text = _message("broken:app")
    assert "ZeroDivisionError: division by zero (broken.py, line 2)" in text


def test_a_syntax_error_names_the_line(folder: Path) -> None:
    (folder / "broken.py").write_text("x = 1\ny = = 2\n")
    assert "broken.py, line 2: invalid syntax" in _message("broken:app")
