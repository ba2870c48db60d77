"""The resources of the process that builds a training step."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from suites.training.offload.host_memory import HostMemory


class Resources(NamedTuple):
    """Resources of the process in which a technique is built."""

    device: torch.device
    host: HostMemory
    folder: str = ""  # for files; "": the system's for temporary ones
    meshes: Any = None  # `ranks.mesh.Meshes` of the step's ranks
