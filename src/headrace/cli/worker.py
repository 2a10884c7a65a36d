"""`headrace worker MODULE:APP`: runs jobs until it is told to stop."""

from __future__ import annotations

import logging
import os
import sys
from typing import TypedDict, Unpack

import click
import msgspec
from click.exceptions import Exit

from headrace.app.app import App
from headrace.app.supervisor import PROCESS, Plan, Supervisor, hold_lifeline
from headrace.app.workers import WorkerChoices, run_worker, worker_options
from headrace.cli import logs
from headrace.cli.command import Command, Common, shared
from headrace.cli.loading import load_app
from headrace.cli.narrate import narrator
from headrace.cli.output import say
from headrace.cli.reload import Watcher
from headrace.cli.text import plural
from headrace.cli.values import COUNT, Duration, Share
from headrace.core.errors import InvalidValue
from headrace.runtime.worker import Worker, WorkerOptions

log = logging.getLogger("headrace.worker")

RELOAD_GRACE = 2.0
"""With --reload, a job that takes longer than this is given back for the new code to run."""


class Choices(TypedDict):
    """The options of the command."""

    app: str
    queues: tuple[tuple[str, int | None], ...]
    strict: bool
    concurrency: int | None
    threads: int | None
    children: int | None
    lease: float | None
    grace: float | None
    processes: int
    reload: bool
    log_level: str


@click.command("worker", cls=Command, targets=False)
@click.argument("app", metavar="MODULE:APP")
@click.option(
    "--queue",
    "queues",
    type=Share(),
    multiple=True,
    help="A queue to serve, with its weight; again for more. All that the tasks name, else.",
)
@click.option("--strict", is_flag=True, help="Serve the queues in the given order, not by weight.")
@click.option("--concurrency", type=COUNT, help="Jobs at a time; 100.")
@click.option("--threads", type=COUNT, help="Threads for sync tasks; as concurrency.")
@click.option("--children", type=COUNT, help="Processes for cpu tasks; one per core.")
@click.option("--lease", type=Duration(), help="How long a killed worker keeps its jobs; 30s.")
@click.option("--grace", type=Duration(), help="What running jobs get to finish; 25s.")
@click.option("--processes", type=COUNT, default=1, help="Worker processes; 1.")
@click.option("--reload", is_flag=True, help="Restart when a .py file here changes.")
@click.option("--log-level", type=click.Choice(logs.LEVELS), default="info", help="info.")
def worker(**chosen: Unpack[Choices]) -> None:
    """Run jobs of an app.

    \b
    headrace worker tasks:app
    headrace worker tasks:app --queue mail=3 --queue reports --processes 4

    The first SIGINT or SIGTERM lets running jobs finish; a second leaves at once.
    """
    common = shared()
    for name in ("url", "service", "app"):
        if getattr(common, name) is not None:
            raise click.UsageError(
                f"--{name} is not for workers: the app in MODULE:APP says its store and service"
            )
    options = _options(chosen)
    logs.set_up(chosen["log_level"], common.json)
    if chosen["processes"] > 1 or chosen["reload"] or os.getpid() == 1:
        raise Exit(_supervise(chosen, options, common))
    hold_lifeline()
    _work(chosen["app"], options, chosen, common)


def _options(chosen: Choices) -> WorkerOptions:
    """Everything but the queues, checked before anything is imported or started."""
    options: WorkerChoices = {"strict": chosen["strict"]}
    for name in ("concurrency", "threads", "children", "lease", "grace"):
        if (value := chosen[name]) is not None:
            options[name] = value  # pyright: ignore[reportGeneralTypeIssues]
    names = [name for name, _ in chosen["queues"]]
    if len(set(names)) != len(names):
        raise click.UsageError("a queue is named twice; name each --queue once")
    if chosen["strict"] and any(weight for _, weight in chosen["queues"]):
        raise click.UsageError("--strict serves queues in order; leave out their weights")
    if chosen["reload"]:
        options.setdefault("grace", RELOAD_GRACE)
    try:
        return worker_options(options)
    except InvalidValue as error:
        raise click.UsageError(f"--{error}") from None


