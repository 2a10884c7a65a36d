"""The command line: everything an operator does. `headrace --help` lists it.

click is imported when a command runs, rich when it writes to a terminal.
"""

from __future__ import annotations


def main() -> None:
    """The entry of the console script."""
    from headrace.cli.root import headrace

    headrace.main(prog_name="headrace")
