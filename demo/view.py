"""What one sees: a live screen in a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from board import COLUMNS, DEAD, DONE, REPLACED, RETRY, RUNNING, TOGETHER, WAITING, Board, listed
from crew import Crew, WorkerProcess
from rich import box
from rich.console import Console, Group, RenderableType
from rich.layout import Layout
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

MOODS = {"good": "green", "bad": "yellow", "plain": "default"}
STYLES = {
    WAITING: "default",
    RUNNING: "cyan",
    RETRY: "yellow",
    DONE: "green",
    DEAD: "red",
    REPLACED: "dim",
}
NARROW = {WAITING: "wait", RUNNING: "run", REPLACED: "skip"}
EVERY = 2.0
"""Seconds between two lines of counts where there is no terminal."""


class PlainView:
    """Lines with a time, no control characters."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._began = time.monotonic()
        self._counted, self._told = 0.0, 0

    @contextmanager
    def shown(self) -> Iterator[None]:
        yield

    def say(self, text: str, *, alarm: bool = False) -> None:
        self._line(f"{'!' if alarm else '*'} {text}")

    def refresh(self) -> None:
        spent = time.monotonic() - self._began
        for news in self._board.news[self._told :]:
            if news.at > spent - TOGETHER:
                break  # more may be added to it
            self._line(f"  {news.text}")
            self._told += 1
        if spent - self._counted >= EVERY:
            self._counted = spent
            counts = {column: self._board.total(column) for column in COLUMNS}
            self._line("  " + ", ".join(f"{n} {column}" for column, n in counts.items() if n))

    def _line(self, text: str) -> None:
        print(f"{time.monotonic() - self._began:6.1f} s {text}", flush=True)


class LiveView:
    """One screen: the caption, queues and workers, tenants and the latest news."""

    def __init__(self, board: Board, crew: Crew, console: Console) -> None:
        self._board, self._crew, self._console = board, crew, console
        self._began = time.monotonic()
        self._caption, self._alarm = "", False
        rounded = console.encoding.startswith("utf")
        self._box = box.ROUNDED if rounded else box.ASCII
        self._full, self._empty = ("━", "─") if rounded else ("#", "-")
        self._layout = Layout()
        self._layout.split_column(
            Layout(name="title", size=1),
            Layout(name="caption", size=3),
            Layout(name="upper", size=9),
            Layout(name="lower"),
            Layout(name="foot", size=1),
        )
        self._layout["upper"].split_row(
            Layout(name="queues"), Layout(name="workers", ratio=1, minimum_size=24)
        )
        self._layout["lower"].split_row(
            Layout(name="tenants"), Layout(name="news", ratio=1, minimum_size=24)
        )
        self._live = Live(
            console=console, screen=True, auto_refresh=False, get_renderable=self._render
        )

    @contextmanager
    def shown(self) -> Iterator[None]:
        with self._live:
            yield

    def say(self, text: str, *, alarm: bool = False) -> None:
        self._caption, self._alarm = text, alarm
        self.refresh()

    def refresh(self) -> None:
        self._live.refresh()

    def _render(self) -> RenderableType:
        wide = self._console.width >= 96
        self._layout["queues"].size = 54 if wide else 44
        self._layout["tenants"].size = 38 if wide else 33
        self._layout["title"].update(self._title())
        self._layout["caption"].update(self._said())
        self._layout["queues"].update(self._panel(self._queues(wide), "queues"))
        self._layout["workers"].update(self._panel(self._workers(), "workers"))
        self._layout["tenants"].update(
            self._panel(self._tenants(10 if wide else 5), "invoices by tenant")
        )
        self._layout["news"].update(self._panel(self._news(), "what happens"))
        self._layout["foot"].update(self._foot())
        return self._layout

    def _panel(self, inside: RenderableType, title: str) -> Panel:
        return Panel(inside, title=title, title_align="left", box=self._box, border_style="dim")

    def _said(self) -> Panel:
        style = "red" if self._alarm else "cyan"
        return Panel(Text(self._caption, style="bold"), box=self._box, border_style=style)

    def _title(self) -> Table:
        row = Table.grid(expand=True)
        row.add_column()
        row.add_column(justify="right")
        row.add_row(
            Text.assemble((" Headrace ", "bold reverse"), "  a shop on a busy evening"),
            Text(f"Ctrl-C stops  {time.monotonic() - self._began:5.1f} s ", style="dim"),
        )
        return row

    def _queues(self, wide: bool) -> Table:
        table = Table.grid(padding=(0, 1, 0, 0))
        names = COLUMNS if wide else [NARROW.get(column, column) for column in COLUMNS]
        table.add_column(min_width=7)
        for name in names:
            table.add_column(justify="right", min_width=len(name), no_wrap=True)
        table.add_row("", *(Text(name, "dim") for name in names))
        for queue in self._board.queues:
            numbers = [(self._board.counts[queue, column], STYLES[column]) for column in COLUMNS]
            table.add_row(queue, *(Text(str(n), s) if n else Text("-", "dim") for n, s in numbers))
        return table

    def _workers(self) -> RenderableType:
        lines: list[Text] = []
        for worker in self._crew.workers:
            ids = [i for i, name in self._board.names.items() if name == worker.name]
            cards = [card for one in ids for card in self._board.running_on(one)]
            text = Text(no_wrap=True, overflow="ellipsis")
            text.append(f"{worker.number} ", "bold")
            text.append(*_standing(worker, bool(ids), len(cards)))
            text.append(f"  {listed(cards)}", "dim")
            lines.append(text)
        return Group(*lines)

    def _tenants(self, width: int) -> Table:
        table = Table.grid(padding=(0, 1, 0, 0))
        for tenant, counts in self._board.tenants.items():
            total, done = sum(counts.values()), counts[DONE]
            running, waiting = counts[RUNNING], counts[WAITING] + counts[RETRY]
            table.add_row(
                tenant,
                Text(f"{running} runs", "cyan" if running else "dim"),
                Text(f"{waiting:>3} wait", "default" if waiting else "dim"),
                self._bar(done, total, width),
            )
        return table

    def _bar(self, done: int, total: int, width: int) -> Text:
        filled = width * done // total if total else 0
        return Text.assemble(
            (self._full * filled, "green"), (self._empty * (width - filled), "dim")
        )

    def _news(self) -> Group:
        height = max(1, self._console.height - 16)
        lines: list[Text] = []
        for news in self._board.news[-height:]:
            text = Text(no_wrap=True, overflow="ellipsis")
            text.append(f"{news.at:5.1f} ", "dim")
            text.append(news.text, MOODS[news.mood])
            lines.append(text)
        return Group(*lines)

    def _foot(self) -> Text:
        total = self._board.total(*COLUMNS)
        done = self._board.total(DONE, REPLACED)
        counted = f"  {done} of {total} jobs "
        bar = self._bar(done, total, max(10, self._console.width - len(counted) - 2))
        return Text.assemble(" ", bar, counted)


def _standing(worker: WorkerProcess, known: bool, running: int) -> tuple[str, str]:
    if worker.state == "killed":
        return "killed", "bold red"
    if not known:
        return "starts", "dim"
    return (f"runs {running}", "cyan") if running else ("idle", "dim")
