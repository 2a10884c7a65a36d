"""The documentation is true: what it shows runs, what it links to exists, the demo works."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.markdown import blocks, headings, links, matches, missing
from tests.docs.page import PageRun

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").rglob("*.md"))]
KINDS = {"python", "console", "text", "mermaid", ""}

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


@each_page
def test_page_runs_as_it_is_written(page: Path, tmp_path: Path) -> None:
    given = [block for block in blocks(README) if block.language == "python" and block.file]
    PageRun(page, tmp_path).run(given)


@each_page
def test_no_block_is_kept_from_running(page: Path) -> None:
    odd = [f"{block} ```{block.language}" for block in blocks(page) if block.language not in KINDS]
    assert odd == []


@each_page
def test_links_lead_somewhere(page: Path) -> None:
    broken: list[str] = []
    for link in links(page):
        place, _, anchor = link.partition("#")
        if "://" in place:
            continue
        target = (page.parent / place).resolve() if place else page
        if not target.exists() or (anchor and anchor not in headings(target)):
            broken.append(link)
    assert broken == []


def test_every_page_can_be_reached_from_the_readme() -> None:
    reached, found = set[Path](), [README]
    while found:
        page = found.pop()
        reached.add(page)
        targets = {(page.parent / link.partition("#")[0]).resolve() for link in links(page)}
        found += [target for target in targets & set(PAGES) if target not in reached]
    assert set(PAGES) - reached == set()


def test_states_page_is_the_generated_one() -> None:
    generate = runpy.run_path(str(ROOT / "docs" / "generate.py"))
    assert (ROOT / "docs" / "states.md").read_text("utf-8") == generate["states_page"]()


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_demo_ends_well_without_a_terminal(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, ROOT / "demo" / "main.py"],
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as demo:
        try:
            told, errors = demo.communicate(timeout=50)
        except subprocess.TimeoutExpired:
            demo.terminate()  # it takes its workers along
            told, errors = demo.communicate(timeout=9)
    assert demo.returncode == 0, told + errors
    assert errors == ""
    assert all(char.isprintable() or char == "\n" for char in told)
    assert not list(tmp_path.glob("headrace-demo*")), "the demo leaves its folder behind"


class TestTheTestsThemselves:
    @pytest.mark.parametrize(
        ("kind", "text", "complaint"),
        [
            ("python", "print(1 + 1)  # 3", "was to print '3'"),
            ("python", "raise SystemExit(4)", "ended with 4"),
            ("python", "# test_sums.py\ndef test_sum():\n    assert 1 + 1 == 3", "1 failed"),
            ("console", "$ headrace queue list --bogus", "ended with 2"),
            ("console", "$ headrace --version\nheadrace 99", "was to show 'headrace 99'"),
            ("console", "$ headrace --version\nError: no", "ended with 0"),
            ("console", "$ headrace worker nowhere:app", "no module 'nowhere'"),
            ("console", "$ rm -r precious", "only headrace is run here"),
        ],
    )
    def test_page_that_is_not_true_fails(
        self, tmp_path: Path, kind: str, text: str, complaint: str
    ) -> None:
        page = tmp_path / "page.md"
        page.write_text(f"```{kind}\n{text}\n```\n")
        with pytest.raises(AssertionError, match=complaint):
            PageRun(page, tmp_path).run([])

    def test_shown_line_may_leave_parts_out(self) -> None:
        assert matches("job … completed", "job  01J9 completed")
        assert not matches("job … completed", "job 01J9 failed")

    def test_shown_lines_come_in_order(self) -> None:
        assert missing(["b", "c"], "a\nb\nc\n") is None
        assert missing(["c", "b"], "a\nb\nc\n") == "b"
