"""What a user types to the command that answers it.

What not every command needs is imported where it is used, so that `--help` answers at once.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from importlib import import_module

from harness.commands.command_line import START, USAGE, Command, read
from harness.commands.entry import DONE, MISTAKE, guarded, print_all, run_module, version_line

COMMANDS = {
    "advise": "harness.ask.advise",
    "fit": "harness.ask.fit",
    "cost": "harness.ask.cost",
    "profile": "harness.commands.profile",
    "compare": "harness.commands.compare",
}
"""The module of each command that is not a sweep; `python -m harness.fit` starts the same one."""


def main(argv: Sequence[str]) -> int:
    """Run a command and return its exit status, see `harness.commands.entry`; 128 + N after a signal."""
    if argv and argv[0] in COMMANDS:
        return int(import_module(COMMANDS[argv[0]]).main(argv[1:]))
    logging.basicConfig(format="harness: %(message)s", level=logging.WARNING)
    logging.getLogger("harness.sweep.progress").setLevel(logging.INFO)
    if not argv:
        print_all([START.rstrip()])
        return MISTAKE
    return guarded("harness", lambda: answer(argv))


def answer(argv: Sequence[str]) -> int:
    """Print what was asked for, or run it; return the exit status.

    Raises ConfigError, ExecutorError and StoreError.
    """
    command = read(argv)
    if command.shown:
        print_all(shown(command))
        return DONE
    from harness.commands.suites import run_command
    from harness.sweep.executors.torchrun import executor_context

    with executor_context():
        return run_command(command.words)


def command_line() -> None:
    """Run the command `throughput-harness`."""
    run_module("harness", __name__)


def shown(command: Command) -> Iterator[str]:
    """Yield the lines that a command prints which runs nothing; raises ConfigError."""
    if command.shown in ("--help", "--version"):
        yield USAGE if command.shown == "--help" else version_line()
        return
    from harness.commands import listing

    match command.shown:
        case "--cfg":
            yield listing.config_yaml(command.words, command.package, command.resolve).rstrip()
        case "--info":
            yield from listing.info_lines(command.words, command.value)
        case "--shell-completion":
            yield from listing.completion_lines(command.value)
        case "list":
            yield from listing.list_lines(command.words)
