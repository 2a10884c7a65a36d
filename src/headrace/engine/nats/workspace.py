"""A workspace: what a group of operations has read and written so far, and how to take it back.

What is read and is not known yet is taken for empty, and noted as `missing`: it is fetched, and
everything runs again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from headrace.core.model import Job, TryError
from headrace.engine.nats.message import PROVISIONAL
from headrace.engine.nats.parts import (
    Domain,
    Draft,
    KeyRecord,
    Known,
    Note,
    Part,
    Tally,
    Timer,
    job_part,
)

_EMPTY: dict[str, Any] = {
    "job": Domain(),
    "key": KeyRecord(),
    "dedup": None,
    "tally": Tally(),
    "floor": 0,
    "waiting": [],
    "notes": [],
}
"""What is not known yet."""

_ABSENT: Any = object()


class Workspace:
    """One group of operations. Each is begun with `begin`, and can be taken back as a whole."""

    def __init__(self, base: int, recent: Mapping[Part, Known] | None = None) -> None:
        self.base = PROVISIONAL + base + 1
        self._recent = recent or {}
        self.believed: set[Part] = set()
        """What was not read but is believed to be as it was left."""
        self.known: dict[Part, Known] = {}
        self.missing: set[Part] = set()
        """What must be read before anything of this counts."""
        self.values: dict[Part, Any] = {}
        self.drafts: list[Draft] = []
        self.timers: list[Timer] = []
        self.abided: dict[Part, int] = {}
        """Settings that must not have changed, by the sequence that guards them."""
        self.unfinished: dict[str, int] = {}
        """Jobs whose dependents are not all told yet, by the operation that began it."""
        self.cut_short = False
        """Whether a claim did not get to see all that there is."""
        self.stored: set[str] = set()
        """Jobs about which something is stored by now: operations may be stored without others."""
        self.touched: list[set[Part]] = []
        self.wrote: list[set[Part]] = []
        self.owner: list[int] = []
        """Which operation made each draft."""
        self.timed: list[int] = []
        self.notes: list[tuple[str, str, Note]] = []
        self.noted: list[int] = []
        self._newest: dict[str, int] = {}
        self._aside: dict[str, tuple[TryError | None, bool]] = {}
        self._gathered: tuple[list[Any], ...] = (
            self.drafts,
            self.owner,
            self.timers,
            self.timed,
            self.notes,
            self.noted,
        )
        self._touching: set[Part] = set()
        self._writing: set[Part] = set()
        self._undo: list[tuple[Any, Any, Any]] = []
        """Tables that were changed, where, and what was there."""

    # Operations

    @property
    def independent(self) -> bool:
        """Whether each operation wrote one message of a job, and looked at nothing else."""
        return (
            not self.timers
            and not self.notes
            and len(self.drafts) == len(set(self.owner))
            and all(len(parts) == 1 for parts in self.touched)
            and all(len(parts) <= 1 for parts in self.wrote)
            and all(part.kind == "job" for part in self.values)
        )

    def begin(self) -> Callable[[], None]:
        """The next operation; the answer takes it back."""
        self._touching, self._writing = set(), set()
        self.touched.append(self._touching)
        self.wrote.append(self._writing)
        self._undo = []
        back = self.undoable()

        def undo() -> None:
            back()
            self.touched.pop()
            self.wrote.pop()

        return undo

    def undoable(self) -> Callable[[], None]:
        start, aside = len(self._undo), dict(self._aside)
        lengths = [len(gathered) for gathered in self._gathered]

        def undo() -> None:
            while len(self._undo) > start:
                table, key, before = self._undo.pop()
                if before is _ABSENT:
                    del table[key]
                else:
                    table[key] = before
            for gathered, length in zip(self._gathered, lengths, strict=True):
                del gathered[length:]
            self._aside = aside

        return undo

    def know(self, part: Part, value: Any, last: int) -> None:
        """Tells what was read from the stream."""
        self.known[part] = Known(value, last)

    def believe(self, part: Part) -> bool:
        """Whether the part is known, or can be believed to be as it was left."""
        if part in self.known:
            return True
        if part not in self._recent:
            return False
        self.known[part] = self._recent[part]
        self.believed.add(part)
        return True

    def restart(self) -> None:
        """Forgets all operations; what is known stays."""
        self.values.clear()
        self._newest.clear()
        self._aside.clear()
        self._undo.clear()
        self.missing.clear()
        self.unfinished.clear()
        self.abided.clear()
        self.cut_short = False
        for gathered in (*self._gathered, self.touched, self.wrote):
            gathered.clear()

    # Parts

    def _get(self, part: Part) -> Any:
        self._touching.add(part)
        value = self.values.get(part, _ABSENT)
        return self._stored(part) if value is _ABSENT else value

    def _peek(self, part: Part) -> Any:
        """Looks at a part that nothing depends on."""
        value = self.values.get(part, _ABSENT)
        return self._stored(part) if value is _ABSENT else value

    def _stored(self, part: Part) -> Any:
        known = self.known.get(part)
        if known is not None:
            return known.value
        if self.believe(part):
            return self.known[part].value
        self.missing.add(part)
        return _EMPTY[part.kind]

    def _set(self, part: Part, value: Any) -> None:
        self._touching.add(part)
        self._writing.add(part)
        values = self.values
        self._undo.append((values, part, values.get(part, _ABSENT)))
        values[part] = value

    def _assign(self, table: dict[Any, Any], key: Any, value: Any) -> None:
        self._undo.append((table, key, table.get(key, _ABSENT)))
        table[key] = value

    def _domain(self, job_id: str) -> Domain:
        return cast(Domain, self._get(job_part(job_id)))

    def job(self, job_id: str) -> Job | None:
        return self._domain(job_id).job

    # Drafts

    def next_seq(self) -> int:
        """The sequence of the next message, until it has one of the stream."""
        return self.base + len(self.drafts)

    def _add(self, draft: Draft) -> None:
        self._assign(self._newest, draft.job_id, len(self.drafts))
        self.drafts.append(draft)
        self.owner.append(len(self.touched) - 1)

    def _redraft(self, place: int, draft: Draft) -> None:
        """Puts another draft in the place of one."""
        self._undo.append((self.drafts, place, self.drafts[place]))
        self.drafts[place] = draft
