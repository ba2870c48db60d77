"""The sizes of a transformer that decide the bytes and the seconds of its training step.

Dense models and mixtures of experts, with grouped-query or multi-head latent attention, and hybrids, some of
whose layers have a state space or linear attention in attention's place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

MixerName = Literal["mamba2", "mamba", "delta", "kimi_delta", "lightning", "convolution"]

FLOP_PER_STATE: dict[MixerName, int] = {
    **{"mamba2": 7, "mamba": 7, "delta": 8, "kimi_delta": 8, "lightning": 4, "convolution": 0}
}
"""FLOP per element of the state and token of a forward pass. Megatron-LM d98e8a6,
megatron/training/training.py: mamba_layer_flops, and gdn_layer_flops; lightning attention: keys by values,
and queries by the state (arXiv 2401.04658)."""


class LinearMixer(NamedTuple):
    """Sizes of a mixer whose state does not grow with the sequence."""

    name: MixerName
    projected: int  # elements per token that are projected from a layer's input, all together
    inner: int  # elements per token of the result, which the output layer takes
    convolved: int = 0  # elements per token that pass a short convolution
    key_size: int = 0  # elements per token of all keys, which are those of the queries
    heads: int = 0  # of values
    state: int = 0  # elements of the state per element of `inner`
    chunk: int = 64  # tokens that its kernel computes at once
    low_rank: int = 0  # parameters of matrices besides those of the input and the output
    vectors: int = 0  # parameters outside of matrices: convolutions, decays, inner norms, biases

    def matrix_parameters(self, hidden_size: int) -> int:
        """Return the parameters of a layer's mixer that are in matrices."""
        return hidden_size * (self.projected + self.inner) + self.low_rank

    def parameters(self, hidden_size: int) -> int:
        """Return the parameters of a layer's mixer."""
        return self.matrix_parameters(hidden_size) + self.vectors

    @property
    def state_flop(self) -> int:
        """Return the FLOP per token of a forward pass in which the state changes and is read."""
        return FLOP_PER_STATE[self.name] * self.inner * self.state


