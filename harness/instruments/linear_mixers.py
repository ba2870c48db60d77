"""What layers may have in attention's place: a state space, linear attention or a short convolution."""

from __future__ import annotations

from typing import Literal, NamedTuple

MixerName = Literal["mamba2", "mamba", "delta", "kimi_delta", "lightning", "convolution"]

FLOP_PER_STATE: dict[MixerName, int] = {
    "mamba2": 7,
    "mamba": 7,
    "delta": 8,
    "kimi_delta": 8,
    "lightning": 4,
    "convolution": 0,
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
