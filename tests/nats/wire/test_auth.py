"""Who is let in."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path

import pytest

from headrace.core.errors import InvalidValue
from headrace.engine.nats.wire.connection import Connection
from headrace.engine.nats.wire.errors import AuthRefused
from headrace.engine.nats.wire.nkey import ACCOUNT, OPERATOR, USER, KeyPair
from headrace.engine.nats.wire.options import Options
from headrace.testing.nats import NatsServer, with_nkey, with_token, with_user
from tests.nats.wire.support import Signal
from tests.support import within

SEED = "SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY"


async def connects(url: str) -> bool:
    connection = await Connection.open(Options.parse(url))
    await connection.flush()
    await connection.close()
    return True


def key(kind: int = USER) -> KeyPair:
    return KeyPair(kind, os.urandom(32))


def saved(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


class TestPasswords:
    async def test_user_and_password(self) -> None:
        with NatsServer(config=with_user("ada", "s3cret/@")) as server:
            assert await connects(f"nats://ada:s3cret%2F%40@{server.host}")
            for url in (f"nats://ada:wrong@{server.host}", f"nats://{server.host}"):
                opening = Connection.open(Options.parse(url))
                with pytest.raises(AuthRefused) as caught:
                    await opening
                assert server.host in str(caught.value)
                assert "wrong" not in str(caught.value)

    async def test_token(self) -> None:
        with NatsServer(config=with_token("s3cret")) as server:
            assert await connects(f"nats://s3cret@{server.host}")
            assert await connects(f"nats://{server.host}?token=s3cret")
            opening = Connection.open(Options.parse(f"nats://wrong@{server.host}"))
            with pytest.raises(AuthRefused, match="refuses a token"):
                await opening

    async def test_user_who_is_shut_out_is_told_and_let_in_again(self) -> None:
        with NatsServer(config=with_user("ada", "x")) as server:
            errors, found = Signal(), Signal()
            connection = await Connection.open(
                Options.parse(f"nats://ada:x@{server.host}"), on_error=errors, on_reconnect=found
            )
            server.reload(with_user("ada", "y"))
            await within(errors.after(2))
            assert {type(call[0]) for call in errors.calls} == {AuthRefused}
            server.reload(with_user("ada", "x"))
            await within(found.wait())
            await connection.close()


class TestKeys:
    async def test_nkey_signs_the_nonce(self, tmp_path: Path) -> None:
        mine, other = key(), key()
        with NatsServer(config=with_nkey(mine.public)) as server:
            file = saved(tmp_path / "user.nk", mine.seed + "\n")
            assert await connects(f"nats://{server.host}?nkey={file}")
            file = saved(tmp_path / "other.nk", other.seed)
            opening = Connection.open(Options.parse(f"nats://{server.host}?nkey={file}"))
            with pytest.raises(AuthRefused, match=r"other\.nk"):
                await opening

    async def test_server_without_keys_says_so(self, tmp_path: Path, server: NatsServer) -> None:
        file = saved(tmp_path / "user.nk", key().seed)
        opening = Connection.open(Options.parse(f"{server.url}?nkey={file}"))
        with pytest.raises(AuthRefused, match="does not take keys"):
            await opening

    def test_seed_is_read_and_written(self) -> None:
        for kind, letters in ((USER, "SU"), (ACCOUNT, "SA"), (OPERATOR, "SO")):
            pair = key(kind)
            assert pair.seed.startswith(letters)
            assert pair.public[0] == letters[1]
            assert KeyPair.from_seed(pair.seed).public == pair.public

    def test_seed_of_the_nats_documentation_has_the_public_key_given_there(self) -> None:
        pair = KeyPair.from_seed(SEED)
        assert pair.public == "UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4"
        assert pair.seed == SEED

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "nonsense!",
            "SUAM",
            "UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4",
            SEED.replace("HUDX", "HUDY"),
            SEED.lower(),
        ],
    )
    def test_what_is_no_seed_is_refused(self, text: str) -> None:
        with pytest.raises(ValueError, match=r"base32|checksum|seed"):
            KeyPair.from_seed(text)

    async def test_file_without_a_seed_is_named(self, tmp_path: Path) -> None:
        file = saved(tmp_path / "user.nk", "nonsense")
        with NatsServer(config=with_nkey(key().public)) as server:
            opening = Connection.open(Options.parse(f"nats://{server.host}?nkey={file}"))
            with pytest.raises(InvalidValue, match=r"user\.nk holds no usable nkey seed"):
                await opening


class TestCredentials:
    async def test_jwt_of_an_account_lets_in(self, tmp_path: Path) -> None:
        operator, account, user = key(OPERATOR), key(ACCOUNT), key()
        with NatsServer(jetstream=False, config=resolver(operator, account)) as server:
            file = saved(tmp_path / "user.creds", creds(account, user))
            assert await connects(f"nats://{server.host}?creds={file}")
            stranger = saved(tmp_path / "stranger.creds", creds(key(ACCOUNT), user))
            opening = Connection.open(Options.parse(f"nats://{server.host}?creds={stranger}"))
            with pytest.raises(AuthRefused, match=r"stranger\.creds"):
                await opening

    async def test_credentials_are_read_again_when_reconnecting(self, tmp_path: Path) -> None:
        operator, account = key(OPERATOR), key(ACCOUNT)
        with NatsServer(jetstream=False, config=resolver(operator, account)) as server:
            file = saved(tmp_path / "user.creds", creds(account, key()))
            errors, found = Signal(), Signal()
            connection = await Connection.open(
                Options.parse(f"nats://{server.host}?creds={file}"),
                on_error=errors,
                on_reconnect=found,
            )
            file.unlink()
            server.kill()
            server.start()
            await within(errors.wait())
            saved(file, creds(account, key()))
            await within(found.wait())
            await connection.close()

    async def test_other_file_is_refused(self, tmp_path: Path, server: NatsServer) -> None:
        file = saved(tmp_path / "user.creds", "nonsense")
        opening = Connection.open(Options.parse(f"{server.url}?creds={file}"))
        with pytest.raises(InvalidValue, match="is no credentials file"):
            await opening


# The claims that `nsc` would make, signed by hand.


def claims(kind: str, issuer: KeyPair, subject: str, **nats: object) -> str:
    body = {"jti": os.urandom(8).hex(), "iat": 1_700_000_000, "iss": issuer.public, "name": kind}
    body |= {"sub": subject, "nats": {"type": kind, "version": 2, **nats}}
    signed = b".".join(map(encoded, ({"typ": "JWT", "alg": "ed25519-nkey"}, body)))
    return (signed + b"." + base64.urlsafe_b64encode(issuer.sign(signed)).rstrip(b"=")).decode()


def encoded(part: object) -> bytes:
    return base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=")


def resolver(operator: KeyPair, account: KeyPair) -> str:
    limits = {"subs": -1, "conn": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1}
    limits |= {"wildcards": True, "leaf": -1}
    jwt = claims("account", operator, account.public, limits=limits)
    return (
        f"operator: {claims('operator', operator, operator.public)}\n"
        f"resolver: MEMORY\nresolver_preload: {{ {account.public}: {jwt} }}\n"
    )


def creds(account: KeyPair, user: KeyPair) -> str:
    jwt = claims("user", account, user.public, subs=-1, data=-1, payload=-1)
    return (
        f"-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n"
        "************************* IMPORTANT *************************\n"
        "NKEY Seed printed below can be used to sign and prove identity.\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{user.seed}\n------END USER NKEY SEED------\n"
    )