@dataclass(frozen=True, kw_only=True)
class TransformerShape:
    """Sizes of a transformer. Fields with a name of Hugging Face's mean what they mean there."""

    num_hidden_layers: int
    hidden_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int  # of a dense layer's MLP
    vocab_size: int
    gated: bool = True  # three matrices in an MLP (SwiGLU), else two
    layer_norm: bool = False  # norms have a shift, too
    norm_weights: bool = True  # norms have parameters at all
    qkv_bias: bool = False  # of queries, keys and values
    attention_output_bias: bool = False
    mlp_bias: bool = False  # of every linear layer of MLPs, the shared ones included
    expert_bias: bool = False
    head_bias: bool = False  # of the output layer
    router_bias: bool = False
    norms_per_layer: int = 2
    outer_norms: int = 1  # before the first layer and after the last
    qk_norm_size: int = 0  # parameters of the norms of queries and keys in a layer
    attention_sinks: bool = False  # a parameter per head
    tie_word_embeddings: bool = False
    learned_positions: int = 0  # rows of a learned position embedding
    dropout: float = 0.0
    # Mixture of experts
    num_experts: int = 0
    experts_per_token: int = 0
    moe_intermediate_size: int = 0  # of one expert's MLP
    shared_intermediate_size: int = 0  # of the MLP that every token passes next to the experts
    shared_gate: bool = False  # the shared MLP's result is weighted by a gate per token
    moe_layers: tuple[bool, ...] = ()  # per layer; (): all, if there are experts
    moe_latent_size: int = 0  # what experts take, projected from the hidden size and back; 0: that itself
    num_nextn_predict_layers: int = 0  # layers of multi-token prediction, after the last
    # Multi-head latent attention; kv_lora_rank 0: none
    q_lora_rank: int = 0
    kv_lora_rank: int = 0
    qk_rope_head_dim: int = 0
    v_head_dim: int = 0  # 0: head_dim
    # Attention that sees a window alone
    sliding_window: int = 0
    windowed_layers: tuple[bool, ...] = ()  # per layer; (): all, if there is a window
    # Hybrids
    mixer: LinearMixer | None = None  # what `linear_layers` have in attention's place
    linear_layers: tuple[bool, ...] = ()  # per layer; (): none
    mlp_layers: tuple[bool, ...] = ()  # per layer, of layers with a mixer or an MLP; (): all have both
    attention_gate: bool = False  # attention's result is weighted by a projection of the input

    @cached_property
    def layers_are_moe(self) -> tuple[bool, ...]:
        """Return for each layer whether its MLP is a mixture of experts."""
        return self.moe_layers or (self.num_experts > 0,) * self.num_hidden_layers

    @cached_property
    def layers_are_windowed(self) -> tuple[bool, ...]:
        """Return for each layer whether its attention sees a window alone."""
        return self.windowed_layers or (self.sliding_window > 0,) * self.num_hidden_layers

    @cached_property
    def layers_are_linear(self) -> tuple[bool, ...]:
        """Return for each layer whether the linear mixer is in attention's place."""
        return self.linear_layers or (False,) * self.num_hidden_layers

    @cached_property
    def layers_have_mlp(self) -> tuple[bool, ...]:
        """Return for each layer whether it has an MLP or experts."""
        return self.mlp_layers or (True,) * self.num_hidden_layers

    @cached_property
    def layers_have_attention(self) -> tuple[bool, ...]:
        """Return for each layer whether it has attention; single layers of Nemotron-H have one part alone."""
        pairs = zip(self.layers_are_linear, self.layers_have_mlp, strict=True)
        return tuple(not linear and not (self.mlp_layers and mlp) for linear, mlp in pairs)

    @property
    def norms_per_part(self) -> float:
        """Return the norms of a layer's mixer, which are those of its MLP."""
        return float(self.norms_per_layer) if self.mlp_layers else self.norms_per_layer / 2

    @property
    def expert_input_size(self) -> int:
        """Return the elements per token that experts take and return."""
        return self.moe_latent_size or self.hidden_size

    @property
    def value_dim(self) -> int:
        """Return the size of one head's values."""
        return self.v_head_dim or self.head_dim

    @property
    def attention_size(self) -> int:
        """Return the elements per token of attention's result, which its output layer takes."""
        return self.num_attention_heads * self.value_dim

    @property
    def key_value_size(self) -> int:
        """Return the elements per token of the keys and the values together, as attention reads them."""
        heads = self.num_attention_heads if self.kv_lora_rank else self.num_key_value_heads
        return heads * (self.head_dim + self.value_dim)

    @property
    def query_size(self) -> int:
        """Return the elements per token of the queries."""
        return self.num_attention_heads * self.head_dim

    @property
    def matrices_of_mlp(self) -> int:
        """Return how many matrices an MLP has."""
        return 3 if self.gated else 2

    @property
    def attention_matrices(self) -> tuple[int, ...]:
        """Return the parameters of each matrix of a layer's attention."""
        hidden, queries, latent = self.hidden_size, self.query_size, self.kv_lora_rank
        output = self.attention_size * hidden
        if not latent:
            keys, values = (self.num_key_value_heads * one for one in (self.head_dim, self.value_dim))
            if self.attention_gate:
                queries += self.attention_size
            return hidden * queries, hidden * keys, hidden * values, output
        unrotated = self.head_dim - self.qk_rope_head_dim  # the rotated part is shared
        keys_values = latent * self.num_attention_heads * (unrotated + self.value_dim)
        down = (hidden * (latent + self.qk_rope_head_dim), keys_values, output)
        if not self.q_lora_rank:
            return hidden * queries, *down
        return hidden * self.q_lora_rank, self.q_lora_rank * queries, *down

    @cached_property
    def attention_matrix_parameters(self) -> int:
        """Return the parameters of a layer's attention that are in matrices."""
        return sum(self.attention_matrices)

    @cached_property
    def attention_vector_parameters(self) -> int:
        """Return the parameters of a layer's attention outside of matrices: biases and inner norms."""
        output_bias = self.hidden_size if self.attention_output_bias else 0
        sinks = self.num_attention_heads if self.attention_sinks else 0
        inner_norms = self.qk_norm_size + self.q_lora_rank + self.kv_lora_rank
        return self.qkv_bias_parameters + output_bias + sinks + inner_norms

    @property
    def qkv_bias_parameters(self) -> int:
        """Return a layer's biases of queries, keys and values; of latent attention the down projections'."""
        if not self.qkv_bias:
            return 0
        if self.kv_lora_rank:
            return self.q_lora_rank + self.kv_lora_rank + self.qk_rope_head_dim
        gate = self.attention_size if self.attention_gate else 0
        return self.query_size + self.key_value_size + gate

    @property
    def norm_parameters(self) -> int:
        """Return the parameters of one norm over the hidden size."""
        return self.hidden_size * (self.norm_weights + self.layer_norm)

    def mlp_parameters(self, width: int, bias: bool | None = None, inputs: int | None = None) -> int:
        """Return one MLP's parameters; `bias` None: as MLPs have it; `inputs` None: the hidden size."""
        if not width:
            return 0
        size = self.hidden_size if inputs is None else inputs
        biased = self.mlp_bias if bias is None else bias
        biases = (self.matrices_of_mlp - 1) * width + size if biased else 0
        return self.matrices_of_mlp * size * width + biases

    @cached_property
    def expert_parameters(self) -> int:
        """Return the parameters of one expert."""
        return self.mlp_parameters(self.moe_intermediate_size, self.expert_bias, self.expert_input_size)

    @property
    def attention_parameters(self) -> int:
        """Return the parameters of a layer's attention."""
        return self.attention_matrix_parameters + self.attention_vector_parameters

    @property
    def mixer_parameters(self) -> int:
        """Return the parameters of a layer's linear mixer."""
        return self.mixer.parameters(self.hidden_size) if self.mixer else 0

    def mlp_part_parameters(self, moe: bool, active: bool = False) -> int:
        """Return the parameters of a layer's MLP or experts, as `layer_parameters`, without norms."""
        if not moe:
            return self.mlp_parameters(self.intermediate_size)
        experts = self.experts_per_token if active else self.num_experts
        gate = self.hidden_size if self.shared_gate else 0
        shared = self.mlp_parameters(self.shared_intermediate_size) + gate
        return self.router_parameters + shared + self.latent_parameters + experts * self.expert_parameters

    def layer_parameters(self, moe: bool, active: bool = False) -> int:
        """Return the parameters of a layer with attention; `active`: of experts those that a token passes."""
        norms = self.norms_per_layer * self.norm_parameters
        return self.attention_parameters + norms + self.mlp_part_parameters(moe, active)

    def parameters_in_layers(self, active: bool = False) -> int:
        """Return the parameters of all layers; `active`: as `layer_parameters`."""
        attention = sum(self.layers_have_attention) * self.attention_parameters
        linear = sum(self.layers_are_linear) * self.mixer_parameters
        norms = self.num_hidden_layers * self.norms_per_layer * self.norm_parameters
        return attention + linear + norms + sum(self.mlp_part_parameters(moe, active) for moe in self._mlps)

    @property
    def _mlps(self) -> list[bool]:
        parts = zip(self.layers_are_moe, self.layers_have_mlp, strict=True)
        return [moe for moe, has_mlp in parts if has_mlp]

    def active_mlp_matrices(self, moe: bool) -> int:
        """Return the parameters of an MLP's or experts' matrices that a token is multiplied by."""
        if not moe:
            return self.matrices_of_mlp * self.hidden_size * self.intermediate_size
        experts = self.experts_per_token * self.moe_intermediate_size * self.expert_input_size
        latent = 2 * self.hidden_size * self.moe_latent_size
        return self.matrices_of_mlp * (experts + self.shared_intermediate_size * self.hidden_size) + latent

    def active_matrix_parameters(self, moe: bool) -> int:
        """Return the parameters of a layer's matrices that a token is multiplied by, but the router's."""
        return self.attention_matrix_parameters + self.active_mlp_matrices(moe)

    def active_matrices_in_layers(self) -> int:
        """Return these of all layers, of which hybrids have several kinds."""
        mixer = self.mixer.matrix_parameters(self.hidden_size) if self.mixer else 0
        attention = sum(self.layers_have_attention) * self.attention_matrix_parameters
        linear = sum(self.layers_are_linear) * mixer
        return attention + linear + sum(map(self.active_mlp_matrices, self._mlps))

    @property
    def latent_parameters(self) -> int:
        """Return the parameters of the projections to what experts take and back."""
        biases = self.hidden_size + self.moe_latent_size if self.mlp_bias else 0
        return 2 * self.hidden_size * self.moe_latent_size + biases if self.moe_latent_size else 0

    @property
    def router_parameters(self) -> int:
        """Return the parameters of a layer's router."""
        return (self.hidden_size + self.router_bias) * self.num_experts

    @property
    def embedding_parameters(self) -> int:
        """Return the parameters of the embedding of tokens."""
        return self.vocab_size * self.hidden_size

    def _all(self, active: bool) -> int:
        vocabulary = self.embedding_parameters * (1 if self.tie_word_embeddings else 2)
        vocabulary += self.vocab_size if self.head_bias else 0
        positions = self.learned_positions * self.hidden_size
        norms = self.outer_norms * self.norm_parameters
        return vocabulary + positions + norms + self.parameters_in_layers(active)

    @cached_property
    def parameters(self) -> int:
        """Return the model's parameters, without layers of multi-token prediction."""
        return self._all(active=False)

    @cached_property
    def active_parameters(self) -> int:
        """Return the parameters that one token passes, embeddings included."""
        return self._all(active=True)


