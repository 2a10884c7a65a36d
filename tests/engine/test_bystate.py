"""Jobs by state: what a search walks over, held against a plain list."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.admission import created
from headrace.core.model import Job
from headrace.core.queue import DEFAULTS
from headrace.core.states import State
from headrace.engine.bystate import ByState
from headrace.engine.memory import MemoryEngine
from headrace.testing.conformance.bench import Bench

STATES = (State.PENDING, State.ACTIVE, State.DEAD)

steps = st.lists(
    st.tuples(st.sampled_from(["put", "drop"]), st.integers(1, 8), st.sampled_from(STATES)),
    max_size=40,
)


@given(steps, st.sets(st.sampled_from(STATES)), st.none() | st.integers(0, 9))
def test_newest_of_some_states_are_those_of_a_plain_list(
    steps: list[tuple[str, int, State]], states: set[State], before: int | None
) -> None:
    bench, by_state, jobs = Bench(MemoryEngine()), ByState(), dict[int, Job]()
    for what, seq, state in steps:
        if what == "put":
            new = created(bench.new(), DEFAULTS, seq)
            new = msgspec.structs.replace(new, state=state)
            by_state.put(jobs.get(seq), new)
            jobs[seq] = new
        elif seq in jobs:
            by_state.drop(jobs.pop(seq))
    wanted = [
        job
        for seq, job in sorted(jobs.items(), reverse=True)
        if job.state in (states or STATES) and (before is None or seq < before)
    ]
    assert list(by_state.newest(states, before)) == wanted
