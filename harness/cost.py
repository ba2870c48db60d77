"""`python -m harness.cost`: what do tokens and a training run cost?"""

from harness.commands.entry import run_module

if __name__ == "__main__":
    run_module("harness.cost", "harness.ask.cost")
