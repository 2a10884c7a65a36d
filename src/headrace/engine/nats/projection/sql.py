"""The tables and named statements of the projection; see `engine/statements.py`."""

from __future__ import annotations

from headrace.engine.statements import load, text

_HERE = "headrace.engine.nats.projection"

SCHEMA = text(_HERE, "schema.sql")
STATEMENTS = load(_HERE)
