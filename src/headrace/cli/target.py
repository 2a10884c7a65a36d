"""Which app a command is about: by URL and service, or from code."""

from __future__ import annotations

import os

import click

from headrace.app.app import App
from headrace.cli.command import Common
from headrace.cli.loading import load_app
from headrace.core.errors import EngineUnavailable, InvalidValue


def chosen_app(common: Common) -> App:
    """The app that the shared options name, not yet open."""
    if common.app is None:
        return App(common.url, service=common.service or "default")
    for name in ("url", "service"):
        if getattr(common, name) is not None:
            raise click.UsageError(f"--app says which {name} already; leave out --{name}")
    return load_app(common.app)


def shared_store(common: Common, creates: bool) -> App:
    """The app, once it is sure that its store can be seen from this process."""
    app = chosen_app(common)
    if app.url.startswith("memory:"):
        raise InvalidValue(
            "url", f"{app.url} lives inside one process and cannot be seen from here; use sqlite:"
        )
    if not creates and (path := missing_file(app)):
        raise EngineUnavailable(
            f"{path} does not exist; name the store with --url or $HEADRACE_URL, or take it from"
            " the app with --app"
        )
    return app


def missing_file(app: App) -> str | None:
    """The file that the app's URL names, if it is not there."""
    scheme, _, path = app.url.partition(":")
    path = path.partition("?")[0]
    return path if scheme == "sqlite" and not os.path.exists(path) else None
