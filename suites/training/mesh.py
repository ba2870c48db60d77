"""The meshes of ranks on which techniques share a model.

The mesh of a step has a dimension for each of them, from the outermost to the innermost: data-parallel ranks
(`fsdp2`), those that share each sequence, those of a pipeline, and those that share each layer. Of the first
two together, as in torchtitan, so many neighbours share each layer's experts; of the first two and the last,
where experts are not shared by tensor-parallel ranks. That is another mesh of the same ranks.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch.distributed.device_mesh import DeviceMesh

from harness.instruments import torch_internals
from harness.instruments.distributed.fake_process_group import mesh_of_ranks, mesh_of_sizes, world_size
from harness.records import Unavailable
from suites.training.step import TrainingStep

DIMENSIONS = {"context_parallel": "cp", "pipeline": "pp", "tensor_parallel": "tp"}
"""Techniques with a dimension of the mesh, and its name, the outermost first; before them is "dp"."""

SHARING = ("expert_parallel", *DIMENSIONS)
"""Techniques by which ranks share layers, sequences or experts."""


class Meshes(NamedTuple):
    """The meshes of a step's ranks; None where no technique needs it.

    `whole`: dp, cp, pp and tp. `experts`: edp, the ranks with the same experts; ep, those that share them;
    pp; and etp, the ranks of tp where these share each expert.
    """

    whole: DeviceMesh | None = None
    experts: DeviceMesh | None = None

    def of(self, name: str) -> DeviceMesh:
        """Return one dimension, which a technique of the step has."""
        mesh = self.experts if name in ("edp", "ep") else self.whole
        assert mesh is not None
        return mesh[name]

    def of_experts(self) -> DeviceMesh:
        """Return ep, and etp where there is one: the dimensions over which experts are spread."""
        assert self.experts is not None
        names = self.experts.mesh_dim_names or ()
        return self.experts["ep", "etp"] if "etp" in names else self.experts["ep"]

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
    return Meshes(whole, mesh_of_experts(step, device_type, sizes, with_fsdp2))


def mesh_of_experts(
    step: TrainingStep, device_type: str, sizes: dict[str, int], with_fsdp2: bool
) -> DeviceMesh:
    """Return the ranks as experts are spread over them; `sizes`: of the other mesh.

    Where each expert is on one rank, those that share a layer are neighbours in ep.
    """
    pp, tp = sizes.get("pp", 1), sizes.get("tp", 1)
    etp = tp if step.expert_tensor_ranks > 1 else 1
    spread = world_size() // (pp * etp)
    ep = min(step.expert_ranks, spread)
    split = {"edp": spread // ep} if with_fsdp2 else {}
    split["ep"] = ep
    if pp > 1:
        split["pp"] = pp
    if step.expert_tensor_ranks > 1:
        split["etp"] = etp
    if pp == 1 or tp == 1 or etp > 1:
        return made(device_type, split)
    with torch_internals.no_modes():
        ranks = torch.arange(world_size()).view(-1, pp, tp).transpose(1, 2).reshape(*split.values())
    return mesh_of_ranks(device_type, ranks, tuple(split))


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
