"""Every place where bytes or words from outside are read, as a function of bytes."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from headrace.app.options import check as check_options
from headrace.app.options import key_segments
from headrace.app.queues import parse_rate
from headrace.cli.settings import changes
from headrace.core import keys, queue
from headrace.core.codec import Parameters, decode_any
from headrace.core.event import Event, wire
from headrace.core.names import check_name
from headrace.core.queue import DEFAULTS
from headrace.core.search import parse_cursor
from headrace.engine.nats.wire.errors import ProtocolError
from headrace.engine.nats.wire.options import Options
from headrace.engine.nats.wire.parser import Parser
from headrace.engine.sqlite.location import locate
from headrace.runtime.context import parse_token


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def _handler(n: int, names: list[str] | None = None, *rest: float, **more: bool) -> None: ...


_PARAMETERS = Parameters(_handler)
_EVENT = msgspec.json.Decoder(Event)


def payload(data: bytes) -> None:
    args, kwargs = _PARAMETERS.decode(data)
    _handler(*args, **kwargs)


def document(data: bytes) -> None:
    settings = queue.check(queue.decode(data))
    queue.classify(DEFAULTS, settings)
    for number in (1, 5, 100):
        settings.retry.delay(number, 0.5)


def event(data: bytes) -> None:
    try:
        read = _EVENT.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return  # what the decoder itself refuses is not ours
    if all(0 <= at < 253_402_300_800_000 for at in _moments(read)):
        msgspec.json.encode(wire(read))


def _moments(event: Event) -> list[int]:
    slot = event.slot.lease_until if event.slot else None
    times = [event.at, event.deadline, slot, *(entry.at for entry in event.logs)]
    return [at for at in times if at is not None]


def name(data: bytes) -> None:
    check_name("id", _text(data))


def cursor(data: bytes) -> None:
    parse_cursor(_text(data))


def token(data: bytes) -> None:
    text = _text(data)
    if len(text) <= 150:  # `app.detached` refuses what is longer
        parse_token(text)


def rate(data: bytes) -> None:
    limit = parse_rate(_text(data))
    queue.check(msgspec.structs.replace(DEFAULTS, rate=limit))


def setting(data: bytes) -> None:
    name, _, text = _text(data).partition("=")
    changes(DEFAULTS, [(name, text)])


def location(data: bytes) -> None:
    locate(f"sqlite:{_text(data)}")


def key(data: bytes) -> None:
    """A template and a payload, with a line break between them."""
    template, _, body = data.partition(b"\n")
    decoded = decode_any(template)
    options = check_options({"key": decoded})
    segments = key_segments("key", options["key"], body)  # pyright: ignore[reportTypedDictNotRequiredAccess]
    keys.hash_of(segments)
    keys.name_of(segments)


def protocol(data: bytes) -> None:
    """What a NATS server sends, cut in two where a line break stands first."""
    parser = Parser(lambda _: None, _raise)
    parser.callbacks[b"1"] = lambda *_: None
    cut = data.find(b"\n") + 1
    try:
        parser.feed(data[:cut])
        parser.feed(data[cut:])
    except ProtocolError:
        return
    assert parser.held <= len(data)


def _raise(error: Exception) -> None:
    raise error


def address(data: bytes) -> None:
    Options.parse(f"nats://{_text(data)}", ("namespace",))


TARGETS: dict[Callable[[bytes], None], list[bytes]] = {
    payload: [b'{"n":1,"names":["a"],"rest":[1.5],"x":true}', b'{"n":1}'],
    document: [
        b'{"max_active":3,"rate":{"count":1,"period":1000},"retention":{"dead":{"age":5}}}',
        b'{"retry":{"type":"linear","steps":2,"first":1,"last":5,"jitter":0.5}}',
        b'{"retry":{"type":"exponential","base":1.5}}',
    ],
    event: [
        b'{"seq":1,"at":5,"job_id":"a","service":"s","queue":"q","type":"t","event":"created",'
        b'"state":"pending","context":{"request_id":"a","traceparent":"00-1-2-01"}}'
    ],
    name: [b"email:new", b"a" * 128],
    cursor: [b"17"],
    token: [b"job.17"],
    rate: [b"100/s", b"10/5s+20"],
    setting: [b"max_active=5", b"retention.dead.count=5", b"retry=5s,1m", b"rate=1/s"],
    location: [b"jobs.db", b"///a/b?synchronous=normal&busy_timeout=3"],
    protocol: [
        b"MSG a.b 1 5\r\nhello\r\nPING\r\n",
        b"HMSG a 1 r 12 17\r\nNATS/1.0\r\n\r\nhello\r\n",
        b"INFO {\"a\":1}\r\n-ERR 'x'\r\n",
    ],
    address: [b"ada:s3cret@one:4222,two?namespace=a", b"[::1]:4222?token=x"],
    key: [b'["tenant","/a/0"]\n{"a":[1]}', b'"x"\n{}'],
}
