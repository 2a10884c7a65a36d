"""The shop's tasks: what its workers do on a busy evening."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

from diary import noted

from headrace import App, Debounce, JobContext

app = App()  # on the store that $HEADRACE_URL names

OFFICE = "DEMO_OFFICE"
"""While this file is there, the tax office answers."""


def office_is_open() -> bool:
    return Path(os.environ[OFFICE]).exists()


class ProviderBusy(Exception):
    """The mail provider wants us to come back later."""


class OfficeClosed(Exception):
    """The tax office does not answer."""


@app.task(queue="mail", retry=[0.6, 1.2, 2.4])
async def mail(ctx: JobContext, order: int) -> str:
    """Every fourth mail meets a provider that says no, once or twice."""
    with noted(ctx, "mail"):
        await asyncio.sleep(0.25 + order * 37 % 10 / 25)
        if order % 4 == 0 and ctx.number <= 1 + order % 8 // 4:
            raise ProviderBusy("busy")
        return f"order {order} confirmed"


@app.task(queue="mail")
async def remind(ctx: JobContext, order: int) -> float:
    with noted(ctx, "remind"):
        return time.time()


@app.task(queue="billing", key=("tenant", "/tenant"), max_active=1)
async def invoice(ctx: JobContext, tenant: str, number: int) -> int:
    """Invoices of a tenant are numbered without gaps: one at a time."""
    with noted(ctx, tenant):
        await asyncio.sleep(0.08)
        return number


@app.task(queue="orders", retry=None)
def pack(ctx: JobContext, order: int) -> str:
    """A plain function: it runs in a thread."""
    with noted(ctx, "pack"):
        for step in range(4):
            ctx.progress("packing", current=step, total=4)
            ctx.wait_cancelled(0.35)
        return f"order {order} packed"


@app.task(queue="reports")
async def extract(ctx: JobContext, month: int) -> list[int]:
    with noted(ctx, "extract"):
        await asyncio.sleep(0.6)
        return list(range(month * 100))


@app.task(queue="reports", load_dependencies=True)
async def transform(ctx: JobContext, part: int, parts: int) -> int:
    with noted(ctx, "transform"):
        (sales,) = ctx.dependencies.values()
        await asyncio.sleep(0.5)
        return sum(sales[part::parts])


@app.task(queue="reports", load_dependencies=True)
async def load(ctx: JobContext) -> int:
    with noted(ctx, "load"):
        return sum(ctx.dependencies.values())


@app.task(queue="reports", cpu=True, timeout=30)
def forecast(ctx: JobContext, days: int) -> int:
    """Hard sums: it runs in a child process, beside the event loop."""
    with noted(ctx, "forecast"):
        total = 0
        for day in range(days):
            ctx.progress("forecast", current=day, total=days)
            total += sum(n * n % 7 for n in range(150_000))
        return total


@app.task(queue="search", unique=Debounce(1, key="catalogue"))
async def reindex(ctx: JobContext, changes: int) -> int:
    with noted(ctx, "reindex"):
        await asyncio.sleep(0.4)
        return changes


@app.task(queue="reports", max_tries=3, retry=0.6)
async def tax_report(ctx: JobContext, month: int) -> str:
    with noted(ctx, "tax_report"):
        await asyncio.sleep(0.2)
        if not office_is_open():
            raise OfficeClosed("nobody answers")
        return f"month {month} reported"
