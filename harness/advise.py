"""`python -m harness.advise`: which layout, how fast, how sure?"""

from harness.commands.entry import run_module

if __name__ == "__main__":
    run_module("harness.advise", "harness.ask.advise")
