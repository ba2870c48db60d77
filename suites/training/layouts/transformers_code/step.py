"""A training step of transformers' model code on one device, under DDP or under FSDP2, as its live bytes.

The order is that of dry runs of this project's techniques: torch's autocast, DDP's buckets, FSDP2's gathered
parameters and reduce-scatters (torch/distributed/fsdp/_fully_shard), and foreach optimizers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from harness.instruments.transformer.shape import TransformerShape
from suites.training.dry_run.gpu_architectures import CUBLAS_HANDLES, CUBLAS_WORKSPACE_B
from suites.training.layouts.transformers_code.layer import LayerCode
from suites.training.layouts.transformers_code.loss import LOSSES, LossName
from suites.training.layouts.transformers_code.sizes import CodeName
from suites.training.layouts.transformers_code.tape import AUTOCAST, NARROW, WIDE, StepPrecision, Tape
from suites.training.workload import Architecture

OPTIMIZER_STATES_B = {"adamw": 8.0, "adamw_8bit": 2 + 2 * 4 / 256, "sgd_momentum": 4.0}
"""Bytes of states per parameter. 8-bit AdamW has an fp32 maximum per 256 values, twice (adamw_8bit.py)."""

DEEPSPEED_BUCKET = 500_000_000
"""Elements of reduce_bucket_size by default; here at most as many as the model's parameters (zero.py)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeSetting:
    """What a step of transformers' code depends on besides the model."""

    sequences: int
    seq_len: int
    sharing: Literal["none", "ddp", "fsdp2", "zero"] = "none"  # zero: stages 1 and 2, by deepspeed
    ranks: int = 1
    zero_stage: int = 1  # of deepspeed
    precision: Literal["bf16", "fp32"] = "bf16"
    recompute: Literal["none", "selective", "full"] = "none"  # selective: linear layers' results are kept
    attention: Literal["flash", "explicit"] = "flash"
    code: CodeName = "llama"
    loss: LossName = "whole"
    loss_chunks: int = 8
    stays_gathered: bool = False  # FSDP2 without resharding after the forward pass
    micro_batches: int = 1
    optimizer: str = "adamw"
    optimizer_impl: Literal["fused", "foreach", "for_loop"] = "foreach"
    architecture: Architecture = "hopper"


