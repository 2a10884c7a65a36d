"""What an engine leaves behind on its servers."""

from __future__ import annotations

from headrace.engine.nats.layout import Layout
from headrace.engine.nats.patience import PatientJetStream
from headrace.engine.nats.wire.connection import Connection
from headrace.engine.nats.wire.errors import ApiError
from headrace.engine.nats.wire.options import Options

NO_STREAM = 10059


async def remove_stream(url: str, namespace: str) -> None:
    """Removes the stream of an engine that is closed, if it was ever opened.

    In a cluster a stream is a Raft group, and so is each of its consumers; their heartbeats never
    end. With those of a few hundred tests three servers are busy with nothing else.
    """
    connection = await Connection.open(Options.parse(url))
    try:
        await PatientJetStream(connection).api(f"STREAM.DELETE.{Layout(namespace).stream}")
    except ApiError as error:
        if error.err_code != NO_STREAM:
            raise
    finally:
        await connection.close()
