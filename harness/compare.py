"""`python -m harness.compare`: what changed between two results folders?"""

from harness.commands.entry import run_module

if __name__ == "__main__":
    run_module("harness.compare", "harness.commands.compare")
