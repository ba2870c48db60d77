"""Start deepspeed's engine in a process whose process group changes, fake or real, on any device."""

from __future__ import annotations

import importlib
import logging
import os
from typing import Any

import torch
import torch.distributed as dist
from torch import nn


def choose_accelerator(device_type: str | None = None) -> None:
    """Make deepspeed use the device of a model, `cpu` or `cuda`; None: a GPU where there is one.

    By default deepspeed takes a GPU wherever it sees one, and puts the state of a model on the CPU there.
    """
    device_type = device_type or ("cuda" if torch.cuda.is_available() else "cpu")
    os.environ["DS_ACCELERATOR"] = device_type
    from deepspeed.accelerator import get_accelerator, set_accelerator

    if get_accelerator().device_name() != device_type:
        name = "CPU_Accelerator" if device_type == "cpu" else "CUDA_Accelerator"
        module = importlib.import_module(f"deepspeed.accelerator.{device_type}_accelerator")
        set_accelerator(getattr(module, name)())


def initialize(model: nn.Module, optimizer: torch.optim.Optimizer, config: dict[str, Any]) -> Any:
    """Call `deepspeed.initialize` over the current process group, on the accelerator that was chosen.

    Raises RuntimeError where there is none.
    """
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
