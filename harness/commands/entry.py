"""How every command begins and ends: its help, a mistake as one line, and the exit status."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Sequence

from harness.config.validation import ConfigError

DONE, FAILED, MISTAKE, NO, BROKEN_CELL = 0, 1, 2, 3, 4
"""Exit statuses: done, a failure while it ran, a mistake of the user's, a no (it does not fit), and a sweep
in which a cell crashed or computed wrongly."""


def start(name: str, argv: Sequence[str], usage: str, answer: Callable[[Sequence[str]], int]) -> int:
    """Print the usage, or answer the words of `argv`; return the exit status."""
    if not argv or {"-h", "--help"}.intersection(argv):
        print_all([usage.rstrip()])
        return DONE if argv else MISTAKE
    if "--version" in argv:
        from harness.commands.run.command_line import version_line

        print_all([version_line()])
        return DONE
    return guarded(name, lambda: answer(argv))


def guarded(name: str, answer: Callable[[], int]) -> int:
    """Return the exit status of an answer; a mistake becomes one line with the command's name."""
    from harness.instruments.traces.reading.error import TraceError
    from harness.sweep.executors import ExecutorError
    from harness.sweep.store import OtherSchemaError, StoreError

    try:
        return answer()
    except (ConfigError, ExecutorError, OtherSchemaError, TraceError) as error:
        return complain(name, error, MISTAKE)
    except StoreError as error:
        return complain(name, error, FAILED)


def complain(name: str, error: object, status: int) -> int:
    """Print one line about what went wrong, with the command's name; return the exit status."""
    sys.stderr.write(f"{name}: {error}\n")
    return status


def print_all(lines: Iterable[str]) -> None:
    """Print the lines; whoever reads them may stop, as `head` does."""
    try:
        sys.stdout.write("\n".join(lines) + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at the process's end
