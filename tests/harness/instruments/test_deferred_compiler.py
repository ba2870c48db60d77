"""The stand-in for torch's compiler: it marks as the compiler does, and a name that is used loads it."""

from __future__ import annotations

import subprocess
import sys
from textwrap import dedent

import pytest
from places import ROOT

from harness.instruments.memory.dry_run.substitutes import defer_compiler, is_deferred


def in_a_process(lines: str) -> None:
    """Run lines in a process that has not loaded the compiler."""
    start = """
        import sys
        import torch
        from harness.instruments.memory.dry_run.substitutes import defer_compiler, is_deferred
        from harness.instruments.memory.dry_run.substitutes import load_compiler
        defer_compiler()
        assert is_deferred()
    """
    program = dedent(start) + dedent(lines)
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, capture_output=True)


USES = {
    "a function": "torch._dynamo.reset()",
    "a module of it": "import torch._dynamo.eval_frame",
    "a name of a module": "from torch._dynamo.source import LocalSource",
    "a class": "from torch._dynamo import OptimizedModule",
    "what compiles": "assert torch.compile(lambda x: x + 1, backend='eager')(torch.ones(2)).sum() == 4",
}


@pytest.mark.parametrize("use", USES)
def test_a_name_that_is_used_brings_the_real_module(use: str) -> None:
    in_a_process(f"""
        {USES[use]}
        assert not is_deferred()
        assert sys.modules["torch._dynamo"] is torch._dynamo
        assert torch._dynamo.__file__.endswith("torch/_dynamo/__init__.py")
    """)


def test_marks_are_kept_when_the_compiler_is_loaded() -> None:
    in_a_process("""
        from torch import _dynamo

        @_dynamo.disable
        def graph_ends(x):
            return x + 1

        @_dynamo.disable(recursive=False)
        def called_without(x):
            return x + 1

        @_dynamo.allow_in_graph
        def called_as_it_is(x):
            return x + 1

        assert graph_ends(1) == called_without(1) == called_as_it_is(1) == 2
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
    """)


def test_what_is_imported_and_used_without_the_compiler_does_not_load_it() -> None:
    in_a_process("""
        import inspect
        import torch.distributed.fsdp
        from torch._subclasses import FakeTensorMode
        from torch.utils.checkpoint import checkpoint

        with FakeTensorMode():
            x = torch.ones(2, 2, requires_grad=True)
            checkpoint(lambda x: (x @ x).sin(), x, use_reentrant=False).sum().backward()
            torch.optim.AdamW([x], fused=True).step()
        inspect.getmodule(inspect.currentframe())
        assert is_deferred()
    """)


def test_a_compiler_that_is_loaded_stays() -> None:
    import torch._dynamo

    loaded = sys.modules["torch._dynamo"]
    defer_compiler()
    assert not is_deferred()
    assert sys.modules["torch._dynamo"] is torch._dynamo is loaded
