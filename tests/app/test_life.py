"""An app's life: where its engine is, open, close, and other engines for a while."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace import App, AppClosed, InvalidValue
from headrace.engine.memory import MemoryEngine
from headrace.engine.sqlite import SqliteEngine
from headrace.testing import ManualClock, jobs


class TestWhere:
    @pytest.mark.parametrize("url", ["memory:", "memory://"])
    def test_memory(self, url: str) -> None:
        assert repr(App(url, service="mail")) == f"<App 'mail' on {url}>"

    def test_path_and_url_name_a_file(self, tmp_path: Path) -> None:
        path = tmp_path / "jobs.db"
        for url in (path, str(path), f"sqlite:{path}", f"sqlite:///{str(path)[1:]}"):
            assert str(path) in repr(App(url))

    def test_environment_then_a_file_here_is_the_default(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("HEADRACE_URL", raising=False)
        assert "headrace.db" in repr(App())
        monkeypatch.setenv("HEADRACE_URL", "memory:")
        assert repr(App()) == "<App 'default' on memory:>"

    @pytest.mark.parametrize("url", ["redis://localhost", "postgres:x", "what:ever"])
    def test_unknown_engines_are_named(self, url: str) -> None:
        with pytest.raises(InvalidValue, match=r"^url: .* names no engine"):
            App(url)

    async def test_engine_itself_can_be_given(self, tmp_path: Path) -> None:
        for engine in (MemoryEngine(), SqliteEngine(tmp_path / "jobs.db")):
            async with App(engine) as app:
                assert await app.engine() is engine


class TestOpening:
    async def test_first_use_opens_and_jobs_outlive_a_close(self, tmp_path: Path) -> None:
        app = App(tmp_path / "jobs.db")
        task = app.task(type="t")(lambda: None)
        ref = await task.enqueue()
        await app.open()
        await app.close()
        with pytest.raises(AppClosed, match=r"is closed; open it again with `await app.open\(\)`"):
            await ref.get()
        async with app:
            assert (await ref.get()).id == ref.id
        async with App(tmp_path / "jobs.db") as other:
            assert [job.id for job in await jobs(other)] == [ref.id]

    async def test_closing_twice_is_harmless(self, url: str) -> None:
        app = App(url)
        await app.open()
        await app.close()
        await app.close()


class TestUsing:
    async def test_other_engine_and_clock_for_a_while(self, clock: ManualClock) -> None:
        app = App("memory:")
        task = app.task(type="t")(lambda: None)
        await task.enqueue()
        before = app.clock
        with app.using(MemoryEngine(), clock) as same:
            assert same is app
            ref = await task.enqueue()
            assert (await ref.get()).spec.created_at == clock.now()
            assert len(await jobs(app)) == 1
        assert app.clock is before
        assert [job.id for job in await jobs(app)] != [ref.id]

    async def test_closed_inside_is_not_closed_outside(self) -> None:
        app = App("memory:")
        await app.open()
        with app.using(MemoryEngine()):
            await app.engine()
            await app.close()
        assert await jobs(app) == []
