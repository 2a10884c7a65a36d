"""A small coverage-guided fuzzer: what reaches new lines of Headrace is kept and changed further.

It needs nothing but Python: lines are seen by `sys.settrace`. It is slow beside a compiled fuzzer
and sees nothing of what C code does, but it is there wherever the tests run. `with_atheris.py`
gives the same targets to atheris, for a long search by hand.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from random import Random
from types import CodeType, FrameType
from typing import Any

from headrace import HeadraceError

Target = Callable[[bytes], object]

_WORDS = [b"0", b"-1", b"1e999", b"9" * 30, b"null", b'"', b"{", b"}", b"[", b"]", b":", b",", b"/"]
_WORDS += [b"~", b".", b"\x00", b"\xff", b"\xed\xa0\x80", b"..", b"=", b"%00", b"//", b"?", b"true"]


class Findings:
    """What a search saw: the lines it reached, the inputs that reached them, and its crashes."""

    def __init__(self) -> None:
        self.lines: set[tuple[CodeType, int]] = set()
        self.corpus: list[bytes] = []
        self.crashes: list[tuple[bytes, BaseException]] = []


def search(
    target: Target, seeds: Sequence[bytes], tries: int, chance: Random, guided: bool = True
) -> Findings:
    """Tries so many inputs; a crash is any exception that is not a typed refusal."""
    found = Findings()
    for data in (*seeds, b""):
        _try(target, data, found, keep=True)
    for _ in range(tries):
        data = _changed(chance.choice(found.corpus), found.corpus, chance)
        _try(target, data, found, keep=guided)
        if found.crashes:
            return found
    return found


def _try(target: Target, data: bytes, found: Findings, keep: bool) -> None:
    lines: set[tuple[CodeType, int]] = set()
    try:
        with _traced(lines):
            target(data)
    except HeadraceError as error:
        if not str(error):
            found.crashes.append((data, error))
    except Exception as error:
        found.crashes.append((data, error))
    new = not lines <= found.lines
    found.lines |= lines
    if (new and keep) or not found.corpus:
        found.corpus.append(data)


@contextmanager
def _traced(lines: set[tuple[CodeType, int]]) -> Iterator[None]:
    def per_line(frame: FrameType, event: str, _: Any) -> Any:
        if event == "line":
            lines.add((frame.f_code, frame.f_lineno))
        return per_line

    def per_call(frame: FrameType, event: str, _: Any) -> Any:
        watched = "headrace" in frame.f_code.co_filename or "fuzz" in frame.f_code.co_filename
        return per_line(frame, event, _) if watched else None

    before = sys.gettrace()
    sys.settrace(per_call)
    try:
        yield
    finally:
        sys.settrace(before)


def _changed(data: bytes, corpus: Sequence[bytes], chance: Random) -> bytes:
    """The input with a few changes."""
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        place = chance.randint(0, len(data))
        end = min(len(data), place + chance.randint(1, 8))
        match chance.randrange(6):
            case 0:
                data = data[:place] + bytes([chance.randrange(256)]) + data[place + 1 :]
            case 1:
                data = data[:place] + data[end:]
            case 2:
                data = data[:place] + chance.choice(_WORDS) + data[place:]
            case 3:
                data = data[:place] + data[place:end] * chance.choice((2, 3, 50)) + data[end:]
            case 4:
                other = chance.choice(corpus)
                data = data[:place] + other[chance.randint(0, len(other)) :]
            case _:
                data = data[:place] + bytes([chance.randrange(32, 127)]) + data[place + 1 :]
    return data[:10_000]
