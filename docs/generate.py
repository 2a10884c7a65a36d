"""Writes the parts of the documentation that the code knows better."""

from __future__ import annotations

from pathlib import Path

from headrace.core.states import FINAL, REVIVABLE, WAITING, State, diagram

HERE = Path(__file__).parent

MEANING = {
    State.PENDING: "accepted; starts when it is due, its key has a slot and a worker is free",
    State.BLOCKED: "waits for its parents",
    State.ACTIVE: "a worker holds its lease and runs it (or it is detached)",
    State.RETRY: "a try failed; the next one has its time",
    State.COMPLETED: "the handler returned",
    State.FAILED: "ended by a final error, or out of tries where dead letters are off",
    State.DEAD: "out of tries; in the dead letters until replayed or dismissed",
    State.DISMISSED: "taken out of the dead letters",
    State.CANCELLED: "cancelled by request or by its handler",
    State.EXPIRED: "its deadline or time to live passed",
    State.SKIPPED: "another job took its place before it started",
    State.STALE: "lost its key's slot and was superseded",
    State.UNREACHABLE: "a parent ended without success",
}


def states_page() -> str:
    rows = [
        f"| `{state}` | {MEANING[state]} | {_kind(state)} | {'yes' if state in REVIVABLE else ''} |"
        for state in State
    ]
    return "\n".join(
        [
            "# States",
            "",
            "<!-- Written by `make docs` from the transition table in core/states.py. -->",
            "",
            "| state | meaning | kind | `retry` brings it back |",
            "| --- | --- | --- | --- |",
            *rows,
            "",
            "Shown, but derived: `scheduled` (pending, not due), `parked` (pending, its key has no"
            " free slot), `paused` (pending in a paused queue), `detached` (active outside its"
            " handler).",
            "",
            "```mermaid",
            diagram().rstrip(),
            "```",
            "",
        ]
    )


def _kind(state: State) -> str:
    if state in FINAL:
        return "final"
    return "waiting" if state in WAITING else "running"


if __name__ == "__main__":
    (HERE / "states.md").write_text(states_page())
    print("wrote docs/states.md")
