"""Memory that is free now, and whether it suffices for work that is about to start."""

from __future__ import annotations

import psutil
import torch

SAFE_SHARE = 0.8
"""Share of the free memory that work may need: predictions are approximate, and other processes grow."""


def free_bytes(device: torch.device) -> int:
    """Return the bytes that torch can still allocate on `device`: free ones, and those its cache holds."""
    if device.type != "cuda":
        return int(psutil.virtual_memory().available)
    cached_B = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(torch.cuda.mem_get_info(device)[0] + cached_B)


def shortage(need_B: float, device: torch.device) -> str | None:
    """Return in words why `need_B` do not fit safely; None where they do."""
    free_B = free_bytes(device)
    if need_B <= SAFE_SHARE * free_B:
        return None
    return f"takes about {need_B / 1e9:.1f} GB, and {free_B / 1e9:.1f} GB are free"
