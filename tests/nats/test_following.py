"""Anyone with a NATS client can follow what happens: nats-py here, which knows nothing of us."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from headrace import App, JobContext, WorkerOptions
from headrace.testing.nats import NatsServer
from tests.support import eventually, within

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    with NatsServer() as server:
        yield server


@pytest.fixture
async def stranger(server: NatsServer) -> AsyncIterator[Client]:
    client = await nats.connect(server.url)
    yield client
    await client.close()


@pytest.fixture
async def app(server: NatsServer, tmp_path: Path) -> AsyncIterator[App]:
    namespace = tmp_path.name.replace("_", "-")
    url = f"{server.url}?namespace={namespace}&projection={tmp_path / 'p.db'}"
    async with App(url, service="billing") as app:
        yield app


@asynccontextmanager
async def working(app: App, options: WorkerOptions | None = None) -> AsyncIterator[None]:
    worker = app.worker(options)
    await worker.start()
    try:
        yield
    finally:
        await worker.stop()


async def heard(client: Client, subject: str) -> list[Msg]:
    """What comes on a subject from now on."""
    messages: list[Msg] = []

    async def note(message: Msg) -> None:
        messages.append(message)

    await client.subscribe(subject, cb=note)
    await client.flush()
    return messages


def namespace(app: App) -> str:
    return app.url.partition("namespace=")[2].partition("&")[0]


async def test_every_event_carries_request_and_trace_in_its_headers(
    app: App, stranger: Client
) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    plain = app.task(type="plain")(lambda: None)
    keyed = app.task(type="keyed", key="tenant")(lambda: None)
    messages = await heard(stranger, f"{namespace(app)}.jobs.billing.>")
    context = {"request_id": "request-7", "traceparent": trace, "tracestate": "v=1"}
    refs = [await task.options(**context).enqueue() for task in (plain, keyed)]
    async with working(app):
        for ref in refs:
            await ref.wait(10)
    await eventually(lambda: sum("completed" in m.subject for m in messages) == 2)
    events = [m for m in messages if json.loads(m.data).get("context")]
    assert len(events) == 6
    wanted = {"request-id": "request-7", "traceparent": trace, "tracestate": "v=1"}
    assert all(wanted.items() <= (m.headers or {}).items() for m in events)
    (started,) = [
        json.loads(m.data) for m in events if ".keyed." in m.subject and "started" in m.subject
    ]
    assert started["concurrency"]["heartbeatAt"] == started["timestamp"]


async def test_life_of_a_job_is_followed_in_the_shape_of_the_wire(
    app: App, stranger: Client
) -> None:
    @app.task(type="charge", key=("tenant", "/tenant"), max_active=1, max_tries=3, retry=0.01)
    async def charge(ctx: JobContext, tenant: int) -> dict[str, int]:
        if ctx.number == 1:
            raise ValueError("no funds")
        ctx.log("info", "trying again")
        ctx.progress("pay", "half way", 1, 2)
        return {"paid": tenant}

    messages = await heard(stranger, f"{namespace(app)}.jobs.billing.>")
    async with working(app):
        job = await charge.enqueue(7)
        await within(job.result(20))
    await stranger.flush()
    events = [json.loads(message.data) for message in messages if _tells(message)]
    assert [event["eventType"] for event in events if event["eventType"] != "logged"] == [
        "created",
        "started",
        "retry",
        "started",
        "progress",
        "completed",
    ]
    by_type = {event["eventType"]: event for event in events}
    for message, event in zip(filter(_tells, messages), events, strict=True):
        tokens = message.subject.split(".")
        assert tokens[1:6] == ["jobs", "billing", "charge", job.id, event["eventType"]]
        assert event["jobId"] == job.id
        assert event["service"] == "billing"
        assert event["jobType"] == "charge"
        assert event["context"]["requestId"] == events[0]["context"]["requestId"]
        assert event["timestamp"].endswith("Z")
        assert event["concurrency"]["key"] == "tenant:7"
        assert len(event["concurrency"]["keyHash"]) == 64
        assert event["maxTries"] == 3
    created, started = by_type["created"], by_type["started"]
    assert (created["state"], created["payload"]) == ("pending", {"tenant": 7})
    assert (started["state"], started["previousState"], started["tries"]) == ("active", "retry", 2)
    assert "slotToken" not in started["concurrency"], "it is the sequence of this very message"
    assert "no funds" in by_type["retry"]["error"]
    assert by_type["progress"]["progress"] == {
        "step": "pay",
        "message": "half way",
        "current": 1,
        "total": 2,
    }
    done = by_type["completed"]
    assert (done["state"], done["result"]) == ("completed", {"paid": 7})
    assert done["context"] == created["context"]
    logs = [entry for event in events for entry in event.get("logs", ())]
    assert [(entry["level"], entry["message"]) for entry in logs] == [("info", "trying again")]


def _tells(message: Msg) -> bool:
    """Whether something happened to the job; places, leases and edges are ours."""
    return message.subject.split(".")[5] not in (
        "placed",
        "heartbeat",
        "removed",
        "parent",
        "edges",
    )


async def test_what_happened_before_can_be_read_from_the_stream(app: App, stranger: Client) -> None:
    refs = await app.enqueue_many([app.prepare("charge", {"tenant": n}) for n in range(3)])
    js = stranger.jetstream()
    found = await js.subscribe(
        f"{namespace(app)}.jobs.billing.charge.*.created.>", ordered_consumer=True
    )
    ids = [json.loads((await found.next_msg(5)).data)["jobId"] for _ in refs]
    assert ids == [answer.ref.id for answer in refs if answer.ref]


async def test_workers_tell_that_they_are_there(app: App, stranger: Client) -> None:
    messages = await heard(stranger, f"{namespace(app)}.workers.billing.*.heartbeat")
    async with working(app, WorkerOptions(lease=600)):
        await eventually(lambda: len(messages) >= 3)
    beats: list[dict[str, Any]] = [json.loads(message.data) for message in messages]
    assert {beat["service"] for beat in beats} == {"billing"}
    assert {beat["id"] for beat in beats} == {messages[0].subject.split(".")[3]}
    assert beats[0]["beat_at"] < beats[2]["beat_at"]
    assert beats[0]["queues"] == ["default"]


async def test_heartbeats_are_not_stored(app: App, stranger: Client) -> None:
    messages = await heard(stranger, f"{namespace(app)}.workers.>")
    async with working(app):
        await eventually(lambda: messages)
    info = await stranger.jetstream().stream_info(
        f"{namespace(app)}-jobs", subjects_filter=f"{namespace(app)}.workers.>"
    )
    assert not info.state.subjects
