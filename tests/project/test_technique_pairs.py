"""Techniques in pairs, on every suite that trains: each pair is right and measured, or refused in one line.

The gate tries each technique once, with its neighbour in the list. Every pair on every suite, half an hour:
`PAIRS=all pytest tests/project/test_technique_pairs.py`.
"""

import os
from contextlib import ExitStack
from importlib import import_module
from itertools import combinations

import pytest
import torch
from cheap_sessions import cheap_sessions
from torch._dynamo.backends.debugging import aot_eager
from variants import applied, tiny_run

from harness.config.protocols import close, prepared
from harness.config.run import names
from harness.config.variants.optimizations import Variant
from harness.config.variants.technique_list import suites_with_techniques
from harness.config.variants.techniques import built
from harness.records import Unavailable
from suites.training import techniques

ALL = os.environ.get("PAIRS") == "all"
SUITES = suites_with_techniques(names("suite")) if ALL else ["memory"]
"""The others start real ranks, or have the same step in one process."""

NEEDS = {"powersgd": {"ddp": {"buckets": 1}}, "pipeline": {"gradient_accumulation": {}}}
SETTINGS = {"llama_adapter": {"start_layer": 0}}
FIELDS = {
    "pipeline": {"pp_size": 2, "tie_word_embeddings": False},
    "context_parallel": {"cp_size": 2},
    "tensor_parallel": {"tp_size": 2},
    "expert_parallel": {"ep_size": 2, "num_experts": 4, "mlp": "swiglu", "bias": False},
}
"""The workload's fields that say how many ranks a technique takes, and what they share."""


def pairs() -> list[tuple[str, str]]:
    known = built()
    if ALL:
        return list(combinations(known, 2))
    return list(zip(known[::2], [*known[1::2], known[0]], strict=False))


def recipe(pair: tuple[str, str]) -> list[tuple[str, dict[str, object]]]:
    """Return the pair with what it needs, each technique once."""
    given = {name: SETTINGS.get(name, {}) for name in pair}
    for name in pair:
        given |= NEEDS.get(name, {})
    return list(given.items())


def workload_of(suite: str) -> dict[str, object]:
    """Return the first tiny workload that techniques apply to."""
    run = tiny_run(suite)
    module = import_module(f"suites.{suite}")
    for fields in run.workloads.values():
        try:
            module.apply_techniques(module.build(fields, 1), [("activation_checkpointing", {})])
        except Unavailable:
            continue
        return fields
    raise AssertionError(f"no workload of {suite} takes techniques")


def tried(suite: str, fields: dict[str, object], pair: tuple[str, str]) -> str:
    """Build, check and measure; return "" or why it is unavailable."""
    module = import_module(f"suites.{suite}")
    variant = Variant("pair", "", {}, tuple(techniques.named(recipe(pair))))
    known = {field: value for name in pair for field, value in FIELDS.get(name, {}).items()}
    sizes = {field: value for field, value in known.items() if field in fields}
    with ExitStack() as stack:
        try:
            session = prepared(module, applied(suite, variant, module.build(fields | sizes, 1)))
            stack.callback(close, module, session)
            module.check(session)
            taken = list(module.read_once(session)) if hasattr(module, "read_once") else []
            assert taken + list(module.sample(session))
        except Unavailable as reason:
            return str(reason)
    torch._dynamo.reset()
    return ""


@pytest.fixture(scope="module", autouse=True)
def started_once(ranks_forked):
    if not ALL:
        yield
        return
    with cheap_sessions(ranks_forked):
        yield


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("suite", SUITES)
def test_a_pair_is_right_and_measured_or_refused_in_one_line(suite, monkeypatch):
    compiled = torch.nn.Module.compile
    monkeypatch.setattr(
        torch.nn.Module, "compile", lambda model, **_: compiled(model, dynamic=False, backend=aot_eager)
    )
    fields, found, failed = workload_of(suite), {}, {}
    for pair in pairs():
        try:
            found[pair] = tried(suite, fields, pair)
        except Exception as error:  # each is named at the end
            failed[pair] = f"{type(error).__name__}: {error}"
    assert not failed
    reasons = [reason for reason in found.values() if reason]
    assert all(reason.count("\n") == 0 and len(reason) <= 300 for reason in reasons)
    assert len(reasons) < len(found)
