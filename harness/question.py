"""What a user asks about a training run, from whatever they bring: a file, a config.json, words, a page.

A `Question` has one form on its way to an engine. Values are checked when it is made by `question_of`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import Meta

WholeNumber = Annotated[int, Meta(ge=1)]
Above = Annotated[float, Meta(gt=0)]

ProgramName = Literal["megatron", "torchtitan", "deepspeed", "nanotron", "composer"]
"""Whose code trains: it decides what is kept, sent and overlapped."""

Sharing = Literal["ddp", "fsdp1", "fsdp2", "zero", "megatron", "nanotron"]
"""What shares the model over devices."""

PrecisionName = Literal["bf16", "fp16", "fp32", "fp8", "mxfp8", "nvfp4"]
Optimizer = Literal["adamw", "adamw_8bit", "sgd_momentum", "adafactor", "muon"]
Recompute = Literal["none", "selective", "full"]
Dispatcher = Literal["alltoall", "allgather", "deepep"]
Objective = Literal["sft", "dpo", "kto", "reward", "grpo", "ppo", "distillation"]
"""What is trained for; dpo: any loss on pairs of answers, grpo: any on generated answers without a critic."""

Rollout = Literal["none", "transformers", "vllm"]
"""What generates the answers that are trained on; vllm: an engine that serves them, SGLang's too."""

NetworkName = Literal["infiniband", "efa"]

NamedTechnique = tuple[str, dict[str, Any]]
"""A technique of suites/training/techniques by name, with its settings."""


class FieldOrigin(NamedTuple):
    """Where a field's value comes from."""

    kind: Literal["command", "key", "default", "assumption", "missing"]  # missing: the command must give it
    of: str = ""  # the word, the file's key, whose default, or why it is assumed or missing


Direction = Literal["lowers", "raises", "none", "either"]
"""What a key that is not modelled does to the peak of memory."""


class KeyRead(msgspec.Struct, frozen=True, kw_only=True):
    """A key of a framework's file, and what became of it."""

    key: str
    value: Any = None
    status: Literal["understood", "default", "irrelevant", "not modelled"]
    field: str = ""  # of Question, or what it is a part of
    means: str = ""  # what the key means; of one that is not modelled, what it changes
    memory: Direction = "none"  # of one that is not modelled
    to_states: bool = False  # one that lowers: down to the states at most, since sequences may be short
    least: float | None = None  # of one that lowers: the share of the peak that may remain; None: the usual
    most_B: float | None = None  # of one that raises: what it adds per device at most; None: the usual share
    seconds: Direction = "none"
    source: str = ""  # of these directions


def lowering(key: str, means: str, value: Any = None, seconds: Direction = "lowers") -> KeyRead:
    """Return a key that is not modelled and lowers the peak; `means`: what it changes."""
    return KeyRead(key=key, value=value, status="not modelled", means=means, memory="lowers", seconds=seconds)


class Adapters(msgspec.Struct, frozen=True, kw_only=True):
    """Low-rank adapters on a frozen model, or with `prompts` those of LLaMA-Adapter, of this version."""

    rank: WholeNumber
    targets: tuple[str, ...] = ()  # names of linear layers, as q_proj; (): every linear layer of the layers
    base: Literal["bf16", "nf4", "int8"] = "bf16"  # of the frozen weights
    dtype: Literal["fp32", "bf16"] = "fp32"  # of the adapters
    dora: bool = False
    dropout: Annotated[float, Meta(ge=0, lt=1)] = 0.0  # of the adapters' inputs
    prompts: Literal[0, 1, 2] = 0
    ends: bool = False  # embedding and output layer are trained, too (peft's modules_to_save)
    # Of a quantized base: in bf16 or fp32; quantized, a linear layer each (transformers 4); all as one tensor
    experts: Literal["bf16", "fp32", "linear", "tensor"] = "bf16"
    rest: Literal["bf16", "fp32"] = "bf16"  # what a quantized base leaves as it is
    double: bool = True  # nf4 with double quantization
    lightning: bool = False  # quantized by Lightning's plugin, the output layer too
    flat: bool = False  # FSDP1 shards adapters and frozen weights of a layer as one flat parameter


HIDDEN_SIZES = ("hidden_size", "n_embd", "d_model")  # names of the hidden size in a config.json

DEEPSPEED_BUCKET = 500_000_000
"""Elements of reduce_bucket_size and allgather_bucket_size by default (deepspeed 0.19.8,
runtime/zero/config.py)."""


