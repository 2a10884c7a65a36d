"""The SQLite engine."""

from headrace.engine.sqlite.engine import SqliteEngine

__all__ = ["SqliteEngine"]