class TransformersStep:
    """Adds up a step on a tape."""

    def __init__(self, shape: TransformerShape, setting: CodeSetting):
        self.shape, self.setting = shape, setting
        sharded = setting.sharing == "fsdp2"
        self.shards = setting.ranks if sharded else 1
        self.precision: StepPrecision = WIDE
        if setting.precision == "bf16":
            self.precision = NARROW if setting.sharing in ("fsdp2", "zero") else AUTOCAST
        self.layer = LayerCode(
            shape=shape,
            precision=self.precision,
            sequences=setting.sequences,
            seq_len=setting.seq_len,
            attention_kernel=setting.attention,
            code=setting.code,
            when_gradient=self.into_bucket if setting.sharing == "zero" else None,
        )
        self.tape = Tape()
        self.in_bucket = self.copied = 0.0  # gradients in deepspeed's bucket, and those released since
        self.has_bucket = self.complete = False
        self.cached_B = 0.0  # autocast's copies of weights, which end with the forward pass
        self.layer_parameters = float(shape.layer_parameters(moe=shape.num_experts > 0))
        experts = float(shape.num_experts * shape.expert_parameters)
        share = -(-shape.num_experts // self.shards) * self.shards / max(shape.num_experts, 1)
        self.padding = experts * (share - 1)  # FSDP2 splits experts' weights by expert
        self.embedding = float(shape.embedding_parameters)

    @property
    def root_parameters(self) -> float:
        """Return the parameters outside of layers."""
        return self.shape.parameters - self.shape.num_hidden_layers * self.layer_parameters

    def peak_B(self) -> float:
        """Return the most live bytes of a step that is not the first."""
        self.states()
        for micro_batch in range(min(self.setting.micro_batches, 2)):
            if micro_batch > 0 and self.setting.sharing != "fsdp2":
                self.layer = replace(self.layer, accumulates=True)
            self.forward()
            self.backward(later=micro_batch > 0)
        self.update()
        return self.tape.peak_B

    def states(self) -> None:
        """Take what is there before a step begins."""
        self.tape.add(self.workspaces_B, self.states_B, self.buckets_B)

    @property
    def workspaces_B(self) -> float:
        """Return the bytes of cuBLAS's workspaces."""
        return float(CUBLAS_HANDLES * CUBLAS_WORKSPACE_B[self.setting.architecture])

    @property
    def states_B(self) -> float:
        """Return the bytes of weights and of the optimizer's states; ZeRO has bf16 weights, too."""
        each_B = 4 + OPTIMIZER_STATES_B[self.setting.optimizer]
        if self.setting.sharing == "zero":
            return (2.0 + each_B / self.setting.ranks) * self.shape.parameters
        return each_B * self.padded_parameters / self.shards

    @property
    def buckets_B(self) -> float:
        """Return the bytes of DDP's buckets of gradients."""
        return 4.0 * self.shape.parameters if self.setting.sharing == "ddp" else 0.0

    @property
    def padded_parameters(self) -> float:
        """Return the parameters with what is added so that each rank has as many."""
        return self.shape.parameters + self.shape.num_hidden_layers * self.padding

    @property
    def padded_layer(self) -> float:
        """Return those of a layer."""
        return self.layer_parameters + self.padding

    def gather(self, parameters: float) -> None:
        """Gather parameters in the type of the forward pass, into a buffer."""
        element_B = self.precision.stream_B
        own_B = element_B * parameters / self.shards
        self.tape.add(own_B, element_B * parameters, -own_B)

    def forward(self) -> None:
        """Run the forward pass up to the last layer's result."""
        tape, layer, sharded = self.tape, self.layer, self.setting.sharing == "fsdp2"
        element_B = self.precision.stream_B
        layer_B, root_B = element_B * self.padded_layer, element_B * self.root_parameters
        buffer_B = root_B
        recompute = self.setting.recompute
        if sharded:
            self.gather(self.root_parameters)
            tape.add(root_B)
        tape.add(layer.stream_B, layer.rotary_B)
        for number in range(self.shape.num_hidden_layers):
            if sharded:
                self.gather(self.padded_layer)
                tape.add(layer_B, -buffer_B)
                buffer_B = layer_B
            if recompute != "none":
                before_B = tape.live_B
                layer.forward(tape)
                kept_B = layer.products_B if recompute == "selective" else 0.0
                kept_B += layer.copies_B
                self.cached_B += layer.copies_B
                tape.add(before_B + layer.stream_B + kept_B - tape.live_B)  # besides its input
            else:
                if number == 0 and self.precision.stream_B == 2:
                    tape.add(layer.stream_B)  # the embedding's result stays until the last norm
                layer.forward(tape)
            if sharded and not self.setting.stays_gathered:
                tape.add(-layer_B)
        self.buffer_B = buffer_B if sharded else 0.0

    def backward(self, later: bool = False) -> None:
        """Run the loss and the backward pass. `later`: gradients of an earlier micro-batch are there."""
        tape, layer, sharded = self.tape, self.layer, self.setting.sharing == "fsdp2"
        element_B = self.precision.stream_B
        layer_B = element_B * self.padded_layer
        self.loss()
        reduced_B = 0.0
        for number in reversed(range(self.shape.num_hidden_layers)):
            if sharded and not self.setting.stays_gathered:
                tape.add(layer_B, -self.buffer_B)
                self.buffer_B = 0.0
                if number > 0:
                    self.gather(self.padded_layer)
                    self.buffer_B = layer_B
            recompute = self.setting.recompute
            layer.begin_backward(tape)
            if recompute != "none":
                layer.forward(tape, again=True, there=recompute == "selective")
                if recompute == "selective":  # the sum took the output layer's result
                    ended_B = layer.size_B(self.shape.hidden_size, self.precision.product_B)
                    tape.add(-ended_B)
            layer.backward(tape, again=recompute != "none")
            if sharded:
                self.reduce(self.layer_parameters, reduced_B, self.padding)
                tape.add(-4 * self.padded_layer / self.shards if later else 0.0)
                reduced_B = 4 * self.padded_layer
        self.embedding_backward()
        if sharded:
            self.reduce(self.root_parameters, reduced_B)
            tape.add(-4 * self.root_parameters)
            tape.add(-4 * self.root_parameters / self.shards if later else 0.0)
        if self.setting.sharing == "zero":
            self.complete = True
            self.into_bucket(self.embedding)
            self.reduce_bucket()
            first = max(self.shape.parameters / self.setting.ranks, self.embedding)
            self.has_bucket = False
            tape.add(2.0 * first, -2.0 * self.bucket)  # gradients of the first rank's parameters, each whole
        tape.add(-layer.rotary_B)

    def into_bucket(self, parameters: float) -> None:
        """Count gradients that are there in deepspeed's bucket, which is reduced before they exceed it.

        A tied weight's gradient is not complete before the embedding's backward pass.
        """
        if parameters == self.embedding and self.shape.tie_word_embeddings and not self.complete:
            return
        if not self.has_bucket:
            self.tape.add(2.0 * self.bucket)
            self.has_bucket = True
        if self.in_bucket + parameters > DEEPSPEED_BUCKET:
            self.reduce_bucket()
        self.in_bucket += parameters
        if self.setting.zero_stage == 2 and parameters <= DEEPSPEED_BUCKET:  # it is copied into the bucket
            self.tape.add(-2.0 * parameters)
            self.copied += parameters

    def reduce_bucket(self) -> None:
        """Join the bucket's gradients to one tensor for the reduction, and release them."""
        self.tape.inside(2.0 * self.in_bucket)
        self.tape.add(-2.0 * (self.in_bucket - self.copied))
        self.in_bucket = self.copied = 0.0

    @property
    def bucket(self) -> float:
        """Return the elements of deepspeed's bucket of gradients."""
        return float(min(DEEPSPEED_BUCKET, self.shape.parameters))

    def reduce(self, parameters: float, earlier_B: float, padding: float = 0.0) -> None:
        """Release gathered parameters, and reduce their gradients to a rank's part in fp32.

        `earlier_B`: the buffer of the reduction before, which is released first.
        """
        element_B, padded = self.precision.stream_B, parameters + padding
        self.tape.add(-earlier_B, -element_B * padded, 4 * padded, -element_B * parameters)
        self.tape.add(4 * padded / self.shards)

    def loss(self) -> None:
        """Run the last norm, the output layer and the loss, and their backward passes."""
        tape, layer, shape = self.tape, self.layer, self.shape
        result_B = layer.norm(tape, shape.hidden_size)
        if self.precision.stream_B == 2:  # the embedding's result and the last layer's
            embedded = self.setting.recompute == "none"
            tape.add(-2 * layer.stream_B if embedded else -layer.stream_B)
        LOSSES[self.setting.loss](tape, layer, result_B, self.turn, self.setting.loss_chunks)
        layer.norm_backward(tape, shape.hidden_size, residual=False, input_B=layer.stream_B)

    def turn(self) -> None:
        """Go over to the backward pass, for which FSDP2 gathers the last layer again.

        Autocast's cache of weights ends, of which nothing else keeps those of recomputed layers.
        """
        self.tape.add(-self.cached_B)
        self.cached_B = 0.0
        if self.setting.sharing != "fsdp2":
            return
        self.tape.add(-self.buffer_B)
        self.buffer_B = 0.0
        if not self.setting.stays_gathered:
            self.gather(self.padded_layer)
            self.buffer_B = self.precision.stream_B * self.padded_layer

    def embedding_backward(self) -> None:
        """Run the embedding's backward pass; a tied weight's gradient is added to the output layer's."""
        tape, gradient_B = self.tape, self.precision.stream_B * self.embedding
        if self.setting.code == "gemma":  # which scales the embedding's result
            tape.inside(self.layer.stream_B)
        tape.add(gradient_B, -self.layer.stream_B)
        if self.shape.tie_word_embeddings:
            if self.precision.stream_B == 2:
                tape.add(gradient_B, -gradient_B)
            tape.add(-gradient_B)
        elif self.layer.accumulates:
            tape.add(-gradient_B)

    def update(self) -> None:
        """Update the parameters."""
        if self.setting.sharing == "zero":  # the norm in fp64, then the gradients in fp32
            share = self.shape.parameters / self.setting.ranks
            self.tape.inside(8 * share)
            self.tape.inside(4 * share, 4 * share)
        elif self.setting.optimizer == "adamw" and self.setting.optimizer_impl != "fused":
            of_one = self.setting.optimizer_impl == "for_loop"
            updated = self.embedding if of_one else self.padded_parameters
            self.tape.inside(4 * updated / self.shards)  # the root of the second moments


class CodeParts(NamedTuple):
    """Bytes of one rank at the peak of a steady step."""

    states: float  # of those that are there all the time
    buckets: float  # DDP's
    workspaces: float
    total: float


def parts_of_step(shape: TransformerShape, setting: CodeSetting) -> CodeParts:
    """Return the peak of live bytes of one rank, and what of it is there all the time."""
    step = TransformersStep(shape, setting)
    return CodeParts(step.states_B, step.buckets_B, step.workspaces_B, step.peak_B())
