"""Activation checkpointing of single operations and of every k-th layer: what is computed again."""

from collections import Counter
from dataclasses import replace

import pytest
from small_steps import LLAMA
from torch.utils._python_dispatch import TorchDispatchMode

from suites.training.techniques import build_step
from suites.training.trainer import Trainer

LONG = replace(LLAMA, seq_len=128, vocab_size=50)
LINEAR = 7  # query, key, value, output, gate, up, down


class Calls(TorchDispatchMode):
    """Counts operations by name."""

    def __init__(self):
        super().__init__()
        self.count = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count[func.name().partition(".")[0]] += 1
        return func(*args, **(kwargs or {}))


def recomputed(settings):
    """Return how often linear layers and attention run again in a backward pass."""
    counts = []
    for techniques in ([], [{"activation_checkpointing": settings}]):
        trainer = Trainer(build_step(LONG, ["attention", *techniques]))
        loss = trainer.model(*next(trainer._random_batches()))
        with Calls() as calls:
            loss.backward()
        counts.append(calls.count)
    plain, again = counts
    attention = "aten::_scaled_dot_product_flash_attention_for_cpu"
    return again["aten::mm"] - plain["aten::mm"], again[attention] - plain[attention]


@pytest.mark.parametrize(
    ("settings", "linear", "attention"),
    [
        ({"mode": "selective"}, 0, 4),
        ({"mode": "per_op"}, 4 * (LINEAR // 2), 0),  # key, output, up of each layer
        ({"mode": "per_op", "every": 2}, 2 * (LINEAR // 2), 0),
        ({"every": 2}, 2 * (LINEAR - 1), 2),  # nothing needs the result of the last product
        ({"every": 3}, LINEAR - 1, 1),
    ],
    ids=str,
)
def test_what_is_computed_again(settings, linear, attention):
    assert recomputed(settings) == (linear, attention)
