"""Values that nobody should pass. What must come of them: taken, or refused by a typed error."""

from __future__ import annotations

import os
import traceback
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from headrace import HeadraceError

QUICK = settings(
    max_examples=int(os.environ.get("HEADRACE_FUZZ_RUNS", "100")),
    deadline=None,
    suppress_health_check=list(HealthCheck),
)

TEXTS = st.one_of(
    st.text(max_size=20),
    st.sampled_from(
        [
            "",
            "\0",
            "a\0b",
            "\ud800",
            "é",
            "…",
            "-1",
            "1e999",
            "9" * 30,
            "9" * 5000,
            "/",
            "a/b",
            "%s",
        ]
    ),
)
NUMBERS = st.one_of(
    st.integers(-3, 20),
    st.sampled_from([2**31, 2**53, 2**63 - 1, 2**63, 2**64, -(2**63) - 1, 10**30, 10**400]),
    st.floats(),
    st.sampled_from([1e10, 1e18, 1e300]),
)
SCALARS = st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS)
MOMENTS = st.one_of(
    st.datetimes(),
    st.datetimes(timezones=st.just(UTC)),
    st.sampled_from([datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)]),
    st.timedeltas(),
    st.sampled_from([timedelta.max, timedelta.min]),
)
ODD = st.one_of(
    SCALARS,
    MOMENTS,
    st.binary(max_size=5),
    st.just(object()),
    st.just(Decimal("NaN")),
)
ANYTHING = st.recursive(
    ODD,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.tuples(inner, inner),
        st.dictionaries(SCALARS, inner, max_size=3),
        st.sets(SCALARS, max_size=2),
    ),
    max_leaves=6,
)


def refusal(attempt: Callable[[], object]) -> str | None:
    """What a refusal says, None where there was none. Any other exception is passed on."""
    try:
        attempt()
    except HeadraceError as error:
        return str(error)
    return None


async def taken(attempt: Awaitable[Any], *also: type[BaseException]) -> bool:
    """Whether it was taken; anything but a typed refusal that says something is a failure."""
    try:
        await attempt
    except (HeadraceError, *also) as error:
        said = str(error)
    except Exception as error:
        text = "".join(traceback.format_exception(error, limit=-3))
        raise AssertionError(f"not a typed refusal:\n{text}") from None
    else:
        return True
    assert said
    return False
