"""Stores that the user may not touch, and stores that two users share.

As root nothing is forbidden, so what is tried here is tried by a child that has become nobody.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headrace import App
from headrace.engine.sqlite import SqliteEngine
from headrace.runtime import exchange
from headrace.testing import running
from tests.support import LIMIT

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="POSIX permissions")

NOBODY = 65534

AS_NOBODY = """
import asyncio, os, sys, tempfile
from headrace import App, HeadraceError
from headrace.testing import running

app = App(sys.argv[1])
who = app.task(type="who")(os.getuid)

async def everything():
    '''Imports what will be needed, as long as its folder may be read.'''
    with tempfile.TemporaryDirectory() as folder:
        async with App(folder + "/jobs.db") as app, running(app):
            await (await app.task(type="who")(os.getuid).enqueue()).result(20)

async def main():
    async with app:
        if sys.argv[2] == "enqueue":
            print((await who.enqueue()).id)
        else:
            async with running(app):
                print("ready", flush=True)
                await asyncio.to_thread(sys.stdin.readline)

asyncio.run(everything())
if os.getuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
try:
    asyncio.run(main())
except HeadraceError as error:
    print(f"{type(error).__name__}: {error}")
"""


@contextmanager
def as_nobody(path: Path, what: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", AS_NOBODY, str(path), what]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as child:
        try:
            yield child
        finally:
            child.kill()


@pytest.fixture
def folder() -> Iterator[Path]:
    """Outside pytest's own directories, which others may not even look into."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(folder)


async def created(path: Path) -> None:
    engine = SqliteEngine(path)
    await engine.open()
    await engine.close()


@pytest.mark.parametrize(
    ("file", "directory"),
    [
        pytest.param(0o444, 0o777, id="file-read-only"),
        pytest.param(0o000, 0o777, id="file-out-of-reach"),
        pytest.param(0o666, 0o555, id="directory-read-only"),
        pytest.param(0o666, 0o000, id="directory-out-of-reach"),
        pytest.param(0o444, 0o555, id="both-read-only"),
        pytest.param(None, 0o555, id="no-file-and-directory-read-only"),
    ],
)
def test_store_that_may_not_be_written_is_refused_with_the_remedy(
    folder: Path, file: int | None, directory: int
) -> None:
    path = folder / "jobs.db"
    if file is not None:
        asyncio.run(created(path))
        path.chmod(file)
    folder.chmod(directory)

    with as_nobody(path, "enqueue") as child:
        said, problems = child.communicate(timeout=LIMIT)

    assert said.startswith(f"StoreReadOnly: {path}: "), said + problems
    assert "write" in said
    assert "directory" in said
    folder.chmod(0o755)
    assert [each.name for each in folder.iterdir()] == ["jobs.db"] * (file is not None)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
class TestStoreOfTwoUsers:
    @pytest.fixture
    def path(self, folder: Path) -> Path:
        asyncio.run(created(folder / "jobs.db"))
        (folder / "jobs.db").chmod(0o666)
        folder.chmod(0o777)
        return folder / "jobs.db"

    async def test_job_of_one_user_wakes_the_worker_of_the_other(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(exchange, "LOOK_AGAIN", 600.0)  # so that only the bell can be it
        async with App(path) as app:
            app.task(type="who")(os.getuid)
            async with running(app) as worker:
                await worker.until_idle()
                with as_nobody(path, "enqueue") as child:
                    said, problems = await asyncio.to_thread(child.communicate)
                assert len(said.strip()) == 26, said + problems
                assert await app.job(said.strip()).result(LIMIT) == 0

    async def test_worker_of_another_user_runs_what_is_enqueued_here(self, path: Path) -> None:
        with as_nobody(path, "work") as child:
            assert child.stdout
            assert await asyncio.to_thread(child.stdout.readline) == "ready\n"
            async with App(path) as app:
                ref = await app.task(type="who")(os.getuid).enqueue()
                assert await ref.result(LIMIT) == NOBODY
            _, problems = await asyncio.to_thread(child.communicate, "enough\n")
            assert child.returncode == 0, problems
