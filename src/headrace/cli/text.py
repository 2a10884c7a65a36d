"""Times, durations and values as people read them."""

from __future__ import annotations

import unicodedata

import msgspec

from headrace.core.event import rfc3339
from headrace.core.model import Progress
from headrace.core.queue import RateLimit
from headrace.core.retry import POLICIES, AtOnce, Custom, Exponential, Linear, RetryPolicy, Steps

_SPANS = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000))

STATE_STYLES = {
    "active": "cyan",
    "detached": "cyan",
    "completed": "green",
    "retry": "yellow",
    "failed": "red",
    "dead": "bold red",
    "expired": "red",
    "stale": "red",
    "unreachable": "red",
    "paused": "yellow",
    "parked": "yellow",
    "cancelled": "dim",
    "dismissed": "dim",
    "skipped": "dim",
}


def span(milliseconds: int) -> str:
    """`350 ms`, `1.2 s`, `3 m 5 s`, `2 d 4 h`."""
    value = abs(milliseconds)
    if value < 1000:
        return f"{value} ms"
    if value < 10_000:
        return f"{value / 1000:.1f} s"
    parts: list[str] = []
    for unit, size in _SPANS:
        count, value = divmod(value, size)
        if count or parts:
            parts.append(f"{count} {unit}")
        if len(parts) == 2:
            break
    return " ".join(part for part in parts if not part.startswith("0 "))


def ago(at: int, now: int) -> str:
    """`3 m ago`, `in 5 m`, `now`: the largest unit says enough."""
    seconds = round(abs(now - at), -3)
    for unit, size in _SPANS:
        if seconds >= size:
            count = (seconds + size // 2) // size
            return f"{count} {unit} ago" if now > at else f"in {count} {unit}"
    return "now"


def moment(at: int, now: int) -> str:
    """`3 m ago (2030-01-31T12:00:00.000Z)`."""
    return f"{ago(at, now)} ({rfc3339(at)})"


def compact(milliseconds: int) -> str:
    """A duration as `queue set` reads it: `90s`, `1h`, `1d`."""
    for unit, size in _SPANS:
        if milliseconds and milliseconds % size == 0:
            return f"{milliseconds // size}{unit}"
    return f"{milliseconds}ms" if milliseconds else "0s"


def rate(limit: RateLimit) -> str:
    """A rate as `queue set` reads it: `100/s`, with `+N` for a burst of its own."""
    period = compact(limit.period)
    text = f"{limit.count}/{period.removeprefix('1') if period in _ONE else period}"
    return text if limit.burst == max(1, limit.count) else f"{text}+{limit.burst}"


_ONE = frozenset({"1s", "1m", "1h", "1d"})


def retry_policy(policy: RetryPolicy) -> str:
    """The policy by its name, or by its numbers."""
    for name, known in POLICIES.items():
        if known == policy:
            return name
    match policy:
        case Steps(delays=delays):
            return ",".join(compact(delay) for delay in delays)
        case Linear(steps=steps, first=first, last=last):
            return f"linear {compact(first)} to {compact(last)} in {steps} steps"
        case Exponential(first=first, base=base, cap=cap):
            return f"exponential from {compact(first)}, times {base:g}, up to {compact(cap)}"
        case AtOnce():
            return "at_once"
        case Custom():
            return "by the task's own function"


def fraction(progress: Progress) -> float | None:
    """How much is done, from 0 to 1, where the handler said so."""
    if progress.current is None or not progress.total or progress.total < 0:
        return None
    return min(1.0, max(0.0, progress.current / progress.total))


def progress_line(progress: Progress) -> str:
    """`[########------------] 40 %  4/10  copying: big.iso`."""
    parts: list[str] = []
    done = fraction(progress)
    if done is not None:
        filled = round(done * 20)
        parts.append(f"[{'#' * filled}{'-' * (20 - filled)}] {done * 100:.0f} %")
    if progress.current is not None:
        total = "" if progress.total is None else f"/{progress.total:g}"
        parts.append(f"{progress.current:g}{total}")
    if words := ": ".join(text for text in (progress.step, progress.message) if text):
        parts.append(words)
    return "  ".join(parts)


def pretty(raw: msgspec.Raw | bytes) -> str:
    """JSON with line breaks; every digit stays."""
    return msgspec.json.format(bytes(raw), indent=2).decode("utf-8", "replace")


def one_line(text: str, limit: int = 0) -> str:
    """The text without line breaks, cut at `limit`."""
    line = " ".join(text.split())
    return line if not limit or len(line) <= limit else line[: limit - 1] + "…"


def visible(text: str) -> str:
    """Control characters spelled out: what a job holds must not steer the terminal."""
    if text.isprintable():
        return text
    return "".join(
        char
        if char in "\n\t" or unicodedata.category(char) not in {"Cc", "Cf", "Cs"}
        else char.encode("unicode_escape").decode()
        for char in text
    )


def plural(count: int, noun: str, many: str = "") -> str:
    """`1 job`, `2 jobs`, `3 processes`."""
    return f"{count:,} {noun if count == 1 else many or f'{noun}s'}"
