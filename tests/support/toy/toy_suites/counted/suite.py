"""A suite that logs each of its imports, and whose cells report what their process is like."""

import os
import time

from toy_suites.faults.suite import build, check, close, conditions, sample

__all__ = ["build", "check", "close", "conditions", "preload", "sample"]


def note(line):
    with open(os.environ["TOY_LOG"], "a") as file:
        file.write(f"{line}\n")


def preload():
    from toy_suites.counted import late  # noqa: F401


note("import")
time.sleep(float(os.environ.get("TOY_IMPORT_S", "0")))
if "TOY_BROKEN" in os.environ:
    raise ValueError("cannot be imported")
