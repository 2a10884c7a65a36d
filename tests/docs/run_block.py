"""Runs one block of a page in a process of its own: `run_block.py PAGE LINE FILE`.

A bare `await` works, as it does in `python -m asyncio`.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import os
import sys
import types
from pathlib import Path


def main(page: str, line: str, file: str) -> None:
    # The block keeps the line numbers of its page, so that a traceback leads there.
    source = "\n" * (int(line) - 1) + Path(file).read_text("utf-8")
    code = compile(source, page, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    sys.path[0] = os.getcwd()
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    answer = types.FunctionType(code, vars(module))()
    if inspect.iscoroutine(answer):
        asyncio.run(answer)


if __name__ == "__main__":
    main(*sys.argv[1:])
