"""The stand-in for torch's compiler: it marks as the compiler does, and a name that is used loads it."""

import subprocess
import sys

from places import ROOT

START = """
import sys
import torch
from harness.instruments.memory.dry_run.substitutes import defer_compiler, is_deferred
defer_compiler()
assert is_deferred()
"""

MARKS = """
from torch import _dynamo

@_dynamo.disable
def graph_ends(x):
    return x + 1

@_dynamo.allow_in_graph
def called_as_it_is(x):
    return x + 1

assert graph_ends(1) == called_as_it_is(1) == 2
assert graph_ends.__name__ == "graph_ends"
assert is_deferred()
graphs = []

def backend(graph, inputs):
    graphs.append(graph)
    return graph.forward

assert torch.compile(lambda x: graph_ends(x * 2) * 2, backend=backend)(torch.ones(1)) == 6
assert len(graphs) == 2
del graphs[:]
assert torch.compile(lambda x: called_as_it_is(x * 2) * 2, backend=backend)(torch.ones(1)) == 6
called = [one.target for one in graphs[0].graph.nodes if one.op == "call_function"]
assert called[1] is called_as_it_is
"""
LOADED = """
assert not is_deferred()
assert sys.modules["torch._dynamo"] is torch._dynamo
assert torch._dynamo.__file__.endswith("torch/_dynamo/__init__.py")
"""


def test_marks_are_kept_and_a_name_that_is_used_brings_the_real_module() -> None:
    command = [sys.executable, "-c", START + MARKS + LOADED]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
