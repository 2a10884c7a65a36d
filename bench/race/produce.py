"""A contestant's producer: `python produce.py with_huey`.

The contestant is a module beside this one, not the main program: some name tasks by their module.
"""

from __future__ import annotations

import asyncio
import importlib
import sys

from contestant import serve

if __name__ == "__main__":
    asyncio.run(serve(importlib.import_module(sys.argv[1]).CONTESTANT))
