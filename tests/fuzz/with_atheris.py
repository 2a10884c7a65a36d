"""A long search by hand with atheris, which is no dependency of the project:

pip install atheris
python -m tests.fuzz.with_atheris TARGET -max_total_time=300
"""

from __future__ import annotations

import sys

import atheris

with atheris.instrument_imports(include=["headrace"]):
    from headrace import HeadraceError
    from tests.fuzz.targets import TARGETS


def main() -> None:
    by_name = {target.__name__: target for target in TARGETS}
    target = by_name[sys.argv.pop(1)]

    def once(data: bytes) -> None:
        try:
            target(data)
        except HeadraceError as error:
            assert str(error)  # noqa: PT017

    atheris.Setup(sys.argv, once)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
