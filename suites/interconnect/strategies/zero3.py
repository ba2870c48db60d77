"""deepspeed's ZeRO stage 3: the real engine, with its buckets and prefetching scaled to the model."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from harness.instruments.distributed.deepspeed_init import initialize
from suites.interconnect.subject import Plan

BLOCKS_AHEAD = 1
"""How far it prefetches: deepspeed's default of 50 million elements is a part of one block of a 7 B model."""


class Wrapped:
    """The model in deepspeed's engine, AdamW over its shards."""

    def __init__(self, model: nn.Module, plan: Plan, learning_rate: float) -> None:
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)
        self.model: Any = initialize(model, self.optimizer, config(model, plan))

    def backward(self, tokens_BT: Tensor, targets_BT: Tensor, share: float, last: bool) -> Tensor:
        """See `Strategy`. The engine counts batches itself and divides by their number."""
        loss: Tensor = self.model(tokens_BT, targets_BT)
        self.model.backward(loss)
        if not last:
            self.model.step()
        return loss.detach()

    def update(self) -> None:
        """See `Strategy`."""
        self.model.step()

    def gradients(self) -> dict[str, Tensor]:
        """See `Strategy`."""
        from deepspeed.utils import safe_get_full_grad

        return {name: safe_get_full_grad(one) for name, one in self.model.module.named_parameters()}

    def parameters(self) -> dict[str, Tensor]:
        """See `Strategy`."""
        from deepspeed.runtime.zero import GatheredParameters

        named = dict(self.model.module.named_parameters())
        with GatheredParameters(list(named.values())):
            return {name: one.detach().clone() for name, one in named.items()}


def config(model: Any, plan: Plan) -> dict[str, Any]:
    """Its defaults, but for sizes in elements, which are the model's: the defaults are made for billions."""
    block = sum(one.numel() for one in model.blocks[0].parameters())
    return {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": plan.accumulate,
        "zero_optimization": {
            "stage": 3,
            "reduce_bucket_size": block + block % 2,
            "stage3_prefetch_bucket_size": BLOCKS_AHEAD * block,
            "stage3_param_persistence_threshold": 0,
            "stage3_max_live_parameters": 2 * block,
            "stage3_max_reuse_distance": 2 * block,
        },
        "zero_allow_untested_optimizer": True,
    }
