"""The fenced blocks, commands and links of a page."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

_FENCE = re.compile(r"(?P<indent> *)```(?P<language>.*)")
_NAME = re.compile(r"# (?P<name>[\w/]+\.py)\s*$")
_LINK = re.compile(r"(?<!!)\[[^]]*]\((?P<target>[^)\s]+)\)")
_PRINTED = re.compile(r"\s*print\(.*\)\s+# (?P<text>.+)")


@dataclass(frozen=True)
class Block:
    """One fenced block."""

    page: Path
    line: int
    """Where its first line stands in the page, from 1."""
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}"

    @property
    def file(self) -> str | None:
        """The file that a block is to be written to: its first line is `# name.py`."""
        found = _NAME.match(self.text.partition("\n")[0])
        return found["name"] if found else None

    @property
    def promised(self) -> list[str]:
        """What the comments behind its prints say."""
        return [found["text"] for line in self.text.splitlines() if (found := _PRINTED.match(line))]


@dataclass
class Command:
    """A line after `$ `, and what the page shows below it."""

    block: Block
    text: str
    shown: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.block}: $ {self.text}"


def blocks(page: Path) -> Iterator[Block]:
    """The blocks of a page in order."""
    opened: re.Match[str] | None = None
    start, lines = 0, list[str]()
    for number, line in enumerate(page.read_text("utf-8").splitlines(), 1):
        fence = _FENCE.fullmatch(line)
        if opened is None and fence:
            opened, start, lines = fence, number + 1, []
        elif opened is not None and fence and not fence["language"]:
            yield Block(page, start, opened["language"], "\n".join(lines) + "\n")
            opened = None
        elif opened is not None:
            lines.append(line.removeprefix(opened["indent"]))
    assert opened is None, f"{page}: a block that starts in line {start - 1} has no end"


def commands(block: Block) -> list[Command]:
    """The commands of a console block; a backslash at the end goes on in the next line."""
    found: list[Command] = []
    continued = False
    for line in block.text.splitlines():
        if continued:
            found[-1].text += f"\n{line}"
        elif line.startswith("$ "):
            found.append(Command(block, line.removeprefix("$ ")))
        else:
            assert found, f"{block}: a console block starts with a command: `$ …`"
            found[-1].shown.append(line)
        continued = line.endswith("\\")
    return found


def links(page: Path) -> list[str]:
    """The targets of the page's links, without those in blocks."""
    text = page.read_text("utf-8")
    for block in blocks(page):
        text = text.replace(block.text, "")
    return [found["target"] for found in _LINK.finditer(text)]


def headings(page: Path) -> set[str]:
    """The anchors that a page offers, as GitHub makes them."""
    text = page.read_text("utf-8")
    for block in blocks(page):
        text = text.replace(block.text, "")
    found = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in found}


def matches(shown: str, real: str) -> bool:
    """Whether a shown line is the real one: `…` stands for anything, spaces do not matter."""
    pattern = ".*".join(re.escape(" ".join(part.split())) for part in shown.split("…"))
    spaced = re.sub(r"(\\ )+", r"\\s*", pattern)
    return re.fullmatch(rf"\s*{spaced}\s*", " ".join(real.split())) is not None


def missing(shown: list[str], real: str) -> str | None:
    """The first shown line that does not come, in order, in what was really written."""
    left = iter(real.splitlines())
    for line in shown:
        if line.strip() and not any(matches(line, candidate) for candidate in left):
            return line
    return None
