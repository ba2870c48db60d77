"""Prints the allocator's events with and without `bf16_products`, as JSON; run by
tests/harness/instruments/memory/test_bf16_products.py.

Arguments: "products", each alone in every layout, and "steps", a small training step of every bf16
optimization. Where oneDNN would multiply, it is switched off, so that torch multiplies by its own kernels.
"""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from itertools import groupby
from typing import Any

import torch
from torch.nn import functional

from harness.instruments.memory.allocator import memory_events, memory_profile
from harness.instruments.memory.bf16_products import (
    fast_bf16_products,
    products_take_results_alone,
    replaced_products,
)

MARK = "test:"


def bf16(*shape: int) -> torch.Tensor:
    return torch.randn(*shape).to(torch.bfloat16)


def products() -> Iterator[tuple[str, Callable[..., Any], list[torch.Tensor]]]:
    """Name, operation, operands: rows, columns, sliced, strided, expanded, of one block and of several."""
    for m, k, n in ((24, 32, 40), (3, 5, 7), (1030, 20, 30), (20, 2060, 30), (20, 30, 1030)):
        for layout in ("nn", "nt", "tn", "tt"):
            left = bf16(m, k) if layout[0] == "n" else bf16(k, m).t()
            right = bf16(k, n) if layout[1] == "n" else bf16(n, k).t()
            lefts, rights = torch.stack([left] * 3), torch.stack([right] * 3)
            if layout[0] == "t":
                lefts = bf16(3, k, m).mT
            if layout[1] == "t":
                rights = bf16(3, n, k).mT
            name = f"{m} {k} {n} {layout}"
            yield f"mm {name}", torch.mm, [left, right]
            yield f"addmm {name}", torch.addmm, [bf16(n), left, right]
            yield f"bmm {name}", torch.bmm, [lefts, rights]
            yield f"baddbmm {name}", torch.baddbmm, [bf16(3, m, n), lefts, rights]
    scaled = [bf16(8), bf16(4, 6), bf16(6, 8)]
    yield "addmm scaled", lambda c, a, b: torch.addmm(c, a, b, beta=0.5, alpha=2), scaled
    scaled = [bf16(2, 40, 48), bf16(2, 40, 36), bf16(2, 36, 48)]
    yield "baddbmm scaled", lambda c, a, b: torch.baddbmm(c, a, b, beta=3, alpha=0.5), scaled
    yield "left strided", torch.mm, [bf16(24, 64)[:, ::2], bf16(32, 40)]
    yield "right sliced", torch.mm, [bf16(24, 32), bf16(32, 80)[:, :40]]
    yield "right expanded", torch.mm, [bf16(24, 32), bf16(40).expand(32, 40)]
    yield "one number expanded", torch.mm, [bf16(1, 1).expand(24, 32), bf16(32, 40)]
    heads = [bf16(24, 4, 32).transpose(0, 1), bf16(40, 4, 32).permute(1, 2, 0)]
    yield "num_attention_heads", torch.bmm, heads
    yield "batch expanded", torch.bmm, [bf16(1, 24, 32).expand(4, 24, 32), bf16(4, 32, 40)]
    yield "batch strided", torch.bmm, [bf16(4, 24, 64)[:, :, ::2], bf16(4, 32, 40)]
    yield "one row", torch.mm, [bf16(1, 64), bf16(64, 32)]
    yield "one column", torch.mm, [bf16(32, 64), bf16(64, 1)]
    yield "inner one", torch.mm, [bf16(32, 1), bf16(1, 64)]
    yield "empty", torch.mm, [bf16(0, 16), bf16(16, 64)]
    yield "inner empty", torch.mm, [bf16(4, 0), bf16(0, 64)]
    yield "linear", functional.linear, [bf16(3, 8, 16), bf16(32, 16), bf16(32)]
    yield "matmul", torch.matmul, [bf16(2, 4, 24, 32), bf16(2, 4, 32, 24)]


def of_products() -> dict[str, Any]:
    """Return, for each product, the events with and without the mode, and the difference of the results."""
    found: dict[str, Any] = {}
    calls = list(products())
    for mode in (nullcontext(), replaced_products()):
        results = []
        with torch.no_grad(), memory_profile() as profile, mode:
            for _, operation, operands in calls:
                with torch.profiler.record_function(f"{MARK}begin"):
                    pass
                results.append(operation(*operands))
                with torch.profiler.record_function(f"{MARK}end"):
                    pass
        spans: list[list[int]] = []
        for event, size_B in memory_events(profile, MARK):
            if event.endswith("begin"):
                spans.append([])
            elif event == "[memory]" and spans:
                spans[-1].append(size_B)
        for (name, _, _), span, result in zip(calls, spans, results, strict=True):
            found.setdefault(name, []).append((span, result.float()))
    report = {}
    for name, ((plain, expected), (replaced, result)) in found.items():
        off = 0.0
        if expected.numel():
            off = float((result - expected).abs().max() / expected.abs().max().clamp(min=1))
        report[name] = {"plain": plain, "replaced": replaced, "off": off}
    return report


def steps() -> Iterator[tuple[str, Any]]:
    """Return every bf16 optimization of the memory suite, on a small workload with a tied head."""
    from harness.config.optimizations import applies
    from harness.config.run import load
    from suites.training.techniques import build_step

    run = load(["suite=memory"])[0]
    every = [one.name for one in run.variants]
    shape = {"num_hidden_layers": 1, "hidden_size": 64, "intermediate_size": 96, "vocab_size": 200}
    shape |= {"micro_batch_size": 2, "seq_len": 24, "dp_size": 2, "cp_size": 2}
    chosen = {"gpt_5m": ["mixed_precision.autocast", "mixed_checkpointed"], "llama_12m": every}
    for workload, names in chosen.items():
        small = {**run.workloads[workload], **shape}
        for variant in run.variants:
            if variant.name in names and applies(variant.applies_to, small, gpu=False):
                step = build_step(small, variant.techniques)
                if step.features.precision != "fp32":
                    yield f"{workload} {variant.name}", step
    yield "zero3 of mixed_precision.bf16_grads", build_step(small, ["zero", "mixed_precision"])


def in_any_order(sizes_B: list[int]) -> list[int]:
    """Return the events, each run of releases sorted: autocast lets its copies go in the order of their
    addresses."""
    runs = groupby(sizes_B, key=lambda size_B: size_B < 0)
    return [size_B for released, run in runs for size_B in (sorted(run) if released else run)]


def of_steps() -> dict[str, Any]:
    """Return, for each step, the events with and without the mode, what it replaced, and slow operations."""
    from suites.training.dry_run.dry_run import among_ranks
    from suites.training.trainer import Trainer

    report = {}
    for name, step in steps():
        events = []
        for mode in (nullcontext(), nullcontext(), replaced_products()):  # the first fills caches
            with among_ranks(step), mode as products:
                gc.collect()
                with memory_profile() as profile:
                    trainer = Trainer(step)
                    for _ in range(2):
                        trainer.train_step()
                    del trainer
            sizes_B = [size_B for event, size_B in memory_events(profile, MARK) if event == "[memory]"]
            events.append(in_any_order(sizes_B))
        report[name] = {
            "plain": events[-2],
            "replaced": events[-1],
            "count": products.replaced,
            "slow": products.slow,
        }
    return report


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with fast_bf16_products() as active:
        found = {"active": active is not None, "own_products": products_take_results_alone()}
    if not found["own_products"]:
        torch.backends.mkldnn.enabled = False
    gc.freeze()
    for part in sys.argv[1:]:
        found[part] = {"products": of_products, "steps": of_steps}[part]()
    print(json.dumps(found))
