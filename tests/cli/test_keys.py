"""`headrace key`: show and release."""

from __future__ import annotations

import pytest

from headrace import App
from headrace.cli.keys import readings
from headrace.core.claims import ClaimRequest, Share
from headrace.core.keys import hash_of
from tests.cli.helpers import Cli


def claim(cli: Cli, lease: int) -> str:
    """Takes the next job as a worker that is never heard of again."""

    async def take(app: App) -> str:
        engine = await app.engine()
        claimed = await engine.claim(
            ClaimRequest(
                service="default",
                worker="w-gone",
                shares=(Share("default", 1),),
                limit=1,
                lease=lease,
                now=app.clock.now(),
            )
        )
        return claimed.jobs[0].id

    return cli.do(take)


def test_segments_are_text_or_number_unless_quoted() -> None:
    assert readings(["tenant", "42"]) == [hash_of(["tenant", "42"]), hash_of(["tenant", 42])]
    assert readings(["tenant", '"42"']) == [hash_of(["tenant", "42"])]
    assert readings(["true"]) == [hash_of(["true"]), hash_of([True])]
    assert readings([hash_of(["a"])]) == [hash_of(["a"])]
    assert len(readings(["1"] * 20)) == 256


def test_show_tells_who_runs_and_who_waits(cli: Cli) -> None:
    jobs = [
        cli.add("hello", '{"tenant": 42}', "--key", "tenant", "--key", "/tenant") for _ in range(3)
    ]
    owner = claim(cli, 60_000)
    (shape,) = cli.json("key", "show", "tenant", "42")
    assert [job["id"] for job in shape["active"]] == [owner]
    assert [job["id"] for job in shape["next"]] == jobs[1:]
    assert (shape["name"], shape["queued"], shape["takeovers"]) == ("tenant:42", 2, 0)
    assert (shape["active"][0]["heartbeat_at"], shape["active"][0]["heartbeat_age"]) == (None, None)
    text = cli("key", "show", shape["hash"]).stdout
    assert "active     1 of 1" in text
    assert f"{owner}  hello  w-gone" in text
    assert f"  {jobs[1]}  parked  default  hello" in text


def test_show_of_an_unknown_key_says_how_to_name_one(cli: Cli) -> None:
    cli.add("hello")
    error = cli.error("key", "show", "tenant", "43")
    assert "no living job of service 'default' has the key 'tenant:43'" in error


def test_release_takes_the_slot_of_an_owner_that_is_gone(cli: Cli) -> None:
    cli.add("hello", "--key", "k")
    owner = claim(cli, 1)
    assert cli("key", "release", "k").stdout == "released 1 slot of key k\n"
    assert cli.json("job", "view", owner)["state"] == "stale"


def test_release_refuses_while_the_owner_lives(cli: Cli) -> None:
    cli.add("hello", "--key", "k")
    owner = claim(cli, 600_000)
    error = cli.error("key", "release", "k")
    assert f"key 'k' is held by living owners ({owner} on w-gone); cancel their jobs" in error
    assert cli.json("job", "view", owner)["state"] == "active"


@pytest.mark.parametrize("command", ["show", "release"])
def test_a_key_needs_segments(cli: Cli, command: str) -> None:
    assert "Missing argument 'SEGMENT...'" in cli.error("key", command, code=2)
