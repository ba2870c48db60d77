"""`python -m harness`: run suites, and every other command by its name."""

from harness.commands.main import command_line

if __name__ == "__main__":
    command_line()
