"""`headrace nats permissions`: exactly what a service needs, and nothing of another's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from headrace import App, EngineError, JobContext, StoreReadOnly
from headrace.core.claims import ClaimRequest, Share
from headrace.engine.nats.layout import Layout
from headrace.engine.nats.permissions import Role, permissions
from headrace.engine.nats.wire.connection import Connection
from headrace.engine.nats.wire.errors import ApiError, PermissionDenied, WireError
from headrace.engine.nats.wire.jetstream import JetStream, Pending
from headrace.engine.nats.wire.options import Options
from headrace.engine.protocol import Prune
from headrace.testing.nats import NatsServer
from tests.support import eventually, within

pytestmark = pytest.mark.timeout(60)

Url = Callable[[str, Role], str]


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    """Lets in the users of two services, with the password `p`."""
    entries: list[str] = []
    for service in ("billing", "mail"):
        for role in Role:
            found = permissions(service, role)
            entries.append(found.entry().replace(f"${found.password_variable}", '"p"'))
    config = f"authorization {{ users: [\n{''.join(entries)}] }}\n"
    with NatsServer(config=config) as server:
        yield server


@pytest.fixture
def url(server: NatsServer, tmp_path: Path) -> Url:
    def url(service: str, role: Role) -> str:
        text = permissions(service, role).url
        text = text.replace("PASSWORD@HOST:4222", f"p@{server.host}")
        return f"{text}&projection={tmp_path / f'{service}-{role}.db'}"

    return url


@pytest.fixture
async def streams(url: Url) -> None:
    """Both services have their stream, made by their admins."""
    for service in ("billing", "mail"):
        async with App(url(service, Role.ADMIN), service=service) as app:
            await app.enqueue_many([app.prepare("seed", {}, queue="seeds")])


@asynccontextmanager
async def client(
    server: NatsServer, service: str, role: Role
) -> AsyncIterator[tuple[Connection, JetStream]]:
    """A client that tries what it likes."""
    found = permissions(service, role)
    url = f"nats://{found.user}:p@{server.host}?inbox_prefix={found.inbox_prefix}"
    connection = await Connection.open(Options.parse(url))
    try:
        yield connection, JetStream(connection)
    finally:
        await connection.close()


@pytest.mark.usefixtures("streams")
async def test_service_runs_its_jobs_with_exactly_these(
    url: Url, caplog: pytest.LogCaptureFixture
) -> None:
    """Plain, keyed, delayed, deduplicated, dependent, failing and cancelled ones; retention too."""
    worker_app = App(url("billing", Role.WORKER), service="billing")

    @worker_app.task(type="charge", key=("t", "/tenant"), max_active=1)
    async def charge(ctx: JobContext, tenant: int) -> int:
        ctx.progress("half", current=1, total=2)
        return tenant

    @worker_app.task(type="flaky", max_tries=2, retry=0.05)
    async def flaky(ctx: JobContext) -> int:
        if ctx.number == 1:
            raise ValueError("once")
        return ctx.number

    @worker_app.task(type="parent")
    async def parent() -> str:
        return "done"

    async with worker_app, App(url("billing", Role.PRODUCER), service="billing") as app:
        worker = worker_app.worker()
        await worker.start()
        keyed = [
            app.prepare("charge", {"tenant": 1}, key=("t", "/tenant"), max_active=1)
            for _ in range(3)
        ]
        first = app.prepare("parent", {})
        jobs = [
            *keyed,
            app.prepare("flaky", {}, max_tries=2, retry=0.05),
            app.prepare("parent", {}, delay=0.2),
            app.prepare("parent", {}, unique="once"),
            first,
            app.prepare("parent", {}, depends_on=[first.id]),
        ]
        answers = [answer for job in jobs for answer in await app.enqueue_many([job])]
        for answer in answers:
            assert answer.ref
            await within(answer.ref.result(20))
        (late,) = await app.enqueue_many([app.prepare("parent", {}, delay=3600)])
        assert late.ref
        await late.ref.cancel()
        assert (await late.ref.get()).state == "cancelled"
        assert len([job async for job in app.find(limit=None)]) >= len(jobs)
        await eventually(lambda: worker_app.workers())
        engine = await worker_app.engine()
        await engine.prune(Prune(now=worker_app.clock.now(), cutoffs=(), journal_before=0, limit=9))
        await worker.stop()
    assert [line for line in caplog.messages if "may not" in line] == []


@pytest.mark.usefixtures("streams")
async def test_producer_can_neither_claim_nor_purge_nor_end_jobs(
    url: Url, server: NatsServer
) -> None:
    layout = Layout("billing")
    async with App(url("billing", Role.PRODUCER), service="billing") as app:
        await app.enqueue_many([app.prepare("parent", {})])
        engine = await app.engine()
        request = ClaimRequest(
            service="billing",
            worker="w1",
            shares=(Share("default", 1),),
            limit=1,
            lease=1000,
            now=app.clock.now(),
        )
        with pytest.raises(StoreReadOnly, match="headrace nats permissions"):
            await engine.claim(request)
    async with client(server, "billing", Role.PRODUCER) as (_, js):
        for attempt in (
            js.purge(layout.stream, b"billing.>"),
            js.api(f"STREAM.DELETE.{layout.stream}"),
            js.api(f"STREAM.UPDATE.{layout.stream}", {}),
            js.store_batch([Pending(b"billing.jobs.billing.parent.x.started", b"{}")], 1),
            js.store_batch([Pending(b"billing.jobs.billing.parent.x.completed", b"{}")], 1),
        ):
            with pytest.raises(PermissionDenied):
                await attempt


@pytest.mark.usefixtures("streams")
@pytest.mark.parametrize("role", list(Role))
async def test_service_can_neither_read_nor_write_anothers(server: NatsServer, role: Role) -> None:
    layout = Layout("mail")
    refused: list[WireError] = []
    found = permissions("billing", role)
    options = Options.parse(
        f"nats://{found.user}:p@{server.host}?inbox_prefix={found.inbox_prefix}"
    )
    connection = await Connection.open(options, on_error=refused.append)
    js = JetStream(connection)
    consumer = {"stream_name": layout.stream, "config": {"durable_name": "spy"}}
    try:
        for attempt in (
            js.store_batch([Pending(b"mail.jobs.mail.t.x.created.ready.default.5", b"{}")], 1),
            js.store_batch([Pending(b"mail.rec.doc.queue.x", b"{}")], 1),
            js.last(layout.stream, [b"mail.>"], 1),
            js.read(layout.stream, 0, b">", 10, 1),
            js.api(f"STREAM.INFO.{layout.stream}", timeout=1),
            js.api(f"STREAM.MSG.GET.{layout.stream}", {"seq": 1}, timeout=1),
            js.api(f"CONSUMER.CREATE.{layout.stream}.spy", consumer, timeout=1),
            js.api(f"CONSUMER.MSG.NEXT.{layout.stream}.mail~seeds~5", {"batch": 1}, timeout=1),
            js.purge(layout.stream, b"mail.>"),
            js.api(f"STREAM.DELETE.{layout.stream}", timeout=1),
        ):
            with pytest.raises(PermissionDenied):
                await attempt
        got: list[object] = []
        for subject in (b"mail.>", b"mail.bell.>", b"_INBOX_mail-worker.>", b">", b"_INBOX.>"):
            refused.clear()
            connection.subscribe(subject, lambda *message: got.append(message))
            await connection.flush()
            assert any(isinstance(error, PermissionDenied) for error in refused), subject
        assert got == []
    finally:
        await connection.close()


async def test_stream_that_a_user_may_not_make_is_named_with_the_remedy(
    server: NatsServer, url: Url
) -> None:
    async with client(server, "billing", Role.ADMIN) as (_, js):
        with suppress(ApiError):
            await js.api(f"STREAM.DELETE.{Layout('billing').stream}")
    with pytest.raises(EngineError, match=r"no stream billing-jobs.*--role admin"):
        await App(url("billing", Role.WORKER), service="billing").open()


def test_entry_names_every_subject() -> None:
    found = permissions("billing", Role.PRODUCER)
    assert found.publish_denied == (
        "billing.jobs.*.*.*.started",
        "billing.jobs.*.*.*.heartbeat",
        "billing.jobs.*.*.*.completed",
    )
    assert all(f'"{subject}"' in found.entry() for subject in found.publish)
    assert "billing.jobs.billing.>" in found.publish


async def test_workers_of_two_services_do_not_meet(url: Url) -> None:
    """Each sees only its own jobs, whatever the names of their queues."""
    seen: list[tuple[str, str]] = []
    apps: list[App] = []
    for service in ("billing", "mail"):
        async with App(url(service, Role.ADMIN), service=service):
            pass
        app = App(url(service, Role.WORKER), service=service)

        @app.task(type="t")
        async def handler(ctx: JobContext, of: str = service) -> None:
            seen.append((of, ctx.job.service))

        apps.append(app)
    for app in apps:
        async with app:
            worker = app.worker()
            await worker.start()
            (answer,) = await app.enqueue_many([app.prepare("t", {})])
            assert answer.ref
            await within(answer.ref.wait(20))
            await worker.stop()
    await asyncio.sleep(0)
    assert sorted(seen) == [("billing", "billing"), ("mail", "mail")]
