"""Origin of what is read on ranks."""

from __future__ import annotations

import torch

from harness.records import Origin


def origin() -> Origin:
    """Return the origin of what is read on ranks: on a GPU the memory hierarchy is real."""
    return Origin.MEASURED if torch.cuda.is_available() else Origin.EMULATED
