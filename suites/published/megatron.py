"""Megatron-LM's published peaks: the layout of a workload, and the peak of the rank that was logged."""

from __future__ import annotations

from typing import Any, NamedTuple

from harness.instruments.transformer.shape import TransformerShape
from harness.records import Unavailable
from suites.published.workload import MemoryPublishedWorkload
from suites.training.layouts.account import LayoutPeak, peak_of_rank, worst_peak
from suites.training.layouts.divide import refusal, refusal_of_training
from suites.training.layouts.layout import DEFAULT_MODULES, RECOMPUTES, Layouts, Training
from suites.training.layouts.room import CUBLAS_HANDLES, CUBLAS_WORKSPACE_B

FIXED: dict[str, Any] = {
    "optimizer": "adamw",
    "techniques": [],
    "model": None,
    "hf_config": None,
    "kind": "allocated",
    "expandable_segments": False,
}
"""Fields of a workload of which the account has one value."""


class MegatronPeak(NamedTuple):
    """Bytes of one rank at its peak, by part. `stage`: of the pipeline's ranks."""

    stage: int
    states: float
    activations: float
    logits: float
    communication: float
    workspaces: float

    @property
    def total_B(self) -> float:
        """Return all of them."""
        return self.states + self.activations + self.logits + self.communication + self.workspaces


def published_peak(workload: MemoryPublishedWorkload) -> MegatronPeak:
    """Return the peak of the stage that takes the most; of a published peak, that of the last rank.

    The last rank writes Megatron-LM's log (training/global_vars.py). Raises `Unavailable` for a layout or a
    field that the account does not cover.
    """
    given = [name for name, value in FIXED.items() if getattr(workload, name) != value]
    if given:
        name = given[0]
        raise Unavailable(
            f"{name}={getattr(workload, name)!r}: the account of Megatron-LM is for {FIXED[name]!r} alone"
        )
    shape, layout, training = shape_of(workload), layout_of(workload), training_of(workload)
    if reason := refusal_of_training(shape, training) or refusal(shape, layout, training):
        raise Unavailable(reason)
    if workload.published is None:
        peak = worst_peak(shape, layout, training, workload.architecture)
    else:
        peak = peak_of_rank(shape, layout, training, layout.pp - 1, workload.architecture)
    return with_workspaces(peak, workload)


def with_workspaces(peak: LayoutPeak, workload: MemoryPublishedWorkload) -> MegatronPeak:
    """Return the peak of one layout with the workspaces that its environment asked for."""
    of = MegatronPeak(*(getattr(peak, name)[0].item() for name in MegatronPeak._fields))
    if workload.cublas_workspace_B is None:
        return of
    more_B = CUBLAS_HANDLES * (workload.cublas_workspace_B - CUBLAS_WORKSPACE_B[workload.architecture])
    return of._replace(workspaces=of.workspaces + more_B)


BIASES = ("qkv_bias", "attention_output_bias", "mlp_bias", "expert_bias")


def shape_of(workload: MemoryPublishedWorkload) -> TransformerShape:
    """Return the model's shape; `shape_fields` are added to those that all workloads have."""
    learned = workload.position == "learned"
    given: dict[str, Any] = {
        "num_hidden_layers": workload.num_hidden_layers,
        "hidden_size": workload.hidden_size,
        "num_attention_heads": workload.num_attention_heads,
        "num_key_value_heads": workload.num_key_value_heads,
        "head_dim": workload.hidden_size // workload.num_attention_heads,
        "intermediate_size": workload.intermediate_size,
        "vocab_size": workload.vocab_size,
        "gated": workload.mlp == "swiglu",
        "layer_norm": workload.norm == "layer",
        **dict.fromkeys(BIASES, workload.bias),
        "tie_word_embeddings": workload.tie_word_embeddings,
        "learned_positions": (workload.max_position_embeddings or workload.seq_len) if learned else 0,
        "dropout": workload.dropout,
    }
    fields = {**given, **(workload.shape_fields or {})}
    if isinstance(fields.get("moe_layers"), list):
        fields["moe_layers"] = tuple(map(bool, fields["moe_layers"]))
    return TransformerShape(**fields)


def layout_of(workload: MemoryPublishedWorkload) -> Layouts:
    """Return the layout, as arrays with one entry."""
    dp = workload.dp_size
    return Layouts.of(
        [
            {
                "dp": dp,
                "tp": workload.tp_size,
                "pp": workload.pp_size,
                "cp": workload.cp_size,
                "ep": workload.expert_ranks,
                "etp": workload.expert_tensor_ranks or workload.tp_size,
                "virtual_stages": workload.stages_per_rank,
                "zero": int(workload.distributed_optimizer),
                "shard_size": dp * workload.cp_size // workload.optimizer_instances,
                "micro_batch_size": workload.micro_batch_size,
                "micro_batches": workload.gradient_accumulation_steps,
                "recompute": RECOMPUTES.index(workload.recompute),
                "sequence_parallel": int(workload.sequence_parallel),
            }
        ]
    )


def training_of(workload: MemoryPublishedWorkload) -> Training:
    """Return what the layout's step is besides."""
    return Training(
        seq_len=workload.seq_len,
        program="megatron",
        precision=workload.precision,
        attention=workload.attention,
        fused_loss=workload.fused_loss,
        recompute_modules=tuple(workload.recompute_modules) or DEFAULT_MODULES,
        layers_of_stages=tuple(workload.layers_of_stages),
        dispatcher=workload.dispatcher,
        grouped_experts=workload.grouped_experts,
        deterministic=workload.deterministic,
        imbalance=workload.imbalance,
    )
