"""Fully sharded data parallelism (arXiv 2304.11277), torch's FSDP2: each rank has a shard of everything.

Each block is gathered before it is used and resharded after it; the rest of the model is gathered around the
blocks, and stays gathered until its backward pass. With `cpu_offload` shards, gradients and states are on the
host. Without a GPU, device and host are both `cpu` to FSDP2; then this module moves shards to the emulated
host, and each gradient as soon as it is reduced, which is when FSDP2's own policy does it. `compile` needs
`scope: blocks`. Its mixed precision takes the place of autocast. With `tensor_parallel` ranks are a mesh:
each shards its part of a layer over the ranks that have the same part. With `context_parallel` all ranks
shard the model, those too that share a sequence. With `pipeline` each shards its stages over the ranks that
have the same ones, and torch reduces gradients after the last micro-batch.

`shard_over_mesh` decides which parts are gathered together, and what stays gathered.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from itertools import pairwise
from math import lcm
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard

from harness.instruments.distributed.fake_process_group import mesh_of_sizes, rank_mesh, world_size
from harness.records import Unavailable
from suites.training import optimizers
from suites.training.declared import FSDP2Settings
from suites.training.host_memory import Resources, on_host, states_on_host
from suites.training.mesh import joined
from suites.training.models.mixture import Experts
from suites.training.models.model import blocks_of
from suites.training.quantization import local
from suites.training.step import DTYPES, EXACT, Contract, TrainingStep, Within, no_context
from suites.training.techniques import mixed_precision
from suites.training.techniques.ddp import BF16_REDUCTION
from suites.training.techniques.fsdp1 import STAY_GATHERED
from suites.training.workload import Workload

LATE_REDUCTION = "the formula has sharded gradients; this step's are reduced after the last micro-batch"
NOTE = "FSDP2, rank 0: shards of parameters, gradients and states, and gathered blocks, in the type as built"
BF16_NOTE = (
    "FSDP2, rank 0: shards of parameters, gradients and states in fp32; gathered blocks and their "
    "gradients in bf16, reduced in {reduced}"
)


def contract(settings: FSDP2Settings) -> Contract:
    """Return `EXACT`, the mean over ranks in another order; or the tolerance of gradients sent in bf16."""
    return Within(BF16_REDUCTION) if settings.reduce_dtype == "bf16" else EXACT


def applies_to(workload: Workload, settings: FSDP2Settings) -> str | None:
    """Return why torch cannot shard such a step; None where it can."""
    if (reason := optimizers.not_for_shards(workload)) is not None:
        return reason
    if settings.cpu_offload and workload.optimizer == "adamw_8bit":
        return "cpu_offload keeps AdamW's two moments on the host in fp32, and adamw_8bit has others"
    if settings.head == "apart" and workload.tie_word_embeddings:
        return "head: apart needs an output layer of its own, and this model's shares the embedding's weight"
    return None


def refuse_wrong_groups(settings: FSDP2Settings, ranks: int) -> None:
    """Raise `Unavailable` for groups that do not divide the ranks over which the model is sharded."""
    within, reshard = settings.shard_within or ranks, settings.reshard_after_forward
    if ranks % within:
        raise Unavailable(f"fsdp2: shard_within={within} does not divide the {ranks} ranks")
    if reshard is None or isinstance(reshard, bool):
        return
    allowed = [count for count in range(2, within) if within % count == 0]
    if reshard not in allowed:
        listed = ", ".join(map(str, allowed)) or f"none for {within} ranks"
        raise Unavailable(
            f"fsdp2: reshard_after_forward={reshard!r}: expected true, false, or a number of ranks ({listed})"
        )


def apply(step: TrainingStep, settings: FSDP2Settings) -> TrainingStep:
    """Return one of `dp_size` ranks' step; FSDP2's own mixed precision takes the place of autocast."""
    compiled = step.settings_of("compile")
    if compiled is not None and compiled.get("scope") != "blocks":
        raise Unavailable(
            "fsdp2 gathers block by block, which one graph cannot; use compile: {scope: blocks}"
        )
    refuse_wrong_groups(settings, step.workload.dp_size * step.context_ranks)
    for other in ("tensor_parallel", "pipeline", "expert_parallel"):
        if step.settings_of(other) is not None:
            refuse_on_a_mesh(settings, other)
    features = step.features
    if step.settings_of("pipeline") is not None:
        settings = replace(settings, reshard_after_forward=settings.reshard_after_forward or False)
        features = features.but(states=LATE_REDUCTION)
    mixed = step.features.precision == "autocast"
    policy = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16 if mixed else None,
        reduce_dtype=DTYPES[settings.reduce_dtype or ("fp32" if mixed else None)],
    )
    place = "host" if settings.cpu_offload else "device"
    others = step.features.sharding
    features = features.but(
        sharding="zero3" if others == "none" else joined("zero3", others),
        optimizer_on=place,
        parameters_on=place,
        states=STAY_GATHERED if settings.reshard_after_forward is False else "",
    )
    replaced = mixed_precision.NOTES["autocast"] if mixed else ()
    note = BF16_NOTE.format(reduced=settings.reduce_dtype or "fp32") if mixed else NOTE
    changed = replace(
        step,
        ranks=step.workload.dp_size * step.same_data_ranks,
        shard_within=settings.shard_within,
        ranks_multiple_of=lcm(
            settings.shard_within or 1,
            int(settings.reshard_after_forward or 1),
            step.pipeline_ranks
            * lcm(step.expert_ranks * step.expert_tensor_ranks, step.context_ranks * step.tensor_ranks),
        ),
        features=features,
        around=no_context if mixed else step.around,
        wraps=(*step.wraps, partial(shard, settings, policy)),
        notes=(*(one for one in step.notes if one not in replaced), note),
    )
    if not settings.reduce_every_micro_batch:
        changed = replace(changed, reducing=reduce_with_the_last)
    if settings.cpu_offload:
        if step.make_optimizer is not None:
            raise Unavailable("fsdp2 with cpu_offload updates fp32 shards with torch's own optimizer only")
        changed = replace(changed, make_optimizer=optimizer_on_host)
    return changed


def refuse_on_a_mesh(settings: FSDP2Settings, other: str) -> None:
    """Raise `Unavailable` for settings that are not built for a mesh of ranks with the `other` technique."""
    reshards_to = settings.reshard_after_forward
    refused = {
        "cpu_offload": (settings.cpu_offload, "offload is not checked on a mesh of ranks"),
        "shard_within": (settings.shard_within, "the mesh of ranks would have a third dimension"),
        "reshard_after_forward": (
            not isinstance(reshards_to, bool) and reshards_to,
            "resharding to some ranks is not built for a mesh",
        ),
    }
    for name, (given, reason) in refused.items():
        if given:
            raise Unavailable(f"fsdp2 with {name}={given} does not combine with {other}: {reason}")


def shard(
    settings: FSDP2Settings, policy: MixedPrecisionPolicy, model: nn.Module, resources: Resources
) -> nn.Module:
    """Shard each block, then the rest of the model, or of each of a pipeline's stages on this rank.

    `policy`: FSDP2's types; if mixed, gathered parameters and their gradients in bf16, shards as built.
    """
    real = resources.device.type != "cpu"
    offload = CPUOffloadPolicy(pin_memory=real) if settings.cpu_offload else OffloadPolicy()
    mesh = mesh_of(settings, resources)
    with_all = partial(fully_shard, mesh=mesh, mp_policy=policy, offload_policy=offload)
    stages: Any = model.stages if "pp" in resources.meshes.names else (model,)
    for part in stages:
        shard_over_mesh(part, settings, with_all, resources)
    if settings.cpu_offload and real:
        for parameter in model.parameters():
            resources.host.note(local(parameter))
    elif settings.cpu_offload:
        put_on_host(model, resources)
    return model


def shard_over_mesh(model: nn.Module, settings: FSDP2Settings, with_all: Any, resources: Resources) -> None:
    """Shard each block of a model, or of a stage, then the rest of it, `with_all` ranks of the mesh.

    Experts that ranks share are a group of their own, sharded over the ranks with the same ones.
    """
    of_blocks, of_rest = resharding(settings)
    blocks = blocks_of(model)
    if settings.head == "apart":
        ends: Any = getattr(model, "ends", None)
        if ends is None:
            raise Unavailable(f"fsdp2: head=apart: {type(model).__name__} does not name its last norm")
        embedding, norm, head = ends()  # each None where a stage has none
        if embedding is not None:
            with_all(embedding, reshard_after_forward=of_blocks)
        if norm is not None:
            with_all([norm, head], reshard_after_forward=bool(of_rest))
    for block in blocks:
        kept = settings.keep_last_block and block is blocks[-1]
        after_forward = False if kept else of_blocks
        for experts in shared_experts(block):
            shard_experts(experts, resources.meshes.of("edp"), with_all, after_forward)
        with_all(block, reshard_after_forward=after_forward)
    sharded = with_all(model, reshard_after_forward=of_rest)
    if settings.forward_prefetch:
        sharded._set_unshard_async_op(True)
        for block, following in pairwise(blocks):
            ahead: Any = block
            ahead.set_modules_to_forward_prefetch([following])


def resharding(settings: FSDP2Settings) -> tuple[bool | int | None, bool | None]:
    """Return `reshard_after_forward` as torch takes it, for blocks and for the rest of the model.

    Alone there is no group to reshard to, so a number counts as True.
    """
    given = settings.reshard_after_forward
    if given is None or isinstance(given, bool):
        return given, given
    return (given if dist.get_world_size() > 1 else True), None


def mesh_of(settings: FSDP2Settings, resources: Resources) -> DeviceMesh:
    """Return the ranks to shard over: all, or those with the same layers and the same part of each.

    With `shard_within` its rows have that many neighbouring ranks.
    """
    device_type = resources.device.type
    if {"tp", "pp"} & set(resources.meshes.names):
        return resources.meshes.shards()  # type: ignore[no-any-return]
    if settings.shard_within is None:
        return rank_mesh(device_type)
    width = min(settings.shard_within, world_size())
    return mesh_of_sizes(device_type, (world_size() // width, width), ("replicate", "shard"))


def put_on_host(model: nn.Module, resources: Resources) -> None:
    """Move the shards to the emulated host, and each gradient as soon as it is reduced; buffers stay."""
    host = resources.host
    move: Any = model._apply
    move(lambda one: on_host(one, host) if isinstance(one, DTensor) else one)
    below: dict[nn.Parameter, Any] = {}

    def gradient_down(parameter: nn.Parameter) -> None:
        fresh: Any = parameter.grad
        if parameter not in below:
            below[parameter] = on_host(fresh, host)
        else:
            below[parameter].to_local().copy_(fresh.to_local())
        parameter.grad = below[parameter]

    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(gradient_down)  # type: ignore[no-untyped-call]


def optimizer_on_host(model: nn.Module, workload: Workload, resources: Resources) -> optimizers.RankOptimizer:
    """Return the workload's optimizer with its two moments on the host."""
    parameters = list(model.parameters())
    inner = optimizers.make_torch_optimizer(parameters, workload)
    states_on_host(inner, resources.host)
    return optimizers.TorchOptimizer(parameters, inner)


