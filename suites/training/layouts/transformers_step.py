"""A training step of transformers' model code on one device, under DDP, FSDP2 or ZeRO, as its live bytes.

The order is that of dry runs of this project's techniques: torch's autocast, DDP's buckets, FSDP2's gathered
parameters and reduce-scatters (torch/distributed/fsdp/_fully_shard), and foreach optimizers.
docs/suites/layouts.md lists the steps that the account follows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Literal

from harness.instruments.transformer import TransformerShape
from harness.records import Unavailable
from suites.training.layouts.layout import MUON_SAVES_B, OPTIMIZER_STATES_B, RECOMPUTES, Training
from suites.training.layouts.room import CUBLAS_HANDLES, CUBLAS_WORKSPACE_B
from suites.training.layouts.transformers_layer import (
    AUTOCAST,
    NARROW,
    WIDE,
    CodeName,
    LayerCode,
    StepPrecision,
    Tape,
)
from suites.training.workload import Architecture

CODES: Mapping[str, CodeName] = {
    "gemma": "gemma",
    "llama": "llama",
    "mistral": "llama",
    "mixtral": "mixtral",
    "qwen2": "llama",
    "qwen3": "llama",
    "qwen3_moe": "qwen3_moe",
}
"""Whose code a model_type has, of those that the account follows."""

Sharing = Literal["none", "ddp", "fsdp2", "zero"]
"""What shares the model. fsdp2 of stage 2 does not reshard after the forward pass; zero is deepspeed's."""


def sharing_of(training: Training, layout: Mapping[str, int]) -> Sharing:
    """Return how a program shares the model; raises `Unavailable`."""
    zero = layout["zero"]
    if training.program == "torchtitan" and zero in (0, 2, 3):
        return "fsdp2" if zero else "ddp" if layout["dp"] > 1 else "none"
    if training.program == "deepspeed" and zero in (1, 2):
        return "zero"
    raise Unavailable(
        f"the account of transformers' code: {training.program} with zero:{zero} is not followed"
    )


def refusal(shape: TransformerShape, layout: Mapping[str, int], training: Training, sharing: Sharing) -> str:
    """Return why a step is not followed; "" where it is."""
    explicit = training.attention == "unfused"
    narrow = sharing in ("fsdp2", "zero") and training.precision == "bf16"
    grouped = shape.num_key_value_heads < shape.num_attention_heads
    selective = RECOMPUTES[layout["recompute"]] == "selective"
    fused = training.fused_layers
    reasons = {
        "tp, pp, cp and ep must be 1": max(layout[name] for name in ("tp", "pp", "cp", "ep")) > 1,
        "hybrid sharding": layout["shard_size"] != layout["dp"],
        f"precision={training.precision}": training.precision not in ("bf16", "fp32"),
        f"offload={training.offload}": training.offload != "none",
        f"optimizer={training.optimizer} with deepspeed": sharing == "zero" and training.optimizer != "adamw",
        "several micro-batches with deepspeed": sharing == "zero" and layout["micro_batches"] > 1,
        "fp32 with FSDP2 or deepspeed": sharing in ("fsdp2", "zero") and training.precision == "fp32",
        "explicit attention but of FSDP2 or deepspeed in bf16, with as many key-value heads": explicit
        and (not narrow or grouped or selective),
        "a window of attention": shape.sliding_window > 0,
        "norms of heads in fp32": shape.qk_norm_size > 0 and training.precision == "fp32",
        "experts but of FSDP2": shape.num_experts > 0 and sharing != "fsdp2",
        "selective recompute of experts": shape.num_experts > 0 and selective,
        "layers without experts next to others": shape.num_experts > 0 and not all(shape.layers_are_moe),
        "shared experts": shape.shared_intermediate_size > 0,
        "dropout": shape.dropout > 0,
        "fused layers but of FSDP2 or deepspeed in bf16, without experts and norms of heads": fused
        and (not narrow or shape.num_experts > 0 or shape.qk_norm_size > 0),
    }
    return next((f"{words}: not followed" for words, true in reasons.items() if true), "")


