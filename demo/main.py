"""The demo: a shop's evening on one SQLite file, with several workers, one of which is killed.

It takes half a minute, checks itself, and ends with 0 if all was as it should be.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from pathlib import Path


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="headrace-demo-", ignore_cleanup_errors=True) as name:
        # Read by tasks.py, here and in the workers.
        os.environ["HEADRACE_URL"] = f"sqlite:{name}/shop.db"
        os.environ["DEMO_DIARY"] = f"{name}/diary.txt"
        os.environ["DEMO_OFFICE"] = f"{name}/office-is-open"
        from crew import Crew
        from show import watched

        crew = Crew(Path(name))
        try:
            return asyncio.run(watched(crew, Path(name)))
        except BrokenPipeError:  # whoever read along has left
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 1
        finally:
            crew.disband()


if __name__ == "__main__":
    sys.stdout.reconfigure(errors="replace")
    sys.exit(main())
