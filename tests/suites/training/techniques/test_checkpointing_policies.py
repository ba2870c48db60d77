"""Activation checkpointing: what is computed again, and what stays until the backward pass ends."""

import weakref
from collections import Counter
from dataclasses import replace
from functools import partial

import pytest
import torch
from small_steps import LLAMA
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from harness.instruments.distributed.fake_process_group import fake_process_group
from suites.training.techniques import build_step
from suites.training.techniques.activation_checkpointing import keep_inputs
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


HIDDEN = (8, 16)


class Living(TorchDispatchMode):
    """Counts the tensors of `HIDDEN` elements that exist at once."""

    def __init__(self):
        super().__init__()
        self.now, self.most = set(), 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result.shape == HIDDEN:
            storage = result.untyped_storage()
            if storage._cdata not in self.now:
                self.now.add(storage._cdata)
                weakref.finalize(storage, self.now.discard, storage._cdata)
        self.most = max(self.most, len(self.now))
        return result


class Adapted(nn.Module):
    """A frozen linear layer with adapters."""

    def __init__(self):
        super().__init__()
        self.base = nn.Linear(16, 16, bias=False).requires_grad_(False)
        self.down, self.up = nn.Linear(16, 2, bias=False), nn.Linear(2, 16, bias=False)

    def forward(self, x):
        return x + self.base(x).relu() + self.up(self.down(x))


class Stack(nn.Module):
    """Layers, each of which `run` runs."""

    def __init__(self, count, run, wrap=lambda module: module):
        super().__init__()
        self.run, self.layers = run, nn.ModuleList()
        for _ in range(count):
            layer = Adapted()
            layer.down, layer.up = wrap(layer.down), wrap(layer.up)  # units of their own, as by peft's policy
            self.layers.append(wrap(layer))

    def forward(self, x):
        for layer in self.layers:
            x = self.run(layer, x)
        return x


def living_per_layer(run, wrap=lambda module: module):
    def most(count):
        model = wrap(Stack(count, run, wrap))
        with Living() as living:
            model(torch.randn(HIDDEN).requires_grad_() * 1.0).square().mean().backward()
        return living.most

    return (most(12) - most(4)) / 8


def test_reentrant_inputs_and_gradients_stay_under_fsdp1():
    wrap = partial(FullyShardedDataParallel, device_id=torch.device("cpu"))
    apart = partial(checkpoint, use_reentrant=False)
    with fake_process_group(1):
        assert living_per_layer(apart, wrap) == 1
        assert living_per_layer(partial(checkpoint, use_reentrant=True), wrap) == 2
    kept = []
    assert living_per_layer(apart) == 1
    assert living_per_layer(lambda layer, x: keep_inputs(kept, partial(apart, layer), x)) == 2
    assert not kept