class TransformersStep:
    """Adds up a step on a tape. `layout`: as a row of `Layouts`.

    Raises `Unavailable` for steps that the account does not follow.
    """

    def __init__(
        self,
        shape: TransformerShape,
        layout: Mapping[str, int],
        training: Training,
        architecture: Architecture,
    ):
        if training.model_code not in CODES:
            raise Unavailable(
                f"model_type {training.model_code!r}: the account follows transformers' code of "
                f"{', '.join(CODES)}"
            )
        self.sharing = sharing_of(training, layout)
        if reason := refusal(shape, layout, training, self.sharing):
            raise Unavailable(f"the account of transformers' code: {reason}")
        self.shape, self.layout, self.training = shape, layout, training
        self.recompute, self.ranks = RECOMPUTES[layout["recompute"]], layout["dp"]
        self.sharded = self.sharing == "fsdp2"
        self.stays_gathered = self.sharded and layout["zero"] == 2
        self.shards = self.ranks if self.sharded else 1
        self.precision: StepPrecision = WIDE
        if training.precision == "bf16":
            self.precision = NARROW if self.sharing in ("fsdp2", "zero") else AUTOCAST
        self.tape = Tape()
        self.layer = LayerCode(
            tape=self.tape,
            shape=shape,
            precision=self.precision,
            sequences=layout["micro_batch_size"],
            seq_len=training.seq_len,
            explicit_attention=training.attention == "unfused",
            fused=training.fused_layers,
            code=CODES[training.model_code],
            when_gradient=self.into_bucket if self.sharing == "zero" else None,
        )
        self.in_bucket = self.copied = 0.0  # gradients in deepspeed's bucket, and those released since
        self.has_bucket = self.complete = False
        self.cached_B = 0.0  # autocast's copies of weights, which end with the forward pass
        self.layer_parameters = float(shape.layer_parameters(moe=shape.num_experts > 0))
        experts = float(shape.num_experts * shape.expert_parameters)
        share = -(-shape.num_experts // self.shards) * self.shards / max(shape.num_experts, 1)
        self.padding = experts * (share - 1)  # FSDP2 splits experts' weights by expert
        self.embedding = float(shape.embedding_parameters)

        self.root_parameters = shape.parameters - shape.num_hidden_layers * self.layer_parameters
        self.padded_layer = self.layer_parameters + self.padding
        self.padded_parameters = shape.parameters + shape.num_hidden_layers * self.padding
        self.bucket = float(training.bucket_of(shape.parameters))  # elements of deepspeed's
        # What is there before a step begins.
        self.workspaces_B = float(CUBLAS_HANDLES * CUBLAS_WORKSPACE_B[architecture])
        self.buckets_B = 4.0 * shape.parameters if self.sharing == "ddp" else 0.0  # of DDP's gradients
        each_B = 4 + OPTIMIZER_STATES_B[training.optimizer]
        self.states_B = each_B * self.padded_parameters / self.shards
        if training.optimizer == "muon":
            moe = shape.num_experts > 0
            matrices = shape.attention_matrix_parameters + shape.mlp_part_parameters(moe)
            self.states_B -= MUON_SAVES_B * shape.num_hidden_layers * matrices / self.shards
        if self.sharing == "zero":  # which has bf16 weights, too
            self.states_B = (2.0 + each_B / self.ranks) * shape.parameters

    def peak_B(self) -> float:
        """Return the most live bytes of a step that is not the first."""
        self.tape.add(self.workspaces_B, self.states_B, self.buckets_B)
        for micro_batch in range(min(self.layout["micro_batches"], 2)):
            if micro_batch > 0 and not self.sharded:
                self.layer = replace(self.layer, accumulates=True)
            self.forward()
            self.backward(later=micro_batch > 0)
        self.update()
        return self.tape.peak_B

    def gather(self, parameters: float) -> None:
        """Gather parameters in the type of the forward pass, into a buffer."""
        element_B = self.precision.stream_B
        own_B = element_B * parameters / self.shards
        self.tape.add(own_B, element_B * parameters, -own_B)

    def forward(self) -> None:
        """Run the forward pass up to the last layer's result."""
        tape, layer, sharded = self.tape, self.layer, self.sharded
        element_B = self.precision.stream_B
        layer_B, root_B = element_B * self.padded_layer, element_B * self.root_parameters
        buffer_B = root_B
        if sharded:
            self.gather(self.root_parameters)
            tape.add(root_B)
        tape.add(layer.stream_B, layer.rotary_B)
        for number in range(self.shape.num_hidden_layers):
            if sharded:
                self.gather(self.padded_layer)
                tape.add(layer_B, -buffer_B)
                buffer_B = layer_B
            if self.recompute != "none":
                before_B = tape.live_B
                layer.forward()
                kept_B = layer.products_B if self.recompute == "selective" else 0.0
                kept_B += layer.copies_B
                self.cached_B += layer.copies_B
                tape.add(before_B + layer.stream_B + kept_B - tape.live_B)  # besides its input
            else:
                if number == 0 and self.precision.stream_B == 2:
                    tape.add(layer.stream_B)  # the embedding's result stays until the last norm
                layer.forward()
            if sharded and not self.stays_gathered:
                tape.add(-layer_B)
        self.buffer_B = buffer_B if sharded else 0.0

    def backward(self, later: bool = False) -> None:
        """Run the loss and the backward pass. `later`: gradients of an earlier micro-batch are there."""
        tape, layer, sharded = self.tape, self.layer, self.sharded
        element_B = self.precision.stream_B
        layer_B = element_B * self.padded_layer
        self.loss()
        reduced_B = 0.0
        for number in reversed(range(self.shape.num_hidden_layers)):
            if sharded and not self.stays_gathered:
                tape.add(layer_B, -self.buffer_B)
                self.buffer_B = 0.0
                if number > 0:
                    self.gather(self.padded_layer)
                    self.buffer_B = layer_B
            layer.begin_backward()
            if self.recompute != "none":
                layer.forward(again=True, there=self.recompute == "selective")
                if self.recompute == "selective":  # the sum took the output layer's result
                    ended_B = layer.size_B(self.shape.hidden_size, self.precision.product_B)
                    tape.add(-ended_B)
            layer.backward(again=self.recompute != "none")
            if sharded:
                self.reduce(self.layer_parameters, reduced_B, self.padding)
                tape.add(-4 * self.padded_layer / self.shards if later else 0.0)
                reduced_B = 4 * self.padded_layer
        self.embedding_backward()
        if sharded:
            self.reduce(self.root_parameters, reduced_B)
            tape.add(-4 * self.root_parameters)
            tape.add(-4 * self.root_parameters / self.shards if later else 0.0)
        if self.sharing == "zero":
            self.complete = True
            self.into_bucket(self.embedding)
            self.reduce_bucket()
            first = max(self.shape.parameters / self.ranks, self.embedding)
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
        if self.in_bucket + parameters > self.training.bucket:
            self.reduce_bucket()
        self.in_bucket += parameters
        if self.layout["zero"] == 2 and parameters <= self.training.bucket:  # it is copied into the bucket
            self.tape.add(-2.0 * parameters)
            self.copied += parameters

    def reduce_bucket(self) -> None:
        """Join the bucket's gradients to one tensor for the reduction, and release them."""
        self.tape.inside(2.0 * self.in_bucket)
        self.tape.add(-2.0 * (self.in_bucket - self.copied))
        self.in_bucket = self.copied = 0.0

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
        result_B = layer.norm(shape.hidden_size)
        if self.precision.stream_B == 2:  # the embedding's result and the last layer's
            embedded = self.recompute == "none"
            tape.add(-2 * layer.stream_B if embedded else -layer.stream_B)
        chunks = self.training.loss_chunks
        loss = fused if self.training.fused_loss else in_chunks if chunks > 1 else whole
        loss(layer, result_B, self.turn, chunks)
        layer.norm_backward(shape.hidden_size, residual=False, input_B=layer.stream_B)

    def turn(self) -> None:
        """Go over to the backward pass, for which FSDP2 gathers the last layer again.

        Autocast's cache of weights ends, of which nothing else keeps those of recomputed layers.
        """
        self.tape.add(-self.cached_B)
        self.cached_B = 0.0
        if not self.sharded:
            return
        self.tape.add(-self.buffer_B)
        self.buffer_B = 0.0
        if not self.stays_gathered:
            self.gather(self.padded_layer)
            self.buffer_B = self.precision.stream_B * self.padded_layer

    def embedding_backward(self) -> None:
        """Run the embedding's backward pass; a tied weight's gradient is added to the output layer's."""
        tape, gradient_B = self.tape, self.precision.stream_B * self.embedding
        if self.layer.code == "gemma":  # which scales the embedding's result
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
        if self.sharing == "zero":  # the norm in fp64, then the gradients in fp32
            share = self.shape.parameters / self.ranks
            self.tape.inside(8 * share)
            self.tape.inside(4 * share, 4 * share)
        elif self.training.optimizer == "adamw" and self.training.optimizer_impl != "fused":
            of_one = self.training.optimizer_impl == "for_loop"
            updated = self.embedding if of_one else self.padded_parameters
            self.tape.inside(4 * updated / self.shards)  # the root of the second moments


def whole(layer: LayerCode, result_B: float, turn: Callable[[], None], chunks: int) -> None:
    """Make all logits at once, and their fp32 copy.

    As the two below, it runs the output layer and the loss with their backward passes, from the last norm's
    result of `result_B` bytes to its gradient in its place. `turn` is called between both passes. See the
    technique `loss`.
    """
    width, vocabulary = layer.shape.hidden_size, layer.shape.vocab_size
    layer.linear(width, vocabulary)
    if layer.precision.autocast:
        layer.add(-result_B)
    logits_B, wide_B = layer.size_B(vocabulary, layer.precision.product_B), layer.size_B(vocabulary, 4)
    narrow = layer.precision.product_B == 2
    layer.add(wide_B if narrow else 0.0, wide_B, -logits_B if narrow else 0.0, -wide_B)
    turn()
    layer.add(wide_B, wide_B, -wide_B, -wide_B)
    layer.add(logits_B if narrow else 0.0, -wide_B if narrow else 0.0)
    layer.linear_backward(width, vocabulary, frees_input=True)


def in_chunks(layer: LayerCode, result_B: float, turn: Callable[[], None], chunks: int) -> None:
    """Make the logits of one chunk at a time, in the backward pass again."""
    shape, autocast = layer.shape, layer.precision.autocast
    narrow = layer.precision.product_B == 2
    weight_B = layer.weight_B(shape.hidden_size, shape.vocab_size)
    product_B = layer.precision.product_B
    logits_B = layer.size_B(shape.vocab_size, product_B) / chunks
    wide_B = layer.size_B(shape.vocab_size, 4) / chunks
    input_B = layer.size_B(shape.hidden_size, product_B) / chunks
    gradient_B = result_B / chunks
    copy_B = weight_B if autocast else 0.0

    def logits() -> None:
        layer.add(logits_B, wide_B if narrow else 0.0, wide_B)
        layer.add(-logits_B if narrow else 0.0, -wide_B)

    layer.add(copy_B)
    logits()
    layer.add(-wide_B, -copy_B)
    turn()
    for chunk in range(chunks):
        layer.add(copy_B, input_B if autocast else 0.0)
        logits()
        layer.add(wide_B, wide_B, -wide_B, -wide_B)
        layer.add(logits_B if narrow else 0.0, -wide_B if narrow else 0.0)
        layer.add(weight_B, input_B, -copy_B, -input_B if autocast else 0.0, -logits_B)
        if chunk == 1:
            layer.add(weight_B, -weight_B)
        if chunk > 0:
            layer.add(-weight_B)
        if autocast:
            layer.add(gradient_B, -input_B)
    if autocast:
        layer.add(2 * weight_B, -weight_B)
    layer.add(-layer.added_B(weight_B))
    layer.add(-result_B, result_B, -chunks * gradient_B)


def fused(layer: LayerCode, result_B: float, turn: Callable[[], None], chunks: int) -> None:
    """Make the gradients in the forward pass, some rows of logits at a time, as Liger does.

    Rows: liger_kernel/ops/fused_linear_cross_entropy.py.
    """
    shape, autocast = layer.shape, layer.precision.autocast
    tokens, product_B = layer.tokens, layer.precision.product_B
    rows = -(-tokens // -(-shape.vocab_size // shape.hidden_size))
    rows = min(tokens, 1 << (rows - 1).bit_length())
    weight_B = layer.weight_B(shape.hidden_size, shape.vocab_size)
    logits_B, rows_B = float(product_B * rows * shape.vocab_size), float(product_B * rows * shape.hidden_size)
    layer.add(result_B, 2 * weight_B if autocast else weight_B)
    layer.add(weight_B if autocast else 0.0)  # autocast's copy
    layer.add(rows_B if autocast else 0.0, logits_B, -rows_B if autocast else 0.0)
    layer.tape.inside(rows_B)
    if autocast:
        layer.tape.inside(rows_B, weight_B)
    layer.add(-logits_B, -weight_B if autocast else 0.0, -result_B)
    turn()
    layer.add(-layer.added_B(weight_B))
