"""Log lines of a worker: for people, or as JSON for programs."""

from __future__ import annotations

import logging
import os
import sys
import time

import msgspec

from headrace.app.supervisor import PROCESS
from headrace.cli.text import visible
from headrace.core.event import rfc3339

LEVELS = ("debug", "info", "warning", "error")

_COLOURS = {"DEBUG": "2", "WARNING": "33", "ERROR": "31", "CRITICAL": "1;31"}


def set_up(level: str, json: bool) -> None:
    """Sends log lines to stderr; where the app has its own logging, only the level is set."""
    logging.getLogger("headrace").setLevel(level.upper())
    root = logging.getLogger()
    if root.handlers:
        return
    logging.getLogger("asyncio").setLevel("WARNING")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if json else Lines(_coloured()))
    root.addHandler(handler)
    root.setLevel(level.upper())


def _coloured() -> bool:
    return sys.stderr.isatty() and not os.environ.get("NO_COLOR")


class Lines(logging.Formatter):
    """`12:30:05.123 WARNING [2] text`: local time, and the process where there are several."""

    def __init__(self, coloured: bool) -> None:
        super().__init__()
        number = os.environ.get(PROCESS)
        self._process = f" [{number}]" if number else ""
        self._coloured = coloured

    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        level = f"{record.levelname:<7}"
        if self._coloured and record.levelname in _COLOURS:
            level = f"\x1b[{_COLOURS[record.levelname]}m{level}\x1b[0m"
        source = "" if record.name.startswith("headrace") else f" {record.name}:"
        text = visible(_message(self, record))
        return f"{clock}.{int(record.msecs):03d} {level}{self._process}{source} {text}"


class JsonLines(logging.Formatter):
    """One object per line: time, level, logger, message, pid, and the traceback if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        shape: dict[str, object] = {
            "time": rfc3339(int(record.created * 1000)),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "pid": record.process,
        }
        if record.exc_info:
            shape["traceback"] = self.formatException(record.exc_info)
        return msgspec.json.encode(shape).decode()


def _message(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    text = record.getMessage()
    if record.exc_info:
        text += "\n" + formatter.formatException(record.exc_info)
    return text
