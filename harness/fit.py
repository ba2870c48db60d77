"""`python -m harness.fit`: does a training step of a model fit a device?"""

from harness.commands.entry import run_module

if __name__ == "__main__":
    run_module("harness.fit", "harness.ask.fit")
