"""`python -m harness.profile`: where does the time of a training step go?"""

from harness.commands.entry import run_module

if __name__ == "__main__":
    run_module("harness.profile", "harness.commands.profile")
