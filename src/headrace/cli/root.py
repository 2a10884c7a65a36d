"""`headrace`: all commands put together."""

from __future__ import annotations

import click

from headrace.cli import job_actions, job_view
from headrace.cli.command import Root
from headrace.cli.dead import dead
from headrace.cli.doctor import doctor
from headrace.cli.jobs import job
from headrace.cli.keys import key
from headrace.cli.nats import nats
from headrace.cli.observing import events, workers
from headrace.cli.queues import queue
from headrace.cli.worker import worker

__all__ = ["headrace", "job_actions", "job_view"]

headrace = Root(
    "headrace",
    help="Durable background jobs: run workers, look at jobs and queues, mend what failed.",
    commands=[worker, job, queue, dead, key, workers, events, doctor, nats],
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def _version(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from headrace import __version__

        click.echo(f"headrace {__version__}")
        ctx.exit()


headrace.params.append(
    click.Option(
        ["--version"],
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=_version,
        help="Show the version.",
    )
)
