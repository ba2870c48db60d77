"""How a pretraining step is divided over GPUs, as arrays with an entry per layout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from harness.question import DEEPSPEED_BUCKET, Dispatcher, ProgramName

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

RECOMPUTES = ("none", "selective", "full")
"""By `Layouts.recompute`: what is recomputed in the backward pass. selective: single modules (Megatron-LM,
`Training.recompute_modules`), matmuls kept and the rest recomputed (torchtitan)."""

RECOMPUTE_MODULES = ("core_attn", "moe_act", "layernorm", "mla_up_proj", "mlp", "moe", "shared_experts")
"""What Megatron-LM's --recompute-modules can name of the models that have a shape here
(core/transformer/transformer_config.py, __post_init__, allowed_modules)."""

DEFAULT_MODULES = ("core_attn",)
"""Those that it names by default."""

OPTIMIZER_STATES_B = {"adamw": 8.0, "adamw_8bit": 2 + 2 * 4 / 256, "sgd_momentum": 4.0, "muon": 8.0}
"""Bytes of states per parameter. Muon's are AdamW's but for `MUON_SAVES_B`. 8-bit AdamW has an fp32 maximum
per 256 values, twice (suites/training/quantization.py)."""

MUON_SAVES_B = 4.0
"""Per parameter of a layer's matrix: Muon has one fp32 momentum, AdamW two moments of all else
(suites/training/optimizers.py, MuonAndAdamW; Megatron-LM, core/optimizer, emerging_optimizers.py,
_is_nonlinear_or_embedding)."""

AttentionName = Literal["fused", "flash", "unfused"]
"""Whose kernel: Transformer Engine's fused one, FlashAttention, or none, which leaves scores in memory."""

OffloadName = Literal["none", "optimizer", "parameters"]
"""Which states are on the host; of parameters, the optimizer's are, too."""


class Layouts(NamedTuple):
    """Layouts as arrays of one length. GPUs: dp × tp × pp × cp; experts spread over dp × tp × cp of them."""

    dp: Ints  # data-parallel ranks
    tp: Ints  # tensor-parallel ranks
    pp: Ints  # pipeline ranks
    cp: Ints  # context-parallel ranks
    ep: Ints  # ranks that share a layer's experts
    etp: Ints  # tensor-parallel ranks of one expert
    virtual_stages: Ints  # pipeline stages per rank; more than 1: interleaved 1F1B
    zero: Ints  # 0 to 3: what is sharded over dp × cp ranks: optimizer states, gradients, parameters
    shard_size: Ints  # over how many of these ranks; equal to dp × cp but for hybrid sharding
    micro_batch_size: Ints  # sequences
    micro_batches: Ints  # per step and data-parallel rank
    recompute: Ints  # an index of RECOMPUTES
    sequence_parallel: Ints  # 1: norms and residuals are spread over the tensor-parallel ranks

    @property
    def gpus(self) -> Ints:
        """Return the GPUs of each layout."""
        return self.dp * self.tp * self.pp * self.cp

    def only(self, chosen: NDArray[np.bool_] | NDArray[np.intp]) -> Self:
        """Return the chosen layouts."""
        return type(self)(*(one[chosen] for one in self))

    def row(self, index: int = 0) -> dict[str, int]:
        """Return one of the layouts by field."""
        return {name: int(values[index]) for name, values in zip(self._fields, self, strict=True)}

    @classmethod
    def of(cls, rows: Sequence[Mapping[str, int]]) -> Self:
        """Return layouts from rows that leave out what is 1 (or none, for zero and recompute)."""
        given = [{**DEFAULTS, **row} for row in rows]
        for row in given:
            row["shard_size"] = row["shard_size"] or row["dp"] * row["cp"]
            if row["sequence_parallel"] < 0:
                row["sequence_parallel"] = int(row["tp"] > 1)
        return cls(*(np.array([row[name] for row in given], dtype=np.int64) for name in cls._fields))


DEFAULTS: Mapping[str, int] = {
    **dict.fromkeys(Layouts._fields, 1),
    "zero": 0,
    "shard_size": 0,
    "recompute": 0,
    "sequence_parallel": -1,
}
"""Of a row; shard_size 0 stands for dp × cp, sequence_parallel -1 for "with tensor parallelism"."""


