"""The FLOP of the suite's training step on documents, by which loaders of different documents compare."""

from __future__ import annotations

from suites.dataloader.batch import END
from suites.training.balance import DocumentCost, flop_of_document


def flop_of_model(hidden_size: int, layers: int, heads: int) -> DocumentCost:
    """Return the FLOP per token, and per token squared of a document, of `fed_step.DocumentModel`."""
    return flop_of_document(
        hidden_size=hidden_size,
        num_hidden_layers=layers,
        intermediate_size=4 * hidden_size,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        vocab_size=END + 1,
        mlp_matrices=2,
    )


def flop_of_queries(flop: DocumentCost, queries: int, keys: int) -> float:
    """Return the FLOP of the last `queries` of a document's first `keys` tokens.

    Over parts of a document of n tokens it sums to linear n + quadratic n^2, as `balance.cost` counts.
    """
    return flop.linear * queries + flop.quadratic * (keys**2 - (keys - queries) ** 2)
