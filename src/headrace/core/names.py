"""The one rule for names: types, queues, services, ids, workers and schedules."""

from __future__ import annotations

import re

from headrace.core.errors import InvalidValue

_NAME = re.compile(r"[A-Za-z0-9_:-]{1,128}\Z")


def check_name(field: str, value: object) -> str:
    """Returns `value` if it is a legal name, or raises InvalidValue naming `field`."""
    if isinstance(value, str) and _NAME.match(value):
        return value
    shown = repr(value) if len(repr(value)) <= 160 else repr(value)[:150] + "…"
    raise InvalidValue(
        field, f"{shown} is not a name; use 1 to 128 letters, digits and the characters _ : -"
    )
