"""Which Python files of a project changed since the last look."""

from __future__ import annotations

import os
from collections.abc import Iterator

_SKIPPED = frozenset({"__pycache__", "node_modules", "site-packages"})


class Watcher:
    """Looks at the .py files below a directory; environments and hidden directories apart."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._seen = dict(_files(root))

    def __call__(self) -> list[str]:
        """The files that were changed, added or removed, relative to the root."""
        now = dict(_files(self._root))
        before, self._seen = self._seen, now
        changed = {path for path, _ in before.items() ^ now.items()}
        return sorted(os.path.relpath(path, self._root) for path in changed)


def _files(folder: str) -> Iterator[tuple[str, int]]:
    try:
        entries = list(os.scandir(folder))
    except OSError:
        return  # it went while we looked
    if any(entry.name == "pyvenv.cfg" for entry in entries):
        return
    for entry in entries:
        try:
            if entry.is_dir(follow_symlinks=False):
                if not entry.name.startswith(".") and entry.name not in _SKIPPED:
                    yield from _files(entry.path)
            elif entry.name.endswith(".py"):
                yield entry.path, entry.stat().st_mtime_ns
        except OSError:
            continue
