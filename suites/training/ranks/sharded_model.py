"""A model sharded by torch's `fully_shard`: which parts are gathered together, and what stays gathered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard

from harness.records import Unavailable
from suites.training.models.mixture import Experts, own
from suites.training.models.model import blocks_of


@dataclass(frozen=True, slots=True)
class ShardGroups:
    """Which parts of a model are gathered together, and what stays gathered after the forward pass.

    The settings of `fsdp2` with the same names.
    """

    reshard_after_forward: bool | int | None
    keep_last_block: bool
    head_apart: bool
    forward_prefetch: bool

    def resharding(self) -> tuple[bool | int | None, bool | None]:
        """Return `reshard_after_forward` as torch takes it, for blocks and for the rest of the model.

        Alone there is no group to reshard to, so a number counts as True.
        """
        given = self.reshard_after_forward
        if given is None or isinstance(given, bool):
            return given, given
        return (given if dist.get_world_size() > 1 else True), None


def shard_model(
    model: nn.Module,
    mesh: DeviceMesh,
    mesh_of_experts: Callable[[], DeviceMesh],
    groups: ShardGroups,
    policy: MixedPrecisionPolicy,
    offload: OffloadPolicy,
) -> Any:
    """Shard each block of a model, or of a stage, then the rest of it; return it.

    Experts that ranks share are a group of their own, sharded over the ranks with the same ones.
    """
    with_all: Any = partial(fully_shard, mesh=mesh, mp_policy=policy, offload_policy=offload)
    of_blocks, of_rest = groups.resharding()
    blocks = blocks_of(model)
    if groups.head_apart:
        embedding, norm, head = ends_of(model)
        if embedding is not None:
            with_all(embedding, reshard_after_forward=of_blocks)
        if norm is not None:
            with_all([norm, head], reshard_after_forward=bool(of_rest))
    for block in blocks:
        kept = groups.keep_last_block and block is blocks[-1]
        after_forward = False if kept else of_blocks
        for experts in shared_experts(block):
            shard_experts(experts, mesh_of_experts(), with_all, after_forward)
        with_all(block, reshard_after_forward=after_forward)
    sharded = with_all(model, reshard_after_forward=of_rest)
    if groups.forward_prefetch:
        sharded._set_unshard_async_op(True)
        for block, following in pairwise(blocks):
            ahead: Any = block
            ahead.set_modules_to_forward_prefetch([following])
    return sharded


def ends_of(model: nn.Module) -> tuple[nn.Module | None, nn.Module | None, nn.Module | None]:
    """Return the embedding, the last norm and the output layer, each None where a stage has none.

    Raises `Unavailable` for an unknown model.
    """
    find = getattr(model, "ends", None)
    if find is None:
        raise Unavailable(f"fsdp2: head=apart: {type(model).__name__} does not name its last norm")
    return find()  # type: ignore[no-any-return]


def shared_experts(block: nn.Module) -> list[Experts]:
    """Return the experts of a block of which ranks have different ones."""
    return [one for one in block.modules() if isinstance(one, Experts) and is_spread(one.gate)]


def is_spread(weight: nn.Parameter) -> bool:
    """Return whether ranks have different experts of this weight; else the same, or parts of each."""
    return isinstance(weight, DTensor) and "ep" in (weight.device_mesh.mesh_dim_names or ())


def shard_experts(
    experts: Experts, mesh: DeviceMesh, with_all: Any, after_forward: bool | int | None
) -> None:
    """Shard a rank's experts over the ranks with the same ones.

    As in torchtitan, where these are more than the experts, each expert is sharded by its rows.
    """
    ranks, parameters = mesh.size(), list(experts.parameters())
    few = len(own(experts.gate)) < ranks
    by_rows = few and all(own(one).shape[1] % ranks == 0 for one in parameters)  # torch shards evenly alone
    place = (lambda parameter: Shard(1)) if by_rows else None
    with_all(experts, mesh=mesh, shard_placement_fn=place, reshard_after_forward=after_forward)
