"""A workload of the stack suite: one update of a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from harness.bounds import Bounds, PositiveInt
from suites.training.workload import StepWorkload, TextVocabulary


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload(StepWorkload):
    """One update of a model of Llama's kind: the same sequences for every variant.

    The baseline takes them in `gradient_accumulation_steps` micro-batches of `micro_batch_size` sequences.
    """

    vocab_size: TextVocabulary
    learning_rate: Annotated[float, Bounds(above=0)] = 1e-4
    gradient_accumulation_steps: PositiveInt = 1  # micro-batches per update of the baseline
    device: Literal["any", "cuda"] = "any"  # cuda: sized for a GPU, not run elsewhere
    source: str = ""

    @property
    def sequences(self) -> int:
        """Return the sequences of one update."""
        return self.micro_batch_size * self.gradient_accumulation_steps

    @property
    def tokens(self) -> int:
        """Return the tokens of one update."""
        return self.sequences * self.seq_len

    @property
    def flop(self) -> float:
        """Return 6 P per token and 6 L h T^2 per sequence (arXiv 2307.08691, 4.2, halved: causal attention).

        P: of parameters that multiply, so without the table of token embeddings and without norms' weights.
        """
        norms = (2 * self.num_hidden_layers + 1) * self.hidden_size
        multiplied = self.shape.parameters - self.vocab_size * self.hidden_size - norms
        scores = 6.0 * self.num_hidden_layers * self.hidden_size * self.seq_len**2
        return 6.0 * multiplied * self.tokens + scores * self.sequences
