"""Who may act on a job: leases, fencing tokens, and what became of the runs that lost them."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.testing.lab.history import History
from headrace.testing.lab.notes import Start
from headrace.testing.lab.violation import Violation


def tokens_grow(history: History) -> Iterator[Violation]:
    """Every claim of a job has a larger token than the one before, and the store knows the last."""
    for job, entries in history.jobs.items():
        last = 0
        for entry in entries:
            if entry.event != "started":
                continue
            token = entry.seq if entry.token is None else entry.token
            if token <= last:
                yield Violation(f"was claimed with token {token} after {last}", job, (entry.seq,))
            last = max(last, token)
        stored = history.stored.get(job)
        if stored is not None and stored.token < last:
            message = f"is stored with token {stored.token}, though {last} was handed out"
            yield Violation(message, job, (last,))


def runs_hold_a_lease(history: History) -> Iterator[Violation]:
    """A handler runs only what its worker has claimed, and runs it once per claim."""
    for (job, token), runs in history.starts.items():
        run, stint = runs[0], history.stints.get(token)
        if stint is None or stint.job != job:
            yield Violation(f"ran with token {token}, which nobody was given", job, (token,))
            continue
        claim = stint.started
        if claim.worker != run.worker:
            message = f"was claimed by {claim.worker}, but ran in {run.worker}"
            yield Violation(message, job, (token,))
        if claim.tries != run.number:
            message = f"was claimed for try {claim.tries}, but ran as try {run.number}"
            yield Violation(message, job, (token,))
        if len(runs) > 1:
            pids = ", ".join(str(one.pid) for one in runs)
            message = f"ran {len(runs)} times under one claim, in processes {pids}"
            yield Violation(message, job, (token,))


def only_the_owner_writes(history: History) -> Iterator[Violation]:
    """What a worker was told is stored was stored under its own claim; whoever lost the job is
    refused, and nobody is refused who still had it."""
    for job, settled in history.settled.items():
        for note in settled:
            stint = history.stints.get(note.token)
            if stint is None:
                continue  # runs_hold_a_lease says so
            if not note.applied:
                if stint.end is None:
                    message = f"an outcome under token {note.token} was refused to its owner"
                    yield Violation(message, job, (note.token,))
            elif note.version not in {entry.seq for entry in stint.entries}:
                message = (
                    f"{note.event} under token {note.token} was confirmed as entry {note.version},"
                    " outside of that claim"
                )
                yield Violation(message, job, (note.token, note.version))
    for stint in history.stints.values():
        for entry in stint.entries:
            if entry.worker is not None and entry.worker != stint.started.worker:
                message = f"{entry.event} is by {entry.worker}; the job is {stint.started.worker}'s"
                yield Violation(message, stint.job, (stint.token, entry.seq))


def results_are_of_the_last_owner(history: History) -> Iterator[Violation]:
    """A stored result is the one of the claim that completed the job."""
    for job, stored in history.stored.items():
        if stored.state == "completed" and stored.result_token not in (None, stored.token):
            message = f"has the result of token {stored.result_token}; {stored.token} completed it"
            yield Violation(message, job, (stored.token,))


def leases_run_out_before_takeover(history: History) -> Iterator[Violation]:
    """A job is taken from its worker only after a whole lease without a word from it."""
    for stint in history.stints.values():
        end = stint.end
        if end is None or not (end.error or "").startswith("LeaseLost"):
            continue
        held = end.at - stint.started.at
        if held < history.plan.lease - history.clock.span:
            message = f"was taken over after {held} ms of a lease of {history.plan.lease}"
            yield Violation(message, stint.job, (stint.token, end.seq))


def completed_jobs_do_not_run_again(history: History) -> Iterator[Violation]:
    """Once a completion is confirmed no handler starts the job, unless someone brought it back.

    A worker that was frozen between its claim and its handler may still start what was taken from
    it meanwhile; nothing can stop it, and `only_the_owner_writes` sees that nothing comes of it.
    """
    for job, settled in history.settled.items():
        runs = history.runs.get(job, [])
        for note in settled:
            if note.applied and note.event == "completed":
                for run in runs:
                    if run.mono > note.mono and run.token >= note.token:
                        yield from _again(history, job, note.version, run)


def _again(history: History, job: str, completed: int, run: Start) -> Iterator[Violation]:
    revived = any(
        entry.event in ("retried", "created") and completed < entry.seq < run.token
        for entry in history.jobs.get(job, ())
    )
    if not revived:
        message = f"started again in process {run.pid} after its completion was confirmed"
        yield Violation(message, job, (completed, run.token))
