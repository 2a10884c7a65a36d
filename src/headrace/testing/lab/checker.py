"""The checker: holds a history against what Headrace promises.

It knows no engine and believes no code of Headrace: the rules are written down here a second time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from headrace.testing.lab.checks import admission, conduct, limits, lives, ownership, timing
from headrace.testing.lab.history import History
from headrace.testing.lab.violation import Violation

Check = Callable[[History], Iterable[Violation]]

CHECKS: tuple[Check, ...] = (
    lives.journal_is_in_order,
    lives.transitions_are_legal,
    lives.jobs_end_once,
    lives.tries_are_counted,
    lives.confirmed_jobs_are_there,
    lives.refused_jobs_are_not_there,
    lives.confirmed_actions_are_journaled,
    lives.store_and_journal_agree,
    lives.every_job_ends,
    ownership.tokens_grow,
    ownership.runs_hold_a_lease,
    ownership.only_the_owner_writes,
    ownership.results_are_of_the_last_owner,
    ownership.leases_run_out_before_takeover,
    ownership.completed_jobs_do_not_run_again,
    limits.keys_respect_their_limit,
    limits.queues_respect_their_cap,
    limits.workers_respect_their_concurrency,
    limits.slots_are_kept_while_handlers_run,
    limits.paused_queues_start_nothing,
    limits.rates_are_kept,
    timing.nothing_starts_early,
    timing.nothing_starts_late,
    timing.parents_come_first,
    admission.dedup_admits_one,
    admission.throttles_are_kept,
    conduct.errors_are_typed,
    conduct.processes_stay,
)

NAMES = tuple(check.__name__ for check in CHECKS)


def violations(history: History) -> list[Violation]:
    """All violations, each with the name of its check."""
    return [
        msgspec.structs.replace(found, check=check.__name__)
        for check in CHECKS
        for found in check(history)
    ]
