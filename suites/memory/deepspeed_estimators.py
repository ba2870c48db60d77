"""Deepspeed's own estimators of model states, called with counts; `suites.memory.formulas` asks them.

Counts are passed because their `*_all_live` forms find a model's parameters by `data_ptr()`, which is 0 for
all tensors on the meta device and all fake ones.
"""

from __future__ import annotations

import logging
import os

import torch


def states_bytes(stage: int, parameters: int, largest_layer: int, ranks: int) -> float:
    """Bytes of model states on one of `ranks` GPUs under ZeRO 2 or 3 without offload, as deepspeed says.

    `estimate_zero2_model_states_mem_needs` and `estimate_zero3_model_states_mem_needs` of the installed
    deepspeed. Conditions: Adam, 16-bit training with fp32 states, gradients in both. Left out: activations,
    communication buffers. Their GPU figure depends on the product of GPUs per node and nodes alone.
    Raises ImportError where deepspeed is absent or broken.
    """
    _quieten()
    if stage == 2:
        from deepspeed.runtime.zero.stage_1_and_2 import estimate_zero2_model_states_mem_needs

        _, gpu_B = estimate_zero2_model_states_mem_needs(
            parameters, num_gpus_per_node=ranks, num_nodes=1, cpu_offload=False
        )
    elif stage == 3:
        from deepspeed.runtime.zero.stage3 import estimate_zero3_model_states_mem_needs

        _, gpu_B, _ = estimate_zero3_model_states_mem_needs(
            parameters,
            largest_layer,
            num_gpus_per_node=ranks,
            num_nodes=1,
            cpu_offload=False,
            cpu_offload_params=False,
        )
    else:
        raise ValueError(f"ZeRO stage {stage}: deepspeed has estimators for stages 2 and 3")
    return float(gpu_B)


def _quieten() -> None:
    """Keep deepspeed's search for an accelerator from warning on a machine without one."""
    if not torch.cuda.is_available():
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
