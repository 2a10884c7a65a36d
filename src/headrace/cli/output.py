"""Where commands write: tables and lines for people, JSON for programs.

On a terminal rich draws them; elsewhere they are plain text, aligned, with nothing cut off.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from headrace.cli.text import STATE_STYLES, one_line, visible

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console


class Styled(NamedTuple):
    """Text with a style, which only a terminal shows."""

    text: str
    style: str


Cell = str | Styled


def state_cell(shown: str) -> Cell:
    """A state in its colour."""
    return Styled(shown, STATE_STYLES[shown]) if shown in STATE_STYLES else shown


class Column(NamedTuple):
    """A column of a table. What is `whole` is never wrapped or cut: ids, names, times."""

    title: str
    whole: bool = True
    right: bool = False


class Output:
    """The one way out for what a command has to say."""

    def __init__(self, json: bool) -> None:
        self.json = json
        self._console: Console | None = None

    @property
    def fancy(self) -> bool:
        """Whether a person is looking through a terminal."""
        return sys.stdout.isatty() or bool(os.environ.get("FORCE_COLOR"))

    def console(self) -> Console:
        """rich's way to the terminal."""
        if self._console is None:
            from rich.console import Console

            self._console = Console(
                file=sys.stdout, highlight=False, markup=False, emoji=False, soft_wrap=True
            )
        return self._console

    # For people

    def line(self, *parts: Cell) -> None:
        """One line, or several where the text has line breaks."""
        if not self.fancy:
            write("".join(visible(_text(part)) for part in parts) + "\n")
            return
        from rich.text import Text

        text = Text()
        for part in parts:
            text.append(visible(_text(part)), _style(part) or None)
        self.console().print(text)

    def title(self, text: str) -> None:
        """A heading within a longer view."""
        self.line()
        self.line(Styled(text, "bold"))

    def fields(self, rows: Sequence[tuple[str, Cell]]) -> None:
        """Names and values, aligned."""
        width = max((len(name) for name, _ in rows), default=0)
        for name, value in rows:
            self.line("  ", Styled(name.ljust(width), "dim"), "  ", value)

    def table(
        self, columns: Sequence[Column], rows: Sequence[Sequence[Cell]], header: bool = True
    ) -> None:
        """A table, or with no header the next part of one; cells are single lines."""
        shown = [[_cell(cell) for cell in row] for row in rows]
        if self.fancy:
            self._drawn(columns, shown, header)
        else:
            self._aligned(columns, shown, header)

    def _aligned(
        self, columns: Sequence[Column], rows: Sequence[Sequence[Cell]], header: bool
    ) -> None:
        lines = [[column.title for column in columns]] if header else []
        lines += [[_text(cell) for cell in row] for row in rows]
        widths = [max(len(line[place]) for line in lines) for place in range(len(columns))]
        for line in lines:
            padded = (
                text.rjust(width) if column.right else text.ljust(width)
                for column, text, width in zip(columns, line, widths, strict=True)
            )
            write("  ".join(padded).rstrip() + "\n")

    def _drawn(
        self, columns: Sequence[Column], rows: Sequence[Sequence[Cell]], header: bool
    ) -> None:
        from rich.table import Table
        from rich.text import Text

        table = Table(
            box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold", show_header=header
        )
        needed = 0
        for place, column in enumerate(columns):
            longest = max((len(_text(row[place])) for row in rows), default=0)
            least = longest if column.whole else min(longest, 20)
            needed += max(least, len(column.title)) + 2
            table.add_column(
                column.title,
                justify="right" if column.right else "left",
                no_wrap=column.whole,
                min_width=least,
                overflow="fold",
            )
        for row in rows:
            table.add_row(*(Text(_text(cell), _style(cell)) for cell in row))
        # A terminal that is too narrow wraps the lines: better than an id cut short.
        width = max(needed, self.console().width)
        self.console().print(table, soft_wrap=False, width=width, crop=False)

    @contextmanager
    def parts(
        self, columns: Sequence[Column], size: int
    ) -> Generator[Callable[[Any], None], None, None]:
        """A table that is written as its rows come, so many at a time."""
        rows: list[Sequence[Cell]] = []
        header = True

        def flush() -> None:
            nonlocal header
            if rows:
                self.table(columns, rows, header)
                rows.clear()
                header = False

        def add(row: Sequence[Cell]) -> None:
            rows.append(row)
            if len(rows) == size:
                flush()

        yield add
        flush()

    @contextmanager
    def bar(self, title: str, total: int) -> Generator[Callable[[int], None], None, None]:
        """A progress bar for long work, on a terminal only; call it with how many were done."""
        if not sys.stderr.isatty() or total < 1000:
            yield lambda done: None
            return
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
            task = progress.add_task(title, total=total)
            yield lambda done: progress.update(task, advance=done)

    def note(self, text: str) -> None:
        """Something beside the answer: it goes to stderr, and programs are spared it."""
        if not self.json:
            say(text)

    # For programs

    def value(self, value: Any) -> None:
        """One JSON value, with line breaks."""
        write(msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n")

    def record(self, value: Any) -> None:
        """One JSON value on one line, at once: for streams."""
        write(msgspec.json.encode(value).decode() + "\n")
        self.flush()

    def flush(self) -> None:
        """What was written is seen now: for what is followed live."""
        sys.stdout.flush()

    @contextmanager
    def array(self) -> Generator[Callable[[Any], None], None, None]:
        """A JSON array whose items are written as they come, one per line."""
        count = 0

        def add(item: Any) -> None:
            nonlocal count
            write(("[\n" if count == 0 else ",\n") + msgspec.json.encode(item).decode())
            count += 1

        yield add
        write("\n]\n" if count else "[]\n")


def write(text: str) -> None:
    """To stdout, as it is now."""
    sys.stdout.write(text)


def say(text: str) -> None:
    """One line on stderr."""
    sys.stderr.write(visible(one_line(text)) + "\n")
    sys.stderr.flush()


def _text(cell: Cell) -> str:
    return cell.text if isinstance(cell, Styled) else cell


def _style(cell: Cell) -> str:
    return cell.style if isinstance(cell, Styled) else ""


def _cell(cell: Cell) -> Cell:
    text = visible(one_line(_text(cell)))
    return Styled(text, cell.style) if isinstance(cell, Styled) else text
