"""What a fault has to work with."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from random import Random

from headrace.testing.lab.crew import Crew
from headrace.testing.lab.history import Plan
from headrace.testing.lab.notes import Notes
from headrace.testing.lab.panel import Panel


@dataclass(slots=True)
class Scene:
    """A run that is under way."""

    plan: Plan
    crew: Crew
    panel: Panel
    notes: Notes
    chance: Random


Fault = Callable[[Scene], Awaitable[str | None]]
"""Does its mischief, undoes what can be undone, and says whom it hit; None for nobody."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of fault, and how often it is chosen beside the others."""

    weight: int
    fault: Fault
