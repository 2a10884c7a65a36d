"""What is known of a store between transactions: as much as nobody else has changed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.core.queue import QueueSettings
from headrace.engine.sqlite import SqliteEngine
from headrace.engine.sqlite.location import locate
from headrace.engine.sqlite.schema import VERSION, connect
from headrace.engine.sqlite.standing import Head, Standing
from headrace.engine.sqlite.store import Store
from headrace.testing.conformance import Bench

ENTRY = """INSERT INTO journal (seq, job, at, event, state, queue, type, tries)
VALUES (?, 1, 0, 'created', 'pending', 'default', 't', 0)"""


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    store = connect(locate(path))
    yield store
    store.close()


@pytest.fixture
def other(path: Path, store: Store) -> Iterator[Store]:
    other = connect(locate(path))
    yield other
    other.close()


def commit(store: Store, standing: Standing | None = None, head: Head | None = None) -> None:
    store.execute("COMMIT")
    if standing is not None:
        standing.keep(head)


def test_own_commit_is_known_without_reading_it(store: Store) -> None:
    standing = Standing(store)
    store.execute("BEGIN IMMEDIATE")
    store.execute(ENTRY, (1,))
    said = Head(17, 0, 0, 0, VERSION)  # not what is in the table: it is taken at its word
    commit(store, standing, said)

    store.execute("BEGIN IMMEDIATE")

    assert standing.head() is said
    commit(store)


def test_commit_of_another_connection_is_seen(store: Store, other: Store) -> None:
    standing = Standing(store)
    store.execute("BEGIN IMMEDIATE")
    store.execute(ENTRY, (1,))
    commit(store, standing, Head(1, 0, 0, 0, VERSION))
    other.execute(ENTRY, (2,))

    store.execute("BEGIN IMMEDIATE")

    assert standing.head().seq == 2
    commit(store)


def test_rollback_leaves_what_was_known(store: Store) -> None:
    standing = Standing(store)
    store.execute("BEGIN IMMEDIATE")
    store.execute(ENTRY, (1,))
    commit(store, standing, Head(1, 0, 0, 0, VERSION))
    store.execute("BEGIN IMMEDIATE")
    store.execute(ENTRY, (2,))
    store.execute("ROLLBACK")

    store.execute("BEGIN IMMEDIATE")

    assert standing.head().seq == 1
    commit(store)


def test_head_is_read_again_while_there_are_edges(store: Store) -> None:
    standing = Standing(store)
    store.execute("BEGIN IMMEDIATE")
    store.execute(ENTRY, (1,))
    commit(store, standing, Head(17, 0, 0, True, VERSION))

    store.execute("BEGIN IMMEDIATE")

    assert standing.head() == Head(1, 0, 0, False, VERSION)
    commit(store)


async def test_engines_on_one_file_number_jobs_and_see_settings_of_each_other(path: Path) -> None:
    one, two = SqliteEngine(path), SqliteEngine(path)
    await one.open()
    await two.open()
    benches = (Bench(one), Bench(two))

    jobs = [await benches[n % 2].add(f"j{n}") for n in range(10)]
    await benches[0].set_queue(QueueSettings(max_tries=3))
    late = await benches[1].add("late")

    numbers = [job.seq for job in jobs]
    assert numbers == sorted(set(numbers))
    assert late.max_tries == 3
    await one.close()
    await two.close()
