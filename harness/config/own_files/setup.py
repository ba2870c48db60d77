"""What a framework's own file says of a training run, in this project's words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Understood(NamedTuple):
    """A key whose value was taken over."""

    key: str
    value: Any
    field: str  # of OwnSetup, or what it is a part of
    means: str


class NotUnderstood(NamedTuple):
    """A key that changes memory or speed and is not modelled, or that no table knows."""

    key: str
    value: Any
    why: str


class FilledIn(NamedTuple):
    """A key that the file leaves out, with the framework's own default."""

    key: str
    value: Any
    field: str


@dataclass(frozen=True, kw_only=True)
class Adapters:
    """Low-rank adapters on a frozen model."""

    rank: int
    targets: tuple[str, ...] = ()  # names of linear layers, as q_proj; (): every linear layer of the layers
    base: str = "bf16"  # of the frozen weights: bf16, nf4 or int8
    dora: bool = False


@dataclass(frozen=True, kw_only=True)
class OwnSetup:
    """One training run. Sizes of the layout have the names of suites/training/layouts/layout.py."""

    format: str
    framework: str  # whose defaults were filled in, with its version
    engine: str = "ddp"  # what shares the model over devices: ddp, fsdp1, fsdp2, zero, megatron, nanotron
    model: Mapping[str, Any] | None = None  # a Hugging Face config
    model_name: str = ""  # as the file names it
    model_source: str = ""  # where the config comes from
    devices: int | None = None
    dp: int | None = None  # None: the devices that tp, pp and cp leave
    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    etp: int = 1
    virtual_stages: int = 1
    layers_per_stage: int | None = None  # from which virtual_stages follows with the model's layers
    schedule: str = "1f1b"
    zero: int = 0
    shard_size: int | None = None  # None: all dp × cp ranks
    replicas: int = 1  # groups of ranks that each shard a full copy (hybrid sharding)
    micro_batch_size: int = 1
    gradient_accumulation_steps: int | None = None
    global_batch_size: int | None = None  # sequences per step
    recompute: str = "none"  # none, selective, full
    recompute_every: int = 1  # of "full": every n-th layer alone
    recompute_modules: tuple[str, ...] = ()  # of Megatron-LM's "selective"; (): core_attn
    dispatcher: str = "alltoall"  # of tokens to their experts, in Megatron-LM: alltoall, allgather, deepep
    sequence_parallel: bool = False
    seq_len: int | None = None
    precision: str = "bf16"  # of matmuls: bf16, fp16, fp32, fp8, mxfp8, nvfp4
    states: str = "fp32"  # of parameters and optimizer states; bf16: everything in bf16
    optimizer: str = "adamw"
    optimizer_impl: str = "fused"  # torch's: fused, foreach or for_loop
    optimizer_in_backward: bool = False  # each parameter is updated as soon as its gradient exists
    attention: str = "flash"  # flash or explicit
    offload: tuple[str, ...] = ()  # parameters, optimizer, activations
    adapters: Adapters | None = None
    compile: bool = False
    fused_loss: bool = False  # no logits of the full vocabulary are kept (Liger, cut cross-entropy)
    loss_chunks: int = 1  # the output layer and the loss, in parts
    understood: tuple[Understood, ...] = field(default=(), compare=False)
    not_understood: tuple[NotUnderstood, ...] = field(default=(), compare=False)
    irrelevant: tuple[str, ...] = field(default=(), compare=False)
    defaults: tuple[FilledIn, ...] = field(default=(), compare=False)

    @property
    def model_ranks(self) -> int:
        """Return the ranks that one sequence occupies: tp × pp × cp."""
        return self.tp * self.pp * self.cp

    def dp_of(self, devices: int | None = None) -> int:
        """Return the data-parallel ranks on so many devices; without a number, the file's own.

        Raises ValueError where neither the file nor the caller gives the devices, or they do not divide.
        """
        devices = devices or self.devices
        if devices is None and self.dp is not None:
            return self.dp
        if devices is None:
            raise ValueError("devices is missing: the file leaves the data-parallel ranks to it")
        if devices % self.model_ranks:
            raise ValueError(
                f"devices={devices} is no multiple of tp {self.tp} × pp {self.pp} × cp {self.cp} "
                f"= {self.model_ranks}"
            )
        found = devices // self.model_ranks
        if self.dp is not None and found != self.dp:
            raise ValueError(
                f"devices={devices} leaves {found} data-parallel ranks; the file says {self.dp}: "
                f"devices={self.dp * self.model_ranks}"
            )
        return found

    def micro_batches(self, devices: int | None = None) -> int:
        """Return the micro-batches per step and rank; raises ValueError where they do not divide."""
        if self.gradient_accumulation_steps is not None:
            return self.gradient_accumulation_steps
        if self.global_batch_size is None:
            return 1
        at_once = self.micro_batch_size * self.dp_of(devices)
        if self.global_batch_size % at_once:
            raise ValueError(
                f"a global batch of {self.global_batch_size} sequences is no multiple of micro-batch "
                f"{self.micro_batch_size} × {self.dp_of(devices)} data-parallel ranks = {at_once}"
            )
        return self.global_batch_size // at_once

    def stages_per_rank(self) -> int:
        """Return the pipeline stages of one rank; raises ValueError where the layers do not give whole ones.

        torchtitan counts the embedding and the output layer as one layer each (v0.2.2,
        torchtitan/distributed/pipeline_parallel.py).
        """
        if self.layers_per_stage is None or self.model is None or self.pp == 1:
            return self.virtual_stages
        layers = int(self.model.get("num_hidden_layers", 0)) + 2
        stages = -(-layers // self.layers_per_stage)
        if stages % self.pp:
            raise ValueError(
                f"{layers} layers (embedding and output among them) at {self.layers_per_stage} per stage are "
                f"{stages} stages, no multiple of pp {self.pp}"
            )
        return stages // self.pp

    def shard_ranks(self, devices: int | None = None) -> int:
        """Return over how many ranks states are sharded; raises ValueError where they do not divide."""
        ranks = self.dp_of(devices) * self.cp
        if self.shard_size is not None and self.zero:
            if ranks % self.shard_size:
                raise ValueError(f"{ranks} ranks (dp × cp) are no multiple of shard_size {self.shard_size}")
            return self.shard_size
        if ranks % self.replicas:
            raise ValueError(f"{ranks} ranks (dp × cp) are no multiple of {self.replicas} replicas")
        return ranks // self.replicas

    def layout(self, devices: int | None = None) -> dict[str, int]:
        """Return the layout as a row of `suites.training.layouts.layout.Layouts.of`.

        Raises ValueError where the devices are not known or do not divide.
        """
        return {
            "dp": self.dp_of(devices),
            "tp": self.tp,
            "pp": self.pp,
            "cp": self.cp,
            "ep": self.ep,
            "etp": self.etp,
            "virtual_stages": self.stages_per_rank(),
            "zero": self.zero,
            "shard_size": self.shard_ranks(devices),
            "micro_batch_size": self.micro_batch_size,
            "micro_batches": self.micro_batches(devices),
            "recompute": ("none", "selective", "full").index(self.recompute),
            "sequence_parallel": int(self.sequence_parallel),
        }