def _work(spec: str, options: WorkerOptions, chosen: Choices, common: Common) -> None:
    app = load_app(spec)
    options = _with_queues(app, options, chosen["queues"])
    if not common.json and os.environ.get(PROCESS, "1") == "1":
        for line in banner(spec, app, options):
            say_line(line)
    if PROCESS in os.environ and app.url.startswith("memory:"):
        log.warning("%s is not shared: each process sees only its own jobs", app.url)
    app.use(narrator)
    left = run_worker(app, options, _ready)
    if left is not None:
        raise Exit(128 + left)
    log.info("stopped in order")


def _with_queues(
    app: App, options: WorkerOptions, queues: tuple[tuple[str, int | None], ...]
) -> WorkerOptions:
    weighted = any(weight is not None for _, weight in queues)
    names = [name for name, _ in queues] or app.task_queues
    chosen = {name: weight or 1 for name, weight in queues} if weighted else names
    return msgspec.structs.replace(options, queues=chosen)


def _ready(worker: Worker) -> None:
    log.info("worker %s is ready, pid %d", worker.id, os.getpid())


def banner(spec: str, app: App, options: WorkerOptions) -> list[str]:
    """What is about to run, for people."""
    from headrace import __version__

    queues = options.queues
    shown = (
        [f"{name}={weight}" for name, weight in queues.items()]
        if isinstance(queues, dict)
        else list(queues)
    )
    types = [type or '""' for type in app.types]
    more = f" and {len(types) - 12} more" if len(types) > 12 else ""
    threads = options.threads or options.concurrency
    children = options.children or os.cpu_count() or 1
    rows = [
        ("app", spec),
        ("service", app.service),
        ("engine", app.url),
        ("queues", ", ".join(shown) + (" (strict)" if options.strict else "")),
        ("types", ", ".join(types[:12]) + more if types else "none: every job will be refused"),
        (
            "concurrency",
            f"{plural(options.concurrency, 'job')}, {plural(threads, 'thread')},"
            f" {plural(children, 'child process', 'child processes')}",
        ),
        ("pid", str(os.getpid())),
    ]
    return [f"headrace {__version__}", *(f"  {name:<12} {value}" for name, value in rows), ""]


def say_line(line: str) -> None:
    """A line of the banner, spaces kept."""
    sys.stderr.write(line + "\n")


# Several processes, reloading, PID 1


def _supervise(chosen: Choices, options: WorkerOptions, common: Common) -> int:
    command = (sys.executable, "-m", "headrace", *_arguments(chosen, options, common))
    plan = Plan(command=command, processes=chosen["processes"], grace=options.grace)
    watch = Watcher(os.getcwd()) if chosen["reload"] else None
    if not common.json:
        extra = ", restarted when a .py file here changes" if watch else ""
        number = plural(plan.processes, "process", "processes")
        say(f"headrace worker {chosen['app']}: {number}{extra}, supervisor pid {os.getpid()}")
    return Supervisor(plan, watch).run()


def _arguments(chosen: Choices, options: WorkerOptions, common: Common) -> list[str]:
    """The command line of one worker process."""
    arguments = ["worker", chosen["app"], "--log-level", chosen["log_level"]]
    for name, weight in chosen["queues"]:
        arguments += ["--queue", name if weight is None else f"{name}={weight}"]
    for option in ("concurrency", "threads", "children"):
        if (value := chosen[option]) is not None:
            arguments += [f"--{option}", str(value)]
    arguments += ["--lease", f"{options.lease}ms", "--grace", f"{options.grace:f}s"]
    for flag, given in (("strict", chosen["strict"]), *_flags(common)):
        if given:
            arguments.append(f"--{flag}")
    return arguments


def _flags(common: Common) -> list[tuple[str, bool]]:
    return [("json", common.json), ("debug", common.debug)]
