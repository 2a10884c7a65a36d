"""A disk that the lab can make slow: SQLite's own, but for writes that take their time."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# apsw's stubs do not name their types on Python 3.11.

from __future__ import annotations

import time
from typing import Any

import apsw

from headrace.testing.lab.panel import Panel


class SlowDisk(apsw.VFS):
    """What every connection of this process uses from now on."""

    def __init__(self, panel: Panel) -> None:
        self._panel, self._beneath = panel, apsw.vfs_names()[0]
        super().__init__("headrace-lab", self._beneath, makedefault=True)

    def xOpen(self, name: Any, flags: list[int]) -> _SlowFile:  # noqa: N802
        """A file whose writes take as long as the panel says."""
        return _SlowFile(self._beneath, name, flags, self._panel)


class _SlowFile(apsw.VFSFile):
    def __init__(self, beneath: str, name: Any, flags: list[int], panel: Panel) -> None:
        super().__init__(beneath, name, flags)
        self._panel = panel

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802
        self._wait()
        super().xWrite(data, offset)

    def xSync(self, flags: int) -> None:  # noqa: N802
        self._wait()
        super().xSync(flags)

    def _wait(self) -> None:
        if lag := self._panel.lag:
            time.sleep(lag)
