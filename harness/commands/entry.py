"""How every command begins and ends: its help, a mistake as one line, and the exit status."""

from __future__ import annotations

import codecs
import errno
import os
import re
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module

from harness.config.validation import ConfigError

DONE, FAILED, MISTAKE, NO, BROKEN_CELL, DEPENDS = 0, 1, 2, 3, 4, 5
"""Exit statuses: done, a failure while it ran, a mistake of the user's, a no (it does not fit), a sweep
in which a cell crashed or computed wrongly, and an answer that depends on what was not said."""

INTERRUPTED = 128 + signal.SIGINT  # exit status after Ctrl-C

LONGEST = 299
"""Characters of an error message before its end of line; a longer one is shortened in the middle."""

LONG_WORD = re.compile(r"\S{100,}")  # a value or a path so long that it is shortened first

PLAIN = str.maketrans(
    {"×": "x", "–": "-", "—": "-", "…": "...", "·": "*", "²": "2", "³": "3", "µ": "u", "→": "->", "−": "-"}
    | {"≤": "<=", "≥": ">=", "±": "+-", "’": "'", "“": '"', "”": '"', "é": "e", "ö": "oe", "≈": "about "}
)
"""What stands for characters that the terminal's encoding does not have; `?` for others."""


def run_module(name: str, module: str) -> None:
    """Run a command's module as a process: import it, call its `main`, and exit with its status.

    What the terminal's encoding does not have is written readably; Ctrl-C is one line, whenever it comes.
    """
    codecs.register_error("readable", readable)
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="readable")
    try:
        status = int(import_module(module).main(sys.argv[1:]))
    except KeyboardInterrupt:
        status = complain(name, "interrupted", INTERRUPTED)
    sys.exit(status)


OF_PATHS = (
    *(errno.ENOENT, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EISDIR),
    *(errno.ENAMETOOLONG, errno.EEXIST),
)
"""What the system says of a path that was typed wrongly."""

OF_DISKS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)  # what it says of a disk that takes no more


def start(name: str, argv: Sequence[str], usage: str, answer: Callable[[Sequence[str]], int]) -> int:
    """Print the usage, or answer the words of `argv`; return the exit status."""
    if not argv or {"-h", "--help"}.intersection(argv):
        print_all([usage.rstrip()])
        return DONE if argv else MISTAKE
    if "--version" in argv:
        print_all([version_line()])
        return DONE
    return guarded(name, lambda: answer(argv))


def version_line() -> str:
    """Return what `--version` prints."""
    from importlib.metadata import distributions

    names = ("throughput-harness", "torch")
    found = {name: next(iter(distributions(name=name)), None) for name in names}
    return ", ".join(f"{name} {one.version if one else '(not installed)'}" for name, one in found.items())


def guarded(name: str, answer: Callable[[], int]) -> int:
    """Return the exit status of an answer; a mistake becomes one line with the command's name."""
    from harness.instruments.traces import TraceError
    from harness.sweep.executors import ExecutorError
    from harness.sweep.store import OtherSchemaError, StoreError

    try:
        return answer()
    except (ConfigError, ExecutorError, OtherSchemaError, TraceError) as error:
        return complain(name, error, MISTAKE)
    except StoreError as error:
        too_long = getattr(error.__cause__, "errno", 0) == errno.ENAMETOOLONG
        return complain(name, error, MISTAKE if too_long else FAILED)
    except OSError as error:
        if error.errno not in (*OF_PATHS, *OF_DISKS):
            raise
        where = "" if error.filename is None else f"{os.fspath(error.filename)}: "
        return complain(name, f"{where}{error.strerror}", MISTAKE if error.errno in OF_PATHS else FAILED)


def complain(name: str, error: object, status: int) -> int:
    """Print one line about what went wrong, with the command's name; return the exit status."""
    sys.stderr.write(shortened(f"{name}: {error}") + "\n")
    return status


def shortened(text: str, longest: int = LONGEST) -> str:
    """Return text in one line of at most `longest` characters, shortened in the middle."""
    line = " ".join(text.split())
    if len(line) > longest:
        line = LONG_WORD.sub(lambda word: without_middle(word.group(), 80), line)
    return without_middle(line, longest)


def without_middle(text: str, longest: int) -> str:
    """Return text of at most `longest` characters, with dots for what is left out."""
    if len(text) <= longest:
        return text
    end = (longest - 3) // 3
    return f"{text[: longest - 3 - end]}...{text[-end:]}"


def print_all(lines: Iterable[str]) -> None:
    """Print the lines; whoever reads them may stop, as `head` does."""
    try:
        sys.stdout.write("\n".join(lines) + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at the process's end


def readable(error: UnicodeError) -> tuple[str, int]:
    """Return what stands for characters that cannot be encoded, and where to go on; see `codecs`."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end].translate(PLAIN)
    return text.encode("ascii", "replace").decode("ascii"), error.end