def tokens_of_rank(layouts: Layouts, training: Training) -> Floats:
    """Return the tokens of a micro-batch that a context-parallel rank has."""
    return training.seq_len * layouts.micro_batch_size / layouts.cp


def parts_of_sequence(layouts: Layouts) -> Floats:
    """Return over how many ranks norms, dropout and residuals are spread: t with sequence parallelism."""
    return np.where(layouts.sequence_parallel > 0, layouts.tp, 1).astype(float)


class FrozenBase(NamedTuple):
    """A model whose weights are frozen, with low-rank adapters next to its matrices."""

    weight_B: float  # bytes per frozen weight of a layer, which ranks may share
    whole_B: float  # and those that each has whole
    adapters: float  # their parameters over those of the layers
    ends: bool = False  # copies of the embedding and the output layer are trained, too


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """What layouts of one question have in common besides the model."""

    seq_len: int
    program: ProgramName = "megatron"
    precision: Literal["bf16", "fp16", "fp32", "fp8", "mxfp8", "nvfp4"] = "bf16"  # of matmuls
    states: Literal["fp32", "bf16"] = "fp32"  # of parameters, gradients and the optimizer with torch's FSDP
    gradients: Literal["fp32", "bf16"] = "fp32"  # of Megatron-LM, in which all micro-batches' are added up
    master_remainders: bool = False  # of its bf16 steps: the half of an fp32 weight that the bf16 one lacks
    fp8_parameters: bool = False  # of Megatron-LM, --fp8-param-gather: no bf16 copy of a layer's weights
    optimizer: Literal["adamw", "adamw_8bit", "sgd_momentum", "muon"] = "adamw"
    attention: AttentionName = "fused"
    bucket: int = DEEPSPEED_BUCKET  # elements of a bucket of DeepSpeed's gradients
    micro_batch_group: int = 0  # of interleaved stages in Megatron-LM; 0: pp
    offload: OffloadName = "none"  # what is on the host; of FSDP2, all of it
    activations_on_host: bool = False  # what layers keep, until their backward pass
    recompute_modules: tuple[str, ...] = DEFAULT_MODULES  # of selective recompute, with Megatron-LM
    # Of tokens to their experts, Megatron-LM's --moe-token-dispatcher-type; deepep: `flex` with its default
    # --moe-flex-dispatcher-backend.
    dispatcher: Dispatcher = "alltoall"
    layers_of_stages: tuple[int, ...] = ()  # of every pipeline stage, where they are given one by one
    grouped_experts: bool = True  # --moe-grouped-gemm; else one expert after another
    replicated_experts: bool = False  # those of ranks with the same ones are whole, whatever ZeRO shards
    deterministic: bool = False  # Megatron-LM's --deterministic-mode
    expandable_segments: bool = False  # of torch's allocator
    fused_loss: bool = False  # Megatron-LM's --cross-entropy-loss-fusion; logits in chunks elsewhere
    linear_loss: bool = False  # a fused one with the output layer in it, as Liger's
    compiled_loss: bool = False  # by torch.compile, as torchtitan does with the model
    fused_layers: bool = False  # norms and gated activations keep their inputs alone (Liger)
    # Micro-batches of which the output layer's gradient waits, with Megatron-LM's
    # --defer-embedding-wgrad-compute; 0: all, None: none.
    deferred_head_gradients: int | None = None
    loss_chunks: int = 1  # of transformers' code: output layer and loss in parts, which are recomputed
    optimizer_impl: Literal["fused", "foreach", "for_loop"] = "foreach"  # torch's, of transformers' code
    # "": the program's own model code; else the model_type of transformers' code that it trains.
    model_code: str = ""
    frozen: FrozenBase | None = None  # where adapters alone are trained
    imbalance: float = 1.2  # tokens of the rank with the busiest experts over the mean

    def bucket_of(self, parameters: Floats | float) -> Any:
        """Return the elements that DeepSpeed's bucket has of so many parameters.

        It is allocated whole, whatever the model (0.19.8, runtime/zero/stage3.py; stage_1_and_2.py,
        setup_buckets). Up to the default, which is made for large models, it is no larger than the model
        here, as in the dry run (suites/training/techniques/zero.py, config).
        """
        whole = self.bucket if self.bucket > DEEPSPEED_BUCKET else 0
        return np.maximum(np.minimum(parameters, self.bucket), whole)
