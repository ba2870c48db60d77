"""What becomes of activations between forward and backward pass, for engines that take a model."""

from __future__ import annotations

from functools import partial

from torch.utils.checkpoint import checkpoint

from suites.training.host_memory import HostMemory
from suites.training.model import Transformer
from suites.training.techniques import activation_offload
from suites.training.workload import Resources


def place(model: Transformer, how: str, host: HostMemory) -> None:
    """Change `model` so that its blocks' activations are kept | recomputed | offloaded | offloaded_ahead.

    Raises ValueError for any other `how`.
    """
    if how == "recomputed":
        for block in model.blocks:
            block.forward = partial(checkpoint, block.forward, use_reentrant=False)
    elif how in ("offloaded", "offloaded_ahead"):
        settings = activation_offload.Settings(prefetch=how == "offloaded_ahead")
        activation_offload.wrap(settings, model, Resources(host.device, host))
    elif how != "kept":
        raise ValueError(f"activations {how!r} are none of kept, recomputed, offloaded, offloaded_ahead")
