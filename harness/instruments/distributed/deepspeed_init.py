"""Start deepspeed's engine in a process whose process group changes, fake or real, on any device."""

from __future__ import annotations

import importlib
import logging
import os
from typing import Any

import torch
import torch.distributed as dist
from torch import nn


def choose_accelerator() -> None:
    """Make deepspeed use the CPU where there is no GPU; called before it is imported."""
    if not torch.cuda.is_available():
        os.environ.setdefault("DS_ACCELERATOR", "cpu")


def initialize(model: nn.Module, optimizer: torch.optim.Optimizer, config: dict[str, Any]) -> Any:
    """Call `deepspeed.initialize` over the current process group, whatever came before.

    Raises RuntimeError where there is none.
    """
    choose_accelerator()
    import deepspeed
    from deepspeed.utils import groups

    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    os.environ.setdefault("LOCAL_RANK", "0")
    backend: Any = importlib.import_module("deepspeed.comm.torch")
    backend.build_shm_op = lambda: None  # needs a compiler, is for inference
    deepspeed.comm.comm.cdb = None
    groups._WORLD_GROUP = groups._DATA_PARALLEL_GROUP = None
    if not dist.is_initialized():
        raise RuntimeError(
            "no process group: enter fake_process_group, or start real ranks, before sharding a model"
        )
    return deepspeed.initialize(model=model, optimizer=optimizer, config=config, dist_init_required=False)[0]
