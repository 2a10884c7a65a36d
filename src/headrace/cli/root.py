"""`headrace`: all commands put together. Each is imported when it is asked for."""

from __future__ import annotations

import click

from headrace.cli.command import Root

headrace = Root(
    "headrace",
    help="Durable background jobs: run workers, look at jobs and queues, mend what failed.",
    modules={
        "worker": "worker",
        "job": "job",
        "queue": "queues",
        "dead": "dead",
        "key": "keys",
        "workers": "observing",
        "events": "observing",
        "doctor": "doctor",
        "nats": "nats",
    },
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
