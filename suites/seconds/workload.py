"""Workloads of the suites about training steps at scale, which are calculated, not run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from harness.bounds import Bounds, OnlyWith, PositiveInt
from harness.question import Dispatcher, ProgramName
from suites.training.step_time.collectives import NodeLinks
from suites.training.workload import Architecture

PUBLISHED = OnlyWith("kind", ("published",))
RUN = OnlyWith("kind", ("run",))
CALCULATED = OnlyWith("kind", ("run", "curve", "what_if"))


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsWorkload:
    """A training step that others measured, or training runs whose best layout is searched."""

    # published: the step of a stated layout, compared with what others measured. run: one training compute.
    # curve: many of
    # them, with the walls and their band. what_if: the walls for every combination of a few inputs.
    kind: Literal["published", "run", "curve", "what_if"] = "published"

    # The GPU. Sources of the values: conf/suite/limits.yaml. The upper bounds lie below 8 H100.
    device_name: str = ""
    peak_FLOP_per_s: Annotated[float, Bounds(at_least=1e12, at_most=1.5e16)] = (
        1979e12  # one GPU, dense, of the matmuls
    )
    memory_B_per_s: Annotated[float, Bounds(at_least=1e10, at_most=2.5e13)] = 3.35e12
    # Share of both rates that a kernel reaches: the default of the second author's earlier model.
    efficiency: Annotated[float, Bounds(above=0, at_most=1)] = 0.6
    attention_FLOP_per_s: Annotated[float, Bounds(at_least=1e12, at_most=1.5e16)] = (
        265e12  # FlashAttention-2, causal
    )
    kernel_s: Annotated[float, Bounds(at_least=0, at_most=0.01)] = 5e-6  # the shortest matmul; assumed
    # The links, in B/s of one GPU in each direction. The network of a node is node_size times
    # network_B_per_s.
    node_size: PositiveInt = 8
    node_link_B_per_s: Annotated[float, Bounds(at_least=1e9, at_most=3e12)] = 450e9
    network_B_per_s: Annotated[float, Bounds(at_least=1e8, not_above="node_link_B_per_s * 0.5")] = 50e9
    collective_s: Annotated[float, Bounds(at_least=0, at_most=0.01)] = 6.8e-6
    node_hop_s: Annotated[float, Bounds(at_least=0, at_most=0.01)] = 0.6e-6
    network_hop_s: Annotated[float, Bounds(at_least=0, at_most=0.01)] = 5.0e-6
    # Share of the shorter of computation and communication that the longer hides. 1: as the earlier model
    # has it.
    overlap: Annotated[float, Bounds(at_least=0, at_most=1)] = 0.0

    # Bytes. weight_B: of a parameter as matmuls read it. activation_B: of an element as it is sent.
    weight_B: Annotated[float, Bounds(above=0, at_most=4)] = 1.0
    activation_B: Annotated[float, Bounds(above=0, at_most=4)] = 2.0
    # Sent per parameter for one update: gradients are reduced, parameters gathered (ZeRO, arXiv 1910.02054,
    # section 7).
    gradient_B: Annotated[float, Bounds(at_least=0, at_most=4)] = 2.0
    gathered_B: Annotated[float, Bounds(at_least=0, at_most=4)] = 2.0
    # Bytes that a layer keeps per token and hidden element (arXiv 2205.05198), and how often the operations
    # between matmuls
    # move them: written and read in the forward pass, and so are their gradients in the backward; assumed.
    kept_B: Annotated[float, Bounds(at_least=0, at_most=200)] = 34.0
    pointwise_passes: Annotated[float, Bounds(at_least=0, at_most=100)] = 4.0

    # A published step: the model, its layout and its time.
    num_hidden_layers: Annotated[PositiveInt, PUBLISHED] = 1
    pipeline_layers: Annotated[int, Bounds(at_least=1, multiple_of="pp_size"), PUBLISHED] = (
        1  # two more where embedding and loss take a layer's place each in the pipeline
    )
    hidden_size: Annotated[int, Bounds(at_least=1, multiple_of="num_attention_heads"), PUBLISHED] = 1
    num_attention_heads: Annotated[int, Bounds(at_least=1, multiple_of="tp_size"), PUBLISHED] = 1
    num_key_value_heads: Annotated[PositiveInt, PUBLISHED] = 1
    intermediate_size: Annotated[int, Bounds(at_least=1, multiple_of="tp_size"), PUBLISHED] = 1
    mlp_matrices: Annotated[int, Bounds(at_least=2, at_most=3), PUBLISHED] = 2
    vocab_size: Annotated[PositiveInt, PUBLISHED] = 1
    tp_size: Annotated[PositiveInt, PUBLISHED] = 1
    pp_size: Annotated[PositiveInt, PUBLISHED] = 1
    virtual_stages: Annotated[PositiveInt, PUBLISHED] = 1  # stages of the interleaved pipeline per rank
    cp_size: Annotated[PositiveInt, PUBLISHED] = 1
    dp_size: Annotated[PositiveInt, PUBLISHED] = 1
    sequences: Annotated[int, Bounds(at_least=1, multiple_of="dp_size"), PUBLISHED] = 1  # of one batch
    micro_batch_size: Annotated[PositiveInt, PUBLISHED] = 1
    published_step_s: Annotated[float, Bounds(above=0, at_most=600), PUBLISHED] | None = None
    # gate: the model has to predict it before it may speak of larger runs. held_out: one of other sources.
    role: Annotated[Literal["gate", "held_out"], PUBLISHED] = "gate"
    # The same model on fewer GPUs, from which the speed-up of this step counts; None: this one is the
    # smallest.
    from_dp_size: Annotated[PositiveInt, PUBLISHED] | None = None
    from_sequences: Annotated[int, Bounds(at_least=1, multiple_of="from_dp_size"), PUBLISHED] | None = None
    from_step_s: Annotated[float, Bounds(above=0, at_most=600), PUBLISHED] | None = None
    seq_len: PositiveInt = 2048

    # A run: its computation, its length, and how model and batch grow with it.
    training_flop: Annotated[float, Bounds(at_least=1e20, at_most=1e36), RUN] = (
        1e25  # FLOP of the training, not FLOP/s
    )
    run_s: Annotated[float, Bounds(at_least=3600, at_most=1e9), CALCULATED] = 7.884e6  # three months
    tokens_per_parameter: Annotated[float, Bounds(at_least=0.1, at_most=1e5), CALCULATED] = 20.0
    batch_tokens: Annotated[float, Bounds(at_least=1, multiple_of="seq_len"), CALCULATED] = 16777216.0
    batch_exponent: Annotated[float, Bounds(at_least=0, at_most=1), CALCULATED] = (
        0.0  # batch ~ tokens^exponent
    )
    depth_exponent: Annotated[float, Bounds(at_least=0, at_most=1), CALCULATED] = (
        0.3333  # layers ~ parameters^exponent
    )
    reference_layers: Annotated[float, Bounds(at_least=1), CALCULATED] = 126.0  # at reference_parameters
    reference_parameters: Annotated[float, Bounds(at_least=1e6), CALCULATED] = 405e9
    experts: Annotated[PositiveInt, CALCULATED] = 1  # 1: dense
    experts_per_token: Annotated[int, Bounds(at_least=1, not_above="experts"), CALCULATED] = 1
    draws: Annotated[int, Bounds(at_least=2), CALCULATED] = 1000  # of the uncertain inputs
    source: str = ""

    @property
    def links(self) -> NodeLinks:
        """Return the links between GPUs."""
        return NodeLinks(
            self.node_size,
            self.node_link_B_per_s,
            self.network_B_per_s,
            self.collective_s,
            self.node_hop_s,
            self.network_hop_s,
        )

    @property
    def gpus(self) -> int:
        """Return the GPUs of a published step."""
        return self.tp_size * self.pp_size * self.cp_size * self.dp_size


@dataclass(frozen=True, slots=True, kw_only=True)
class StepGainsWorkload:
    """A training step."""

    # of the model: names of a Hugging Face config, and `gated_mlp`
    sizes: dict[str, Any] = field(hash=False)
    program: ProgramName = "megatron"  # whose code trains; of megatron, a recipe of NeMo
    device: str = "h100_80gb"  # a name of conf/hardware
    gpus: PositiveInt
    gpus_per_node: PositiveInt = 8
    network_B_per_s: Annotated[float, Bounds(above=0)] = 50e9  # between nodes, per GPU and direction
    seq_len: PositiveInt
    global_batch_size: PositiveInt  # sequences
    precision: Literal["bf16", "fp8", "mxfp8", "nvfp4"] = "bf16"  # of matmuls
    layout: dict[str, Any] = field(hash=False)  # tp, pp, cp, zero, virtual_stages, micro_batch_size, …
    attention: Literal["fused", "explicit"] = "fused"  # explicit: from a score matrix in memory
    tensor_overlap: bool = True  # tensor-parallel collectives run while matmuls do
    gpu_hour_USD: Annotated[float, Bounds(above=0)] | None = None
    run_tokens: Annotated[float, Bounds(above=0)] | None = None  # of a training run, whose cost is asked
    source: str = ""

    @property
    def tokens(self) -> float:
        """Return the tokens of a step."""
        return float(self.global_batch_size * self.seq_len)


Bytes = Annotated[float, Bounds(above=0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutsWorkload:
    """A model and its GPUs. `tp` to `zero` describe one layout; `search` tries all."""

    hf_config: dict[str, Any] = field(hash=False)  # the content of a config.json
    gpus: PositiveInt = 1
    gpus_per_node: PositiveInt = 8
    seq_len: PositiveInt
    global_batch_size: PositiveInt | None = None  # sequences of one update; None: not known
    program: ProgramName = "megatron"  # whose code trains
    precision: Literal["bf16", "fp8", "mxfp8", "nvfp4"] = "bf16"
    optimizer: Literal["adamw", "adamw_8bit", "sgd_momentum"] = "adamw"
    offload: Literal["none", "optimizer", "parameters"] = "none"
    fused_loss: bool = False
    search: bool = False  # every layout; else the one below
    tp: PositiveInt = 1
    pp: PositiveInt = 1
    cp: PositiveInt = 1
    ep: PositiveInt = 1
    etp: PositiveInt | None = None  # tensor-parallel ranks of one expert; None: tp of Megatron-LM, else 1
    virtual_stages: PositiveInt = 1
    zero: Annotated[int, Bounds(at_least=0, at_most=3)] = 1
    shard_size: PositiveInt | None = None  # ranks of hybrid sharding; None: all data-parallel ones
    micro_batch_size: PositiveInt = 1
    recompute: Literal["none", "selective", "full"] = "none"
    recompute_modules: list[Any] = field(default_factory=list, hash=False)  # of selective; []: core_attn
    dispatcher: Dispatcher = "alltoall"  # of tokens to their experts
    sequence_parallel: bool = True  # with tensor parallelism
    usable_memory_B: Bytes = 85.0e9  # of one GPU
    architecture: Architecture = "hopper"
    source: str = ""
