"""Techniques alone and in pairs, on a suite's tiny workload: built, compared with plain PyTorch, measured."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import ExitStack
from importlib import import_module
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch._dynamo.backends.debugging import aot_eager
from variants import applied, tiny_run

from harness.config.code_fingerprint import ROOT
from harness.config.optimizations import Variant, code_of, suites_with
from harness.config.protocols import close, prepared
from harness.config.techniques import names
from harness.records import Unavailable
from suites.training import techniques

RECORD = ROOT / "tests/data/technique_pairs.jsonl"  # what each was, as `tests/benchmarks/every_pair.py` found
SUITES = suites_with("takes_techniques")
NEEDS = {"powersgd": {"ddp": {"buckets": 1}}, "pipeline": {"gradient_accumulation": {}}}
SETTINGS = {"llama_adapter": {"start_layer": 0}}
FIELDS = {
    "pipeline": {"pp_size": 2, "tie_word_embeddings": False},
    "context_parallel": {"cp_size": 2},
    "tensor_parallel": {"tp_size": 2},
    "expert_parallel": {"ep_size": 2, "num_experts": 4, "mlp": "swiglu", "bias": False},
    "float8": {"intermediate_size": 32},
    "lora": {"loss_steps": 64},
    "llama_adapter": {"loss_steps": 64, "learning_rate": 0.03},
}
"""The workload's fields that say how many ranks a technique takes and what they share, which sizes it
takes, and how many losses show that adapters learn, which begin as zeros."""

OK, REFUSED, CRASHED = "ok", "refused", "crashed"


class Tried(NamedTuple):
    """What came of some techniques on a suite. `started`: it was built, so its session was started."""

    suite: str
    techniques: tuple[str, ...]
    status: str
    started: bool
    reason: str = ""


def combined() -> list[tuple[str, ...]]:
    known = names()
    return [*((one,) for one in known), *combinations(known, 2)]


def recipe(chosen: Iterable[str]) -> list[tuple[str, dict[str, Any]]]:
    """Return the techniques with what they need, each once."""
    given: dict[str, dict[str, Any]] = {name: SETTINGS.get(name, {}) for name in chosen}
    for name in chosen:
        given |= NEEDS.get(name, {})
    return list(given.items())


def unavailable(chosen: Iterable[str]) -> str | None:
    """Return what this machine lacks for one of the techniques; None where it lacks nothing."""
    reasons = (getattr(techniques.load(name), "unavailable", lambda: None)() for name, _ in recipe(chosen))
    return next(filter(None, reasons), None)


def workload_of(suite: str) -> dict[str, Any]:
    """Return the first tiny workload that techniques apply to."""
    module = import_module(code_of(suite).module)
    for fields in tiny_run(suite).workloads.values():
        try:
            module.apply_techniques(module.build(fields, 1), [("activation_checkpointing", {})])
        except Unavailable:
            continue
        return dict(fields)
    raise AssertionError(f"no workload of {suite} takes techniques")


def subject_of(suite: str, fields: dict[str, Any], chosen: tuple[str, ...]) -> Any:
    """Return the workload with the techniques; raises `Unavailable`."""
    variant = Variant("pair", "", {}, tuple(techniques.named(recipe(chosen))))
    known = {field: value for name in chosen for field, value in FIELDS.get(name, {}).items()}
    sizes = {field: value for field, value in known.items() if field in fields}
    return applied(suite, variant, import_module(code_of(suite).module).build(fields | sizes, 1))


def tried(suite: str, fields: dict[str, Any], chosen: tuple[str, ...], start: bool = True) -> Tried:
    try:
        subject = subject_of(suite, fields, chosen)
    except Unavailable as reason:
        return Tried(suite, chosen, REFUSED, False, str(reason))
    except Exception as error:
        return Tried(suite, chosen, CRASHED, False, f"{type(error).__name__}: {error}")
    try:
        if start:
            run(suite, subject)
    except Unavailable as reason:
        return Tried(suite, chosen, REFUSED, True, str(reason))
    except Exception as error:  # each is named at the end
        return Tried(suite, chosen, CRASHED, True, f"{type(error).__name__}: {error}")
    finally:
        torch._dynamo.reset()
    return Tried(suite, chosen, OK, start)


def run(suite: str, subject: Any) -> None:
    module = import_module(code_of(suite).module)
    with ExitStack() as stack:
        session = prepared(module, subject)
        stack.callback(close, module, session)
        module.check(session)
        taken = list(module.read_once(session)) if hasattr(module, "read_once") else []
        assert taken + list(module.sample(session))


def compile_by_aot_eager(patch: pytest.MonkeyPatch) -> None:
    """Let models of this process be compiled without Inductor, which takes much longer."""
    compiled = torch.nn.Module.compile
    patch.setattr(
        torch.nn.Module, "compile", lambda model, **_: compiled(model, dynamic=False, backend=aot_eager)
    )


def recorded(path: Path = RECORD) -> dict[tuple[str, tuple[str, ...]], Tried]:
    """Return the latest of each in a record; none where there is no such file."""
    lines = path.read_text().splitlines() if path.exists() else []
    found = (Tried(**json.loads(line)) for line in lines)
    each = (one._replace(techniques=tuple(one.techniques)) for one in found)
    return {(one.suite, one.techniques): one for one in each}
