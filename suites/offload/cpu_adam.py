"""DeepSpeedCPUAdam, ZeRO-Offload's optimizer for the host, compiled before anything is timed."""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from functools import partial

import torch

from harness.instruments.distributed import deepspeed_engine
from harness.records import HostInfo
from suites.offload.host_optimizer import ADAMW, Subject


def unavailable(host: HostInfo) -> str | None:
    """Return what is missing to compile or load deepspeed's C++; None where it can run."""
    return deepspeed_engine.missing("cpu_adam")


def apply(subject: Subject) -> Subject:
    """Return the subject updated by DeepSpeed, with as many threads as torch uses."""
    os.environ.setdefault("OMP_NUM_THREADS", str(torch.get_num_threads()))  # DeepSpeed has its own OpenMP
    deepspeed_engine.load("cpu_adam")
    from deepspeed.ops.adam import DeepSpeedCPUAdam

    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    return replace(
        subject, make=partial(DeepSpeedCPUAdam, **ADAMW), implementation="DeepSpeedCPUAdam", count=int
    )