def whole_size(config: Mapping[str, Any], *names: str) -> int | None:
    """Return the first of these sizes that a config has; None where it is no whole number above 0."""
    sizes = [config[name] for name in names if config.get(name)]
    whole = bool(sizes) and isinstance(sizes[0], int) and not isinstance(sizes[0], bool) and sizes[0] > 0
    return int(sizes[0]) if whole else None


OF_SEVERAL_DEVICES = ("llama_factory", "llama_factory_v1")
"""Formats whose launchers switch expandable segments on for several devices alone."""


class Question(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One training run on some devices. Sizes of the layout are named as in suites/training/layouts."""

    # the model
    config: dict[str, Any] | None = None  # the content of a Hugging Face config.json
    model_name: str = ""  # as the user names it
    model_source: str = ""  # where the config comes from
    model_code: str | None = None  # package.module:function, the user's own; None: transformers'
    # the cluster
    devices: WholeNumber | None = None
    device: str = "h100_80gb"  # of conf/hardware
    memory_B: Above | None = None  # that a process can use; None: the device's
    gpus_per_node: WholeNumber = 8
    network_B_per_s: Above = 50e9  # between nodes, per device and direction
    network: NetworkName = "infiniband"
    # the batch
    seq_len: WholeNumber | None = None
    shorter: bool = False  # seq_len is that of the longest sequence: neither packed nor padded to it
    micro_batch_size: WholeNumber = 1  # sequences of one forward pass on one device
    global_batch_size: WholeNumber | None = None  # sequences per step
    gradient_accumulation_steps: WholeNumber | None = None
    of_micro_batch: bool = False  # seconds are those of one of a step's micro-batches
    # what is trained; micro-batches count each answer of a pair
    objective: Objective = "sft"
    forward_passes: Annotated[int, Meta(ge=0)] = 0  # without gradients, per sequence: a reference model's
    rollout: Rollout = "none"  # within the step
    reference_weight_B: Literal[0, 2, 4] = 0  # per weight of a frozen reference model next to it; 0: none
    # the layout
    search: bool = False  # every layout, in place of the one below
    dp: WholeNumber | None = None  # None: the devices that tp, pp and cp leave
    tp: WholeNumber = 1
    pp: WholeNumber = 1
    cp: WholeNumber = 1
    ep: WholeNumber = 1
    etp: WholeNumber | None = None  # None: tp in Megatron-LM, else 1
    virtual_stages: WholeNumber = 1
    layers_per_stage: WholeNumber | None = None  # from which virtual_stages follows with the model's layers
    layers_of_stages: tuple[int, ...] = ()  # of every stage, where they are given one by one
    schedule: str = "1f1b"
    micro_batch_group: WholeNumber | None = None  # of interleaved stages, in Megatron-LM; None: pp
    zero: Annotated[int, Meta(ge=0, le=3)] = 0
    shard_size: WholeNumber | None = None  # None: all dp × cp ranks
    replicas: WholeNumber = 1  # groups of ranks that each shard a full copy (hybrid sharding)
    # elements of a bucket of DeepSpeed's gradients; 0: hidden_size², as "auto" is filled; None: its default
    reduce_bucket: Annotated[int, Meta(ge=0)] | None = None
    sequence_parallel: bool = False
    # the recipe
    techniques: tuple[NamedTechnique, ...] | None = None  # for a dry run; None: those of the fields below
    precision: PrecisionName = "bf16"  # of matmuls
    states: Literal["fp32", "bf16"] = "fp32"  # of parameters and optimizer states; bf16: everything in bf16
    gradients: Literal["fp32", "bf16"] = "fp32"  # of Megatron-LM, in which micro-batches' are added up
    master_remainders: bool = False  # of Megatron-LM: the half of an fp32 weight that the bf16 one lacks
    fp8_parameters: bool = False  # of Megatron-LM, --fp8-param-gather
    optimizer: Optimizer = "adamw"
    optimizer_impl: Literal["fused", "foreach", "for_loop"] = "fused"  # torch's
    optimizer_in_backward: bool = False  # each parameter is updated as soon as its gradient exists
    # flash: no scores are kept; flash_attention: by FlashAttention itself, where Megatron-LM's file names it
    attention: Literal["flash", "flash_attention", "explicit"] = "flash"
    deterministic: bool = False  # of Megatron-LM, --deterministic-mode
    recompute: Recompute = "none"
    recompute_every: WholeNumber = 1  # of "full": every n-th layer alone
    reentrant: bool = False  # checkpoints are torch's older ones, use_reentrant=True
    recompute_modules: tuple[str, ...] = ()  # of Megatron-LM's "selective"; (): core_attn
    dispatcher: Dispatcher = "alltoall"  # of tokens to their experts, in Megatron-LM and torchtitan
    grouped_experts: bool = True
    replicated_experts: bool = False  # ranks with the same experts each have all of them, whatever is sharded
    deferred_head_gradients: int | None = None  # micro-batches whose output layer's gradient waits; 0: all
    capacity_factor: Above | None = None  # of each expert; tokens beyond it are dropped
    imbalance: Above | None = None  # of the rank with the busiest experts, over the mean; None: not known
    offload: tuple[str, ...] = ()  # parameters, optimizer, activations; "optimizer:nvme" names a place
    adapters: Adapters | None = None
    compile: bool = False
    expandable_segments: bool = False  # of torch's allocator
    torch: str | None = None  # its version, as 2.4; None: the installed one's
    fused_loss: bool = False  # no logits of the full vocabulary are kept (Liger, cut cross-entropy)
    fused_layers: bool = False  # norms and gated activations keep their inputs alone (Liger)
    loss_chunks: WholeNumber = 1  # the output layer and the loss, in parts
    loss_in_place: bool = False  # gradients take the place of the logits (Unsloth's cross-entropy)
    # the program
    sharing: Sharing = "ddp"
    program: ProgramName | None = None  # None: that which shares so, see `program_of`
    format: str = ""  # of the file, "" without one
    framework: str = ""  # whose defaults were filled in, with its version
    # how it was read
    origins: dict[str, FieldOrigin] = {}
    keys: tuple[KeyRead, ...] = ()

    def origin(self, field: str) -> FieldOrigin:
        """Return where a field's value comes from; of one that nothing gave, this project's assumption."""
        return self.origins.get(field, FieldOrigin("assumption"))

    def with_fields(self, origin: FieldOrigin, **fields: Any) -> Question:
        """Return the question with other values of fields, which come from `origin`; raises ValueError."""
        origins = {**self.origins, **dict.fromkeys(fields, origin)}
        return question_of(**{**msgspec.structs.asdict(self), **fields, "origins": origins})

    def undivided(self) -> Question:
        """Return the question without what needs ranks with the same parameters, where there are none."""
        if self.devices != self.tp * self.pp:
            return self
        keys = [key for key in self.keys if (key.field, key.status) != ("sharing", "not modelled")]
        known = self.origin("sharing").kind != "assumption"
        origins = self.origins if known else {**self.origins, "sharing": FieldOrigin("assumption")}
        launched = self.format in OF_SEVERAL_DEVICES and self.sharing != "megatron" and self.devices == 1
        by_default = launched and self.origin("expandable_segments").kind == "default"
        expandable = self.expandable_segments and not by_default
        return msgspec.structs.replace(
            self, keys=tuple(keys), origins=origins, expandable_segments=expandable
        )

    @property
    def model_ranks(self) -> int:
        """Return the ranks that one sequence occupies: tp × pp × cp."""
        return self.tp * self.pp * self.cp

    def dp_of(self) -> int:
        """Return the data-parallel ranks; raises ValueError where nothing has them or they do not divide."""
        devices = self.devices
        if devices is None and self.dp is not None:
            return self.dp
        if devices is None:
            raise ValueError(
                "devices: missing; give devices=N, the number of GPUs: the file does not say how many share "
                "the data"
            )
        if devices % self.model_ranks:
            raise ValueError(
                f"devices={devices} is no multiple of tp {self.tp} × pp {self.pp} × cp {self.cp} "
                f"= {self.model_ranks}"
            )
        dp = devices // self.model_ranks
        if self.dp is not None and dp != self.dp:
            raise ValueError(
                f"devices={devices} leaves {dp} data-parallel ranks; the file says {self.dp}: "
                f"devices={self.dp * self.model_ranks}"
            )
        return dp

    def all_devices(self) -> int:
        """Return the devices, those of all ranks where none are given; raises ValueError, see `dp_of`."""
        return self.devices or self.dp_of() * self.model_ranks

    def micro_batches(self) -> int:
        """Return the micro-batches per step and rank; raises ValueError where they do not divide."""
        if self.gradient_accumulation_steps is not None:
            return self.gradient_accumulation_steps
        if self.global_batch_size is None:
            return 1
        dp = self.dp_of()
        at_once = self.micro_batch_size * dp
        if self.global_batch_size % at_once:
            raise ValueError(
                f"a global batch of {self.global_batch_size} sequences is no multiple of micro-batch "
                f"{self.micro_batch_size} × {dp} data-parallel ranks = {at_once}"
            )
        return self.global_batch_size // at_once

    def sequences_per_step(self) -> int:
        """Return the sequences of one step on all ranks; raises ValueError where they do not divide."""
        return self.micro_batch_size * self.micro_batches() * self.dp_of()

    def stages_per_rank(self) -> int:
        """Return the pipeline stages of one rank; raises ValueError where the layers do not give whole ones.

        torchtitan counts the embedding and the output layer as one layer each (v0.2.2,
        torchtitan/distributed/pipeline_parallel.py).
        """
        if self.layers_per_stage is None or self.config is None or self.pp == 1:
            return self.virtual_stages
        layers = int(self.config.get("num_hidden_layers", 0)) + 2
        stages = -(-layers // self.layers_per_stage)
        if stages % self.pp:
            raise ValueError(
                f"{layers} layers (embedding and output among them) at {self.layers_per_stage} per stage are "
                f"{stages} stages, no multiple of pp {self.pp}"
            )
        return stages // self.pp

    def shard_ranks(self) -> int:
        """Return over how many ranks states are sharded; raises ValueError where they do not divide."""
        ranks = self.dp_of() * self.cp
        if self.shard_size is not None and self.zero:
            if ranks % self.shard_size:
                raise ValueError(f"{ranks} ranks (dp × cp) are no multiple of shard_size {self.shard_size}")
            return self.shard_size
        if ranks % self.replicas:
            raise ValueError(f"{ranks} ranks (dp × cp) are no multiple of {self.replicas} replicas")
        return ranks // self.replicas

    def bucket_elements(self) -> int | None:
        """Return the elements of a bucket of DeepSpeed's gradients; None: its default.

        transformers' Trainer and accelerate fill "auto" with the square of the hidden size (5.23,
        integrations/deepspeed.py, trainer_config_finalize; 16cb6eb, accelerator.py, _prepare_deepspeed).
        """
        if self.reduce_bucket != 0:
            return self.reduce_bucket
        config: Mapping[str, Any] = self.config or {}
        of_text = config.get("text_config")
        if not {*config} & {*HIDDEN_SIZES} and isinstance(of_text, Mapping):
            config = of_text
        hidden = whole_size(config, *HIDDEN_SIZES)
        return hidden and hidden**2

    @property
    def has_experts(self) -> bool:
        """Return whether the model is a mixture of experts."""
        config: Mapping[str, Any] = self.config or {}
        return any(config.get(name) for name in ("num_experts", "num_local_experts", "n_routed_experts"))

    @property
    def expert_tensor_ranks(self) -> int:
        """Return the tensor-parallel ranks of one expert where none are given.

        Megatron-LM's --expert-tensor-parallel-size is --tensor-model-parallel-size by default
        (megatron/training/arguments.py).
        """
        return self.tp if self.program_of() == "megatron" and self.has_experts else 1

    def program_of(self) -> ProgramName:
        """Return whose code trains: the program that was named, or the one that shares the model so."""
        return self.program or PROGRAM_OF_SHARING[self.sharing]


class AskedChange(msgspec.Struct, frozen=True, kw_only=True):
    """A change of a question that is tried after it, or the reason why it is not."""

    title: str
    question: Question | None = None
    reason: str = ""


Extent = Literal["asked", "largest"]
"""What a dry run looks for: whether the asked micro-batch fits, or the largest that does, too."""


class DryRunRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What the process of a dry run is asked."""

    question: Question
    changes: tuple[AskedChange, ...] = ()
    extent: Extent = "largest"
    slack: float = 1.0  # the most by which bytes may exceed the dry run's


PROGRAM_OF_SHARING: Mapping[Sharing, ProgramName] = {
    "megatron": "megatron",
    "nanotron": "nanotron",
    "zero": "deepspeed",
    "fsdp2": "torchtitan",
    "fsdp1": "composer",
    "ddp": "torchtitan",
}
"""The program of the account of layouts that shares a model so."""


def question_of(**fields: Any) -> Question:
    """Return a question from values of its fields, checked by their annotations; raises ValueError."""
    try:
        return msgspec.convert(fields, Question)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at `$.")
        what = what.replace("`", "").replace("Expected int >= 1", "expected a whole number of at least 1")
        raise ValueError(f"{where.rstrip('`')}: {what}" if where else what) from None
