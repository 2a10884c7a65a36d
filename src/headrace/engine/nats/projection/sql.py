"""The tables and named statements of the projection; see `engine/statements.py`."""

from __future__ import annotations

from importlib.resources import files

from headrace.engine.statements import load

_HERE = "headrace.engine.nats.projection"

SCHEMA = files(_HERE).joinpath("schema.sql").read_text("utf-8")
STATEMENTS = load(_HERE)
