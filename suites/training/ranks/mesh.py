"""The meshes of ranks on which techniques share a model.

The mesh of a step has a dimension for each of them, from the outermost to the innermost: data-parallel ranks
(`fsdp2`), those that share each sequence, those of a pipeline, and those that share each layer. Of the first
two together, as in torchtitan, so many neighbours share each layer's experts: that is another mesh of the
same ranks.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from torch.distributed.device_mesh import DeviceMesh

from harness.instruments import torch_internals
from harness.instruments.distributed.fake_process_group import mesh_of_sizes, world_size
from harness.records import Unavailable
from suites.training.step import TrainingStep

DIMENSIONS = {"context_parallel": "cp", "pipeline": "pp", "tensor_parallel": "tp"}
"""Techniques with a dimension of the mesh, and its name, the outermost first; before them is "dp"."""

SHARING = ("expert_parallel", *DIMENSIONS)
"""Techniques by which ranks share layers, sequences or experts."""


class Meshes(NamedTuple):
    """The meshes of a step's ranks; None where no technique needs it.

    `whole`: dp, cp, pp and tp. `experts`: edp, the ranks with the same experts, and ep, those that share
    them;
    then the ranks of pp and tp as one dimension.
    """

    whole: DeviceMesh | None = None
    experts: DeviceMesh | None = None

    def of(self, name: str) -> DeviceMesh:
        """Return one dimension, which a technique of the step has."""
        mesh = self.experts if name in ("edp", "ep") else self.whole
        assert mesh is not None
        return mesh[name]

    @property
    def names(self) -> tuple[str, ...]:
        """Return the dimensions of the mesh of all techniques but expert parallelism."""
        return () if self.whole is None else self.whole.mesh_dim_names or ()

    def shards(self) -> DeviceMesh:
        """Return, as one dimension, the ranks with the same layers and the same part of each."""
        assert self.whole is not None
        if "cp" not in self.names:
            return self.whole["dp"]
        part: Any = self.whole["dp", "cp"]
        with torch_internals.no_modes():
            return part._flatten("dp_cp")  # type: ignore[no-any-return]


def meshes_of(step: TrainingStep, device_type: str) -> Meshes:
    """Return the meshes of a step's ranks.

    Fewer ranks than the step has are spread over the innermost dimensions.
    """
    if not any(step.settings_of(one) is not None for one in SHARING):
        return Meshes()
    given = (step.context_ranks, step.pipeline_ranks, step.tensor_ranks)
    present = [
        (name, size)
        for (technique, name), size in zip(DIMENSIONS.items(), given, strict=True)
        if step.settings_of(technique) is not None
    ]
    left, sizes = world_size(), {}
    for name, size in reversed(present):
        sizes[name] = min(size, left)
        left //= sizes[name]
    with_fsdp2 = step.settings_of("fsdp2") is not None
    if with_fsdp2:
        sizes["dp"] = left
    whole = made(device_type, dict(reversed(sizes.items()))) if present else None
    if step.settings_of("expert_parallel") is None:
        return Meshes(whole)
    inner = sizes.get("pp", 1) * sizes.get("tp", 1)
    outer = world_size() // inner
    expert_ranks = min(step.expert_ranks, outer)
    split = {"edp": outer // expert_ranks} if with_fsdp2 else {}
    split["ep"] = expert_ranks
    return Meshes(whole, made(device_type, split if inner == 1 else {**split, "inner": inner}))


def made(device_type: str, sizes: dict[str, int]) -> DeviceMesh:
    """Return the mesh of all ranks with dimensions of these names and sizes, the outermost first."""
    return mesh_of_sizes(device_type, tuple(sizes.values()), tuple(sizes))


def joined(sharding: str, further: str) -> str:
    """Return `Features.sharding` with one more way in which ranks share a model."""
    return further if sharding == "none" else f"{sharding}, {further}"


def refuse_without_fsdp2(step: TrainingStep, technique: str) -> None:
    """Raise `Unavailable` where a technique cannot average gradients itself after the backward pass."""
    if step.settings_of("fsdp2") is not None:
        return
    others = [one for one in SHARING if one != technique and step.settings_of(one) is not None]
    if others:
        raise Unavailable(
            f"{technique} with {others[0]} needs fsdp2, which reduces gradients over a mesh of ranks; list "
            f"fsdp2 too, with dp_size=1 where no further ranks are wanted"
        )
    if step.settings_of("optimizer_in_backward") is not None:
        raise Unavailable(
            f"{technique} averages gradients after the backward pass, and optimizer_in_backward releases "
            "them before; list fsdp2 too"
        )