FORWARD_FLOP = 2  # per parameter and token: a product and a sum (Kaplan et al., arXiv 2001.08361)
BACKWARD_FLOP = 4  # per parameter and token: twice the forward pass (the same paper, section 2.1)
TRAINING_FLOP = FORWARD_FLOP + BACKWARD_FLOP  # per parameter and token of a step
SCORES_FLOP = 2 * TRAINING_FLOP
"""Per token, layer, position and element of the heads: queries by keys, and scores by values, without a
mask (arXiv 2204.02311, appendix B)."""

CAUSAL_SCORES_FLOP = SCORES_FLOP // 2  # the same where a causal mask saves half


def scores_flop_per_token(shape: TransformerShape, seen: float) -> float:
    """Return the FLOP of attention's scores per token, where layers see `seen` positions in sum."""
    return TRAINING_FLOP * seen * (shape.query_size + shape.attention_size)


def model_flop_per_token(shape: TransformerShape, seq_len: int) -> float:
    """Return the FLOP per token of this project's MFU: 6 per matmul parameter, and 12 Lsh of attention.

    A causal mask saves nothing, as in nanotron, torchtitan and, before core 0.12, Megatron-LM; of a layer
    that sees a window, s is that window.
    """
    lookup = 0 if shape.tie_word_embeddings else shape.embedding_parameters
    window = min(seq_len, shape.sliding_window or seq_len)
    kinds = zip(shape.layers_are_windowed, shape.layers_have_attention, strict=True)
    seen = sum(window if windowed else seq_len for windowed, attention in kinds if attention)
    products = TRAINING_FLOP * (shape.active_parameters - lookup)
    return products + scores_flop_per_token(shape, seen) + states_flop_per_token(shape)


