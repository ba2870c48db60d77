"""Selective recompute of single modules against a small layer whose saved tensors are counted.

The layer keeps what Megatron-LM's does: norms, linear layers and SwiGLU keep their input, attention keeps
queries, keys, values and probabilities. `CheckpointFunction` and `CheckpointWithoutOutput` are done as there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from harness.instruments.transformer import TransformerShape
from suites.training.layouts.dispatch import deep_ep_B, gathered_tokens_B
from suites.training.layouts.kept import kept_of_layer
from suites.training.layouts.layout import RECOMPUTES, Layouts, Training
from suites.training.layouts.search import refusal, refusal_of_training

TOKENS, HEADS = 64, 4
MLA = TransformerShape(
    num_hidden_layers=2, hidden_size=32, num_attention_heads=HEADS, num_key_value_heads=HEADS, head_dim=12,
    v_head_dim=8, qk_rope_head_dim=4, q_lora_rank=24, kv_lora_rank=16, intermediate_size=96, vocab_size=512,
    num_experts=8, experts_per_token=2, moe_intermediate_size=48, shared_intermediate_size=40,
    moe_layers=(False, True),
)  # fmt: skip
TRAINING = Training(seq_len=TOKENS, attention="unfused", imbalance=1.0)
LAYOUT = Layouts.of([{"recompute": RECOMPUTES.index("selective")}])
NAMES = ("core_attn", "moe_act", "layernorm", "mla_up_proj", "mlp", "moe", "shared_experts")


class Keeps(torch.autograd.Function):
    """Computes a function of which autograd keeps the given tensors alone; a caller may free the results."""

    @staticmethod
    def forward(ctx: Any, run: Callable[..., Any], *tensors: torch.Tensor) -> Any:
        ctx.save_for_backward(*tensors)
        with torch.no_grad():
            return run(*tensors)


def linear(x: torch.Tensor, width: int) -> torch.Tensor:
    return Keeps.apply(lambda one: one.new_ones(*one.shape[:-1], width), x)


def norm(x: torch.Tensor) -> torch.Tensor:
    return Keeps.apply(torch.clone, x)


def swiglu(x: torch.Tensor) -> torch.Tensor:
    return Keeps.apply(lambda one: one[..., : one.shape[-1] // 2].clone(), x)


def free(*results: torch.Tensor) -> None:
    for one in results:
        one.untyped_storage().resize_(0)


def again(named: bool, run: Callable[..., Any], *tensors: torch.Tensor) -> Any:
    return checkpoint(run, *tensors, use_reentrant=True) if named else run(*tensors)


def without_output(named: bool, run: Callable[..., Any], *tensors: torch.Tensor) -> Any:
    return Keeps.apply(run, *tensors) if named else run(*tensors)


def layer(x: torch.Tensor, modules: tuple[str, ...], moe: bool) -> torch.Tensor:
    """Run one layer with latent attention, and experts or a dense MLP."""
    first = without_output("layernorm" in modules, norm, x)
    queries = linear(first, MLA.q_lora_rank)
    latent = linear(first, MLA.kv_lora_rank + MLA.qk_rope_head_dim)
    qkv = without_output("mla_up_proj" in modules, projected, queries, latent)
    result = again("core_attn" in modules, attention, *qkv)
    if "mla_up_proj" in modules:
        free(*qkv)
    x = x + linear(result, MLA.hidden_size)
    if "layernorm" in modules:
        free(first)
    return x + (experts(x, modules) if moe else again("mlp" in modules, dense_mlp, x))


def projected(queries: torch.Tensor, latent: torch.Tensor) -> tuple[torch.Tensor, ...]:
    both = norm(latent[:, : MLA.kv_lora_rank])
    sizes = (MLA.query_size, MLA.attention_size)
    return linear(norm(queries), MLA.query_size), *(linear(both, size) for size in sizes)


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    q, k, v = (one.view(TOKENS, HEADS, -1).transpose(0, 1) for one in (q, k, v))
    scores = torch.bmm(q, k.transpose(1, 2)).softmax(-1)
    return Keeps.apply(lambda *_: q.new_ones(TOKENS, MLA.attention_size), scores, v)


def mlp(x: torch.Tensor, width: int) -> torch.Tensor:
    return linear(swiglu(linear(x, 2 * width)), MLA.hidden_size)


def dense_mlp(x: torch.Tensor) -> torch.Tensor:
    return mlp(norm(x), MLA.intermediate_size)


def experts(x: torch.Tensor, modules: tuple[str, ...]) -> torch.Tensor:
    second = without_output("layernorm" in modules, norm, x)
    result = again("moe" in modules, lambda one: routed(one, modules), second)
    if "layernorm" in modules:
        free(second)
    return result


def routed(x: torch.Tensor, modules: tuple[str, ...]) -> torch.Tensor:
    shared = again("shared_experts" in modules, lambda one: mlp(one, MLA.shared_intermediate_size), x)
    rows = x.repeat(MLA.experts_per_token, 1)
    first = linear(rows, 2 * MLA.moe_intermediate_size)
    active = without_output("moe_act" in modules, swiglu, first)
    result = linear(active, MLA.hidden_size)
    if "moe_act" in modules and torch.is_grad_enabled():
        free(active)
    return shared + result[:TOKENS]


def counted_B(modules: tuple[str, ...], moe: bool) -> int:
    """Return the bytes of all storages that autograd keeps of one layer and one sequence."""
    kept: list[torch.Tensor] = []

    def pack(one: torch.Tensor) -> torch.Tensor:
        kept.append(one)
        return one

    x = torch.ones(TOKENS, MLA.hidden_size, dtype=torch.bfloat16, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda one: one):
        layer(x * 1, modules, moe)
    storages = {one.untyped_storage()._cdata: one.untyped_storage().nbytes() for one in kept}
    return sum(storages.values())


def account_B(modules: tuple[str, ...], moe: bool) -> float:
    found = kept_of_layer(MLA, LAYOUT, replace(TRAINING, recompute_modules=modules))
    return float((found.moe if moe else found.dense)[0])


def subsets(names: tuple[str, ...]) -> list[tuple[str, ...]]:
    return [one for size in range(len(names) + 1) for one in combinations(names, size)]


@pytest.mark.parametrize("modules", subsets(("core_attn", "layernorm", "mla_up_proj", "mlp")), ids=str)
def test_a_dense_layer_keeps_what_autograd_keeps_of_it(modules):
    assert account_B(modules, False) == counted_B(modules, False)


@pytest.mark.parametrize("modules", subsets(NAMES), ids=str)
def test_a_layer_with_experts_drops_what_autograd_drops_of_it(modules):
    """Routing is not in the small layer: bytes are compared where `moe` drops it, else what is dropped."""
    if "moe" in modules:
        assert account_B(modules, True) == counted_B(modules, True)
    else:
        dropped_B = account_B((), True) - account_B(modules, True)
        assert dropped_B == counted_B((), True) - counted_B(modules, True)


def test_what_a_model_or_program_lacks_is_refused():
    for sizes, changes, named in (
        ({}, {"recompute_modules": ("attn",)}, "recompute_modules=attn"),
        ({"num_experts": 0}, {"recompute_modules": ("moe_act",)}, "moe_act"),
        ({"kv_lora_rank": 0}, {"recompute_modules": ("mla_up_proj",)}, "mla_up_proj"),
        ({"shared_intermediate_size": 0}, {"recompute_modules": ("shared_experts",)}, "shared_experts"),
        ({}, {"recompute_modules": ("moe_act",), "grouped_experts": False}, "grouped_experts"),
        ({}, {"recompute_modules": ("mlp",), "program": "torchtitan"}, "torchtitan"),
        ({}, {"dispatcher": "allgather", "program": "torchtitan"}, "dispatcher=allgather"),
    ):
        assert named in (refusal_of_training(replace(MLA, **sizes), replace(TRAINING, **changes)) or "")
    assert refusal_of_training(MLA, replace(TRAINING, recompute_modules=NAMES)) is None


def test_gathered_tokens_lie_in_one_buffer_that_every_rank_has():
    row = {"dp": 8, "tp": 2, "ep": 4, "etp": 2, "micro_batch_size": 3}
    layouts = Layouts.of([row, {**row, "ep": 1, "etp": 1}])
    found = gathered_tokens_B(MLA, layouts, replace(TRAINING, dispatcher="allgather"))
    assert list(found) == [2 * MLA.hidden_size * 3 * TOKENS / 2 * (4 * 2), 0]
    assert not gathered_tokens_B(MLA, layouts, TRAINING).any()


def test_deepep_has_buffers_for_the_ranks_that_it_has_settings_for():
    layouts = Layouts.of([{"dp": ranks, "ep": ranks} for ranks in (1, 8, 16, 64)])
    shape, training = replace(MLA, num_experts=64, hidden_size=7168), replace(TRAINING, dispatcher="deepep")
    found = deep_ep_B(shape, layouts, training)
    token_B = 14336 + 8 + 128 * 16
    assert found[0] == 0
    assert found[1] == 10 * 8 * 256 * token_B + 32 * 2**20
    assert found[2] == 10 * (8 * 288 * token_B + 2 * 2 * 140 * (token_B + 16)) + 32 * 2**20
    assert found[3] > found[2]
    assert not deep_ep_B(shape, layouts, TRAINING).any()
    assert refusal(shape, Layouts.of([{"dp": 32, "ep": 32}]), training) is None
    refused = refusal(replace(shape, num_experts=12), Layouts.of([{"dp": 12, "ep": 12}]), training)
    assert "DeepEP has ep × etp of 2, 4, 8" in str(refused)
