"""The mesh of ranks on which techniques share a model, with a dimension for each of them.

From the outermost to the innermost: data-parallel ranks (`fsdp2`), those of them that share each layer's
experts, those of a pipeline, those that share each sequence, and those that share each layer.
"""

from __future__ import annotations

from typing import Any

from torch.distributed.device_mesh import DeviceMesh

from harness.instruments import torch_internals
from harness.instruments.distributed.fake_process_group import mesh_of_sizes, world_size
from harness.records import Unavailable
from suites.training.step import TrainingStep

TECHNIQUES = {
    "expert_parallel": "ep",
    "pipeline": "pp",
    "context_parallel": "cp",
    "tensor_parallel": "tp",
}
"""Techniques with a dimension of their own, and its name."""


def mesh_of(step: TrainingStep, device_type: str) -> DeviceMesh | None:
    """Return the mesh of a step's ranks; None for a step whose ranks share no layers, sequences or experts.

    Fewer ranks than the step has are spread over the innermost dimensions.
    """
    given = (step.expert_ranks, step.pipeline_ranks, step.context_ranks, step.tensor_ranks)
    present = [
        (name, size)
        for (technique, name), size in zip(TECHNIQUES.items(), given, strict=True)
        if step.settings_of(technique) is not None
    ]
    if not present:
        return None
    left, sizes = world_size(), {}
    for name, size in reversed(present):
        sizes[name] = min(size, left)
        left //= sizes[name]
    if step.settings_of("fsdp2") is not None:
        sizes["dp"] = left
    names = tuple(reversed(sizes))
    return mesh_of_sizes(device_type, tuple(sizes[name] for name in names), names)


def dimensions(mesh: DeviceMesh, names: tuple[str, ...], joined: str) -> DeviceMesh:
    """Return those of the named dimensions that the mesh has, as one dimension, called `joined` if of several."""
    found = tuple(name for name in names if name in (mesh.mesh_dim_names or ()))
    part: Any = mesh[found] if len(found) > 1 else mesh[found[0]]
    if len(found) == 1:
        return part  # type: ignore[no-any-return]
    with torch_internals.no_modes():
        return part._flatten(joined)  # type: ignore[no-any-return]


def joined(sharding: str, further: str) -> str:
    """Return `Features.sharding` with one more way in which ranks share a model."""
    return further if sharding == "none" else f"{sharding}, {further}"


def refuse_without_fsdp2(step: TrainingStep, technique: str) -> None:
    """Raise `Unavailable` where a technique would average gradients itself on a mesh of several dimensions."""
    others = [one for one in TECHNIQUES if one != technique and step.settings_of(one) is not None]
    if others and step.settings_of("fsdp2") is None:
        raise Unavailable(
            f"{technique} with {others[0]} needs fsdp2, which reduces gradients over a mesh of ranks; list "
            f"fsdp2 too, with dp_size=1 where no further ranks are wanted"
        )
