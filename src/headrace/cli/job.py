"""`headrace job`, with all of its commands."""

from __future__ import annotations

from headrace.cli import job_actions, job_view
from headrace.cli.jobs import job

__all__ = ["job", "job_actions", "job_view"]