def states_flop_per_token(shape: TransformerShape) -> float:
    """Return the FLOP of linear mixers' states per token of a step; two thirds are the backward pass's."""
    each = shape.mixer.state_flop if shape.mixer else 0
    return TRAINING_FLOP / FORWARD_FLOP * each * sum(shape.layers_are_linear)


CONVENTIONS: Mapping[str, str] = {
    # torchtitan v0.2.2, torchtitan/models/utils.py, get_dense_model_nparams_and_flops; its MFU is a share of
    # the datasheet's dense bf16 rate, also for float8 (torchtitan/tools/utils.py, get_peak_flops)
    "torchtitan": "6 × (parameters − embedding) + 12 × layers × heads × head size × sequence; active experts "
    "alone",
    # Megatron-LM d98e8a6, megatron/training/training.py, num_floating_point_operations; before core 0.12.0
    # all scores were counted
    "megatron": "6 × (matrices + output layer) + 6 × layers × heads × head size × sequence (half of the "
    "scores)",
    # nanotron 2411b02, src/nanotron/models/qwen.py, get_flops
    "nanotron": "6 × (matrices + output layer) + 12 × layers × hidden size × sequence",
    # llm-foundry 8c8dd48, llmfoundry/models/mpt/modeling_mpt.py, flops_per_batch; its MFU is a share of the
    # datasheet's dense rate of the precision (Composer 003ec03, callbacks/speed_monitor.py)
    "llm_foundry": "6 × all parameters + 12 × layers × hidden size × sequence",
}
"""Framework -> its formula of FLOP per token."""


def flop_per_token(framework: str, shape: TransformerShape, seq_len: int) -> float:
    """Return the FLOP of one token in training by a framework's formula; raises ValueError without one."""
    if framework not in CONVENTIONS:
        raise ValueError(f"{framework}'s log counts no FLOP; those that do: {', '.join(CONVENTIONS)}")
    scores = scores_flop_per_token(shape, sum(shape.layers_have_attention) * seq_len)
    products = TRAINING_FLOP * _counted_parameters(framework, shape)
    if framework != "megatron":
        return products + scores
    return products + scores / 2 + states_flop_per_token(shape)


def _counted_parameters(framework: str, shape: TransformerShape) -> int:
    """Return the parameters that a formula counts; norms are in torchtitan's and LLM Foundry's sums."""
    if framework in ("megatron", "nanotron"):
        return shape.active_matrices_in_layers() + shape.embedding_parameters
    if framework == "llm_foundry":
        return shape.active_parameters
    # Tied embeddings are one parameter, which torchtitan takes off as the embedding's.
    return shape.active_parameters - shape.embedding_parameters


def reconciled(flop_per_s: float, framework: str, shape: TransformerShape, seq_len: int) -> float:
    """Return a rate or MFU that a framework's formula gave as this project's would give it."""
    theirs = flop_per_token(framework, shape, seq_len)
    return flop_per_s * model_flop_per_token(shape, seq_len) / theirs
