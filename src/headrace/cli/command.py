"""What all commands share: the options that say which app, and how errors and interrupts end.

`headrace --json job list` and `headrace job list --json` are the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib
import os
import signal
import sys
import traceback
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Concatenate, ParamSpec, cast

import click
from click.exceptions import Exit, NoArgsIsHelpError

from headrace.app.app import App
from headrace.cli.output import Output, say
from headrace.cli.values import Name
from headrace.core.errors import HeadraceError

P = ParamSpec("P")

INTERRUPTED = 130
PIPE_CLOSED = 141
"""What shells show for a program that SIGINT or SIGPIPE ended."""


@dataclass(slots=True)
class Common:
    """What the shared options say."""

    url: str | None = None
    service: str | None = None
    app: str | None = None
    json: bool = False
    debug: bool = False


def _shared(name: str, **how: Any) -> click.Option:
    def remember(ctx: click.Context, _: click.Parameter, value: Any) -> None:
        if value is not None and value is not False:
            setattr(ctx.ensure_object(Common), name, value)

    # A command may have an argument of the same name.
    return click.Option(
        [f"--{name}", f"shared_{name}"], callback=remember, expose_value=False, **how
    )


def _options_for_all() -> list[click.Parameter]:
    return [
        _shared("json", is_flag=True, help="Write JSON for programs."),
        _shared("debug", is_flag=True, help="Show the traceback of an error."),
    ]


def _options_of_target() -> list[click.Parameter]:
    return [
        _shared(
            "url", metavar="URL", help="The store; $HEADRACE_URL, else sqlite:headrace.db here."
        ),
        _shared("service", type=Name("service"), metavar="NAME", help="The service; default."),
        _shared("app", metavar="MODULE:APP", help="Take store and service from this app."),
    ]


class Command(click.Command):
    """A command with the shared options; `targets` are those that say which app."""

    def __init__(self, *args: Any, targets: bool = True, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params.extend([*(_options_of_target() if targets else ()), *_options_for_all()])


class Group(click.Group):
    """A group with the shared options, whose commands have them too."""

    command_class = Command

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params.extend([*_options_of_target(), *_options_for_all()])

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order in which they were written, which is the order to read them in."""
        return list(self.commands)


class Root(Group):
    """The program itself: no exception leaves it, each ends in a line and an exit code.

    `modules` says where each command is, which has its name there.
    """

    def __init__(self, *args: Any, modules: Mapping[str, str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._modules = modules

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._modules)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.commands and cmd_name in self._modules:
            module = importlib.import_module(f"headrace.cli.{self._modules[cmd_name]}")
            self.add_command(getattr(module, cmd_name))
        return super().get_command(ctx, cmd_name)

    def main(self, *args: Any, standalone_mode: bool = True, **extra: Any) -> Any:
        if not standalone_mode:
            return super().main(*args, standalone_mode=False, **extra)
        common = cast(Common, extra.setdefault("obj", Common()))
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(AttributeError, ValueError):
                stream.reconfigure(errors="backslashreplace")  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
        sys.exit(
            _ended(lambda: super(Root, self).main(*args, standalone_mode=False, **extra), common)
        )

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            _silence()
            raise Exit(PIPE_CLOSED) from None


def _ended(work: Callable[[], Any], common: Common) -> int:
    """The exit code; what went wrong is said in one line on stderr."""
    try:
        code = _code(work, common)
        sys.stdout.flush()
    except BrokenPipeError:
        _silence()
        return PIPE_CLOSED
    return code


def _code(work: Callable[[], Any], common: Common) -> int:
    try:
        answer = work()
        return answer if isinstance(answer, int) else 0
    except NoArgsIsHelpError as error:
        error.show()
        return error.exit_code
    except click.UsageError as error:
        hint = f"; see '{error.ctx.command_path} --help'" if error.ctx else ""
        return _failed(error.format_message().rstrip(".") + hint, error.exit_code, common)
    except click.ClickException as error:
        return _failed(error.format_message(), error.exit_code, common)
    except click.Abort as error:
        interrupted = error.__cause__ is None or isinstance(error.__cause__, KeyboardInterrupt)
        return INTERRUPTED if interrupted else 1
    except HeadraceError as error:
        return _failed(str(error), 1, common)
    except BrokenPipeError:
        raise
    except Exception as error:
        text = f"{type(error).__name__}: {error}; --debug shows where"
        return _failed(text, 1, common)


def _failed(text: str, code: int, common: Common) -> int:
    if common.debug:
        traceback.print_exc()
    say(f"Error: {text}")
    return code


def _silence() -> None:
    """Whoever read our output has left: the rest of it goes nowhere."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


# Commands on an app


@dataclass(slots=True)
class Desk:
    """What a command works with: the app, and where to write."""

    app: App
    out: Output

    def now(self) -> int:
        return self.app.clock.now()


def shared() -> Common:
    """The shared options of the command that runs."""
    return click.get_current_context().ensure_object(Common)


def on_app(
    *, creates: bool = False
) -> Callable[[Callable[Concatenate[Desk, P], Awaitable[None]]], Callable[P, None]]:
    """Gives a command its app. Only one that `creates` makes a store that is not there."""

    def decorate(
        function: Callable[Concatenate[Desk, P], Awaitable[None]],
    ) -> Callable[P, None]:
        @functools.wraps(function)
        def command(*args: P.args, **kwargs: P.kwargs) -> None:
            from headrace.cli.target import shared_store

            common = shared()
            app = shared_store(common, creates)

            async def work() -> None:
                # The app opens at first use: what the command refuses itself leaves no trace.
                try:
                    await function(Desk(app, Output(common.json)), *args, **kwargs)
                finally:
                    await app.close()

            asyncio.run(work())

        return command

    return decorate


class Unasked(click.ClickException):
    """Something needs a person's word, and there is no terminal to ask at."""

    exit_code = 2


def confirm(question: str, yes: bool) -> None:
    """Asks before something that cannot be undone; without a terminal, `--yes` must say so."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise Unasked(f"{question} Nobody can be asked here; repeat it with --yes")
    if not _agreed(question):
        say("Nothing was done.")
        raise Exit(1)


def _agreed(question: str) -> bool:
    """Asks and waits. asyncio's own handler would let Ctrl-C pass while we wait here."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        sys.stderr.write(f"{question} [y/N] ")
        sys.stderr.flush()
        return sys.stdin.readline().strip().lower() in ("y", "yes")
    finally:
        signal.signal(signal.SIGINT, before)