def reduce_with_the_last(model: Any, last: bool) -> AbstractContextManager[None]:
    """Gather parameters for every micro-batch, reduce gradients with the last of an update."""
    model.set_requires_gradient_sync(last)
    return nullcontext()


def shared_experts(block: nn.Module) -> list[Experts]:
    """Return the experts of a block of which ranks have different ones; else the same, or parts of each."""
    every = [one for one in block.modules() if isinstance(one, Experts)]
    meshes = [one.gate.device_mesh if isinstance(one.gate, DTensor) else None for one in every]
    return [
        one for one, mesh in zip(every, meshes, strict=True) if mesh and "ep" in (mesh.mesh_dim_names or ())
    ]


def shard_experts(
    experts: Experts, mesh: DeviceMesh, with_all: Any, after_forward: bool | int | None
) -> None:
    """Shard a rank's experts over the ranks with the same ones.

    As in torchtitan, where these are more than the experts, each expert is sharded by its rows.
    """
    ranks, parameters = mesh.size(), list(experts.parameters())
    few = len(local(experts.gate)) < ranks
    by_rows = few and all(local(one).shape[1] % ranks == 0 for one in parameters)  # torch shards evenly alone
    place = (lambda parameter: Shard(1)) if by_rows else None
    with_all(experts, mesh=mesh, shard_placement_fn=place, reshard_after_forward=after_forward)
