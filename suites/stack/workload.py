"""Workloads of the stack suites: one update of a model, and what others published of a faster one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from harness.bounds import Bounds, OnlyWith, PositiveInt
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


OF_LADDERS = OnlyWith("kind", ("ladder",))
OF_ALL = OnlyWith("kind", ("all",))


@dataclass(frozen=True, slots=True, kw_only=True)
class StackPublishedWorkload:
    """A ladder: one training set-up, made faster step by step, with what was measured after each step.

    `rungs`: each step's name with the value after it, in `unit`, in order; the first is the start.
    `work`: whether each step does the same work faster, or reaches the same result sooner, by whatever means.
    """

    kind: Literal["ladder", "all"] = "ladder"
    rungs: Annotated[dict[str, Any], OF_LADDERS] = field(default_factory=dict)
    unit: Annotated[Literal["token/s", "sample/s", "ms", "s", "min"], OF_LADDERS] = "token/s"
    work: Literal["same", "to a result"] = "same"
    # stated by the source, or secondary: by others' notes about it
    provenance: Annotated[Literal["stated", "secondary"], OF_LADDERS] = "stated"
    device_name: str = ""
    published_by: str = ""
    ladders: Annotated[dict[str, Any], OF_ALL] = field(default_factory=dict)  # name to the fields of a ladder
    source: str = ""
