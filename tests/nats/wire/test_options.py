"""Options from URLs."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.core.errors import InvalidValue
from headrace.engine.nats.wire.options import Address, Options, redacted


def test_hosts_ports_user_and_path_are_read() -> None:
    options = Options.parse("nats://ada:s3%40cret@one,two:4333,[::1]:4444/jobs?name=w1")
    assert options.servers == (Address("one", 4222), Address("two", 4333), Address("::1", 4444))
    assert (options.user, options.password) == ("ada", "s3@cret")
    assert (options.path, options.name, options.tls) == ("jobs", "w1", False)


def test_name_alone_before_the_host_is_a_token() -> None:
    options = Options.parse("nats://s3cret@host")
    assert (options.user, options.token) == (None, "s3cret")
    assert Options.parse("nats://host?token=s3cret").token == "s3cret"


def test_tls_is_on_for_its_scheme_and_for_its_files(tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    file.touch()
    assert Options.parse("tls://host").tls
    assert Options.parse(f"nats://host?ca={file}").tls
    assert not Options.parse("nats://host").tls


def test_parameters_of_the_caller_are_handed_on() -> None:
    assert Options.parse("nats://host?replicas=3", known=["replicas"]).extra == {"replicas": "3"}
    with pytest.raises(InvalidValue, match="'replicas' is not known"):
        Options.parse("nats://host?replicas=3")


@pytest.mark.parametrize(
    "url",
    [
        "http://host",
        "nats:host",
        "nats://",
        "nats://host:0",
        "nats://host:99999",
        "nats://host:x",
        "nats://one,,two",
        "nats://[::1",
        "nats://host name",
        "nats://u:s3cret@host?token=s3cret",
        "nats://host?token=",
        "nats://host?token=s3cret&token=s3cret",
        "nats://host?tls_first=perhaps",
        "nats://host?inbox_prefix=a b",
        "nats://host?creds=/no/such/file",
        "nats://u:s3cret@host?ca=/no/such/file",
        "nats://u:s3cret@host?cert=/no/such/file",
        "nats://u:s3cret@host?bogus=1",
        "nats://s3cret@host?bogus=1",
        "u:s3cret@host",
    ],
)
def test_bad_url_is_refused_and_its_secret_is_not_shown(url: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        Options.parse(url)
    assert "s3cret" not in str(caught.value)
    assert caught.value.field == "url"


def test_secrets_are_not_in_the_repr() -> None:
    assert "s3cret" not in repr(Options.parse("nats://u:s3cret@host"))
    assert "s3cret" not in repr(Options.parse("nats://host?token=s3cret"))


def test_redacted_url_keeps_the_rest() -> None:
    assert redacted("nats://u:s3cret@host:1/x?name=w") == "nats://u:***@host:1/x?name=w"
    assert redacted("nats://s3cret@host") == "nats://***@host"
    assert redacted("nats://host?token=s3cret&name=w") == "nats://host?token=***&name=w"
    assert redacted("nats://host") == "nats://host"


def test_file_that_is_no_certificate_is_named(tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    file.write_text("nonsense")
    with pytest.raises(InvalidValue, match=r"ca.pem cannot be used for TLS"):
        Options.parse(f"tls://host?ca={file}").tls_context()
