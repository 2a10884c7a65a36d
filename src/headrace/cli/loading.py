"""From `MODULE:APP` to the app, with errors that say what to write instead."""

from __future__ import annotations

import difflib
import importlib
import os
import sys
import traceback
from collections.abc import Iterable
from types import ModuleType

import click

from headrace.app.app import App


class NoApp(click.ClickException):
    """`MODULE:APP` does not lead to an app."""

    exit_code = 2


def load_app(spec: str) -> App:
    """The app that `MODULE:APP` names; `MODULE` alone stands for the only one in it."""
    module_name, colon, path = spec.partition(":")
    _check_spec(spec, module_name, bool(colon), path)
    module = _imported(module_name)
    if not path:
        return _only_app(module)
    found: object = module
    for part in path.split("."):
        if not hasattr(found, part):
            raise NoApp(f"module {module_name!r} has no {path!r}; {_instead(module)}")
        found = getattr(found, part)
    if not isinstance(found, App):
        kind = "class" if isinstance(found, type) else type(found).__name__
        raise NoApp(f"{spec} is a {kind}, not an App; {_instead(module)}")
    return found


def _check_spec(spec: str, module: str, colon: bool, path: str) -> None:
    if module.endswith(".py") or os.sep in module:
        name = os.path.relpath(module).removesuffix(".py").replace(os.sep, ".")
        raise NoApp(f"{spec!r} names a file; write its module: {name}:{path or 'app'}")
    parts = [*module.split("."), *(path.split(".") if colon else ())]
    if not all(part.isidentifier() for part in parts):
        raise NoApp(f"{spec!r} is not MODULE:APP; write for example tasks:app")


def _imported(name: str) -> ModuleType:
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    importlib.invalidate_caches()
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(f"{error.name}.")):
            raise NoApp(_not_found(name, error.name, here)) from None
        raise NoApp(
            f"{name} imports {error.name!r}, which is not installed{_place(error)}; install it,"
            " or start headrace from the environment that has it"
        ) from error
    except SyntaxError as error:
        place = f"{os.path.relpath(error.filename or name)}, line {error.lineno}"
        raise NoApp(f"{name} cannot be imported: {place}: {error.msg}") from error
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        raise NoApp(
            f"{name} cannot be imported: {text}{_place(error)}; --debug shows the traceback"
        ) from error


def _not_found(name: str, missing: str, here: str) -> str:
    """What a module that is not there is likely to be called."""
    if missing != name:
        return f"there is no module {name!r}: {missing!r} is not found, or is no package"
    known = _modules(here, name.rpartition(".")[0])
    close = difflib.get_close_matches(name, known, n=1)
    text = f"there is no module {name!r} in {here} or on Python's path"
    if close:
        return f"{text}; did you mean {close[0]!r}?"
    if known and len(known) <= 10:
        return f"{text}; modules here are {', '.join(sorted(known))}"
    return f"{text}; start headrace from your project's directory"


def _modules(here: str, package: str) -> list[str]:
    folder = os.path.join(here, *package.split(".")) if package else here
    prefix = f"{package}." if package else ""
    try:
        entries = list(os.scandir(folder))
    except OSError:
        return []
    return [
        prefix + entry.name.removesuffix(".py")
        for entry in entries
        if (entry.name.endswith(".py") and not entry.name.startswith("__"))
        or os.path.exists(os.path.join(entry.path, "__init__.py"))
    ]


def _place(error: BaseException) -> str:
    """Where in the user's code an import failed."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if "importlib" not in frame.filename and frame.filename != __file__
    ]
    if not frames:
        return ""
    return f" ({os.path.relpath(frames[-1].filename)}, line {frames[-1].lineno})"


def _apps(module: ModuleType) -> list[str]:
    """The names of the apps in a module, one for each app."""
    names: dict[int, str] = {}
    for name, value in vars(module).items():
        if isinstance(value, App) and not name.startswith("__"):
            names.setdefault(id(value), name)
    return list(names.values())


def _only_app(module: ModuleType) -> App:
    names = _apps(module)
    if len(names) != 1:
        many = f"has {len(names)} apps" if names else "has no App"
        raise NoApp(f"module {module.__name__!r} {many}; {_instead(module)}")
    return getattr(module, names[0])


def _instead(module: ModuleType) -> str:
    names = [f"{module.__name__}:{name}" for name in _apps(module)]
    if not names:
        return 'make one there: app = App("sqlite:jobs.db")'
    return f"did you mean {_listed(names)}?"


def _listed(names: Iterable[str]) -> str:
    *most, last = names
    return f"{', '.join(most)} or {last}" if most else last
