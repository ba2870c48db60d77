"""`python -m harness`: run suites, and every other command by its name."""

from harness.commands.entry import run_module

if __name__ == "__main__":
    run_module("harness", "harness.commands.main")
